"""The contenders of every model: fedrows, and plain PyTorch in three ways."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager

import torch
from torch import nn

from benchmarks.speed import baselines, shapes
from benchmarks.speed.bars import Faster
from benchmarks.speed.blocks import Rounds, taken_from
from benchmarks.speed.processes import InProcesses
from fedrows.algorithms.fedsubavg import FedSubAvg
from fedrows.server import begin, rounds
from fedrows.simulator import fast_paths

Contenders = dict[str, tuple[Rounds, int]]  # who runs, and how many rounds make a block

SHAPES = {
    "lr": shapes.ratings,
    "lstm": shapes.texts,
    "din": shapes.clicks,
    "own": shapes.own,
}
CENTRALISED = ("centralised", "centralised, nn.EmbeddingBag")
PEERS = ("Flower", "pfl", "FedJAX")
BARS = {  # on two CPU cores
    "lr": [
        Faster("centralised", 1.5, CENTRALISED),
        Faster("FedJAX", 20),
        Faster("pfl", 60),
        Faster("Flower", 300),
    ],
    "lstm": [
        Faster("centralised", 0.8),
        Faster("one by one", 1.5),
        Faster("the best peer", 2.5, PEERS),
    ],
    "din": [Faster("centralised", 1), Faster("one by one", 5)],
    "own": [Faster("one by one", 2)],
}
_COUNTS = {  # rounds of a block: of fedrows, of centralised training, of one by one
    "lr": (150, 60, 2),
    "lstm": (1, 1, 1),
    "din": (1, 1, 1),
    "own": (10, 10, 1),
}


@contextmanager
def contenders(name: str, shape: shapes.Shape) -> Iterator[Contenders]:
    """Who runs rounds of a model; the processes among them end afterwards."""
    data, plan = shape.data, shape.plan
    batches = baselines.pooled_batches(data, plan)

    def module(bag: bool = False) -> nn.Module:
        return plain_module(name, shape, sparse=True, bag=bag)

    ours, central, alone = _COUNTS[name]
    with closing(InProcesses(module(), data, plan)) as in_processes:
        runs: Contenders = {
            "fedrows": (simulated(shape), ours),
            "centralised": (baselines.centralised(module(), batches, plan.lr), central),
            "one by one": (baselines.one_by_one(module(), data, plan), alone),
            "one by one, two processes": (in_processes, alone),
        }
        if name == "lr":
            bag = baselines.centralised(module(bag=True), batches, plan.lr)
            runs["centralised, nn.EmbeddingBag"] = (bag, central)
        yield runs


def plain_module(name: str, shape: shapes.Shape, sparse: bool, bag: bool = False) -> nn.Module:
    """The model in plain PyTorch."""
    tables = shape.data.tables
    torch.manual_seed(0)
    if name == "lr":
        return baselines.Plain(next(iter(tables.values())), bag, sparse)
    if name == "lstm":
        return baselines.Text(tables["text"], sparse)
    if name == "din":
        return baselines.Interest(tables["user"], tables["item"], sparse)
    return shapes.TwoTower(tables["user"], tables["item"], sparse=sparse)


def simulated(shape: shapes.Shape) -> Rounds:
    """Rounds of FedSubAvg: sampling, gathering, training, aggregating; no evaluation."""
    model, algorithm = shape.model(), FedSubAvg()
    fleet = fast_paths.fleet(model, algorithm, shape.data, shape.plan)
    return taken_from(rounds(fleet, shape.plan, begin(model, algorithm, shape.plan)))
