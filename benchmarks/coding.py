"""What float16 and int8 on the wire cost in quality: deployed runs within one process.

Messages are packed, checked and decoded as in any deployment, and what a coding rounds off stays in
the clients' memory on disk; only the network is left out. Runs of one seed have the same cohorts
and batches, so what differs between them is rounding alone. Rows of up to four numbers travel as
float16 even where int8 is asked for, as MovieLens' do: so there is a model with wide rows, too.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fedrows import catalogue
from fedrows.cli.settings import choose
from fedrows.data.federation import FederatedData
from fedrows.errors import DataError
from fedrows.flower.deployment import Deployment
from fedrows.flower.node.node import ClientNode
from fedrows.flower.node.state import NodeState
from fedrows.flower.wire.codings import CODINGS
from fedrows.flower.wire.contract import Contract, DeployedTask, DeploymentOptions
from fedrows.runs.settings import Settings

# Case → task, rounds, and how many of them between two train losses.
CASES = {
    "movielens": ("movielens", 120, 1),
    "factors": ("movielens", 120, 1),
    "amazon": ("amazon", 40, 5),
}
SEEDS = (0, 1, 2)
NODES = 4
Line = dict[str, Any]


class Factors(nn.Module):
    """A factorisation machine (Rendle 2010): a score adds up products of pairs of rows."""

    def __init__(self, rows: int, width: int = 16) -> None:
        super().__init__()
        self.weight = nn.Embedding(rows, width)
        self.bias = nn.Parameter(torch.zeros(()))
        nn.init.normal_(self.weight.weight, std=0.1)

    def forward(self, features: Tensor) -> Tensor:
        x = self.weight(features)  # (B, L, width)
        total = x.sum(1)
        pairs = (total.square() - x.square().sum(1)).sum(1) / 2
        return self.bias + total[:, 0] + pairs


class Within:
    """Carries messages to nodes of this process, each answered before the next is sent."""

    def __init__(self, nodes: Iterable[ClientNode]) -> None:
        self._nodes = dict(enumerate(nodes, start=1))
        self._answers: dict[str, bytes | str] = {}
        self._number = count()

    def nodes(self) -> list[int]:
        return list(self._nodes)

    def send(self, messages: Mapping[int, bytes], seconds: float, round_: int) -> dict[str, int]:
        found = {}
        for node, content in messages.items():
            message = str(next(self._number))
            found[message] = node
            self._answers[message] = self._nodes[node].answer(content)
        return found

    def wait(self, seconds: float) -> None:
        """Answers are here already."""

    def receive(self, messages: Iterable[str]) -> dict[str, bytes | str]:
        return {m: self._answers.pop(m) for m in list(messages) if m in self._answers}


def measure_coding(cases: Iterable[str] = ()) -> list[Line]:
    """For each case and coding, quality and bytes over all seeds, beside float32's."""
    found = []
    for name in cases or CASES:
        settings, data = _open(name)
        runs: dict[str, list[Line]] = {coding: [] for coding in CODINGS}
        for seed in SEEDS:
            for coding, its in runs.items():
                its.append(_run(name, settings, data, coding, seed))
        for coding, its in runs.items():
            line = _told(settings.plan.rounds, its, runs["float32"])
            found.append({"case": name, "data": data.name, "coding": coding, **line})
    return found


def _open(name: str) -> tuple[Settings, FederatedData]:
    """A case's settings and data; those of the synthetic task where a file is missing."""
    task, rounds, every = CASES[name]
    typed = {"device": "cpu", "cap": "100"}
    typed |= {"rounds": str(rounds), "evaluate_every": str(every)}
    settings = choose(catalogue.task(task), ["fedsubavg"], typed)["fedsubavg"]
    try:
        return settings, settings.task.load(settings.options)
    except DataError as error:
        _say(f"{error} The synthetic task is taken instead.")
        settings = choose(catalogue.task("synthetic"), ["fedsubavg"], typed)["fedsubavg"]
        return settings, settings.task.load(settings.options)


def _run(name: str, settings: Settings, data: FederatedData, coding: str, seed: int) -> Line:
    """One deployed run: train loss by round, AUC at the end, bytes a client and round."""

    def model(own: FederatedData, seed: int) -> Any:
        if name == "factors":
            torch.manual_seed(seed)
            return Factors(own.tables["weight"])
        return catalogue.model(settings.task.model)(own, seed)

    task = DeployedTask("coding", lambda config: data, model, lambda config: data)
    plan = replace(settings.plan, seed=seed)
    contract = Contract(
        task, plan, settings.algorithm, DeploymentOptions(min_nodes=NODES, coding=coding)
    )
    since, losses, exchanges = time.perf_counter(), dict[int, float](), []
    with tempfile.TemporaryDirectory() as place:
        shards = [data.select(torch.arange(i, data.clients, NODES)) for i in range(NODES)]
        nodes = [
            ClientNode(contract, shard, NodeState(Path(place) / f"node-{i}"), f"node-{i}")
            for i, shard in enumerate(shards)
        ]
        deployment = Deployment(contract, Within(nodes), {}, lambda text: None)
        deployment.fleet.run = "0" * 16
        for told in deployment:
            assert told.answered == told.asked, told
            exchanges.append(told)
            if deployment.due:
                params = deployment.progress.whole()
                deployment.evaluator.calibrate(params)
                losses[told.round] = deployment.evaluator.train_loss(params)
    last = deployment.evaluate()
    asked = sum(told.asked for told in exchanges)
    line = {
        "losses": losses,
        "train_loss": last["train_loss"],
        "test_auc": last["test_auc"],
        "bytes_down": sum(told.bytes_down for told in exchanges) / asked,
        "bytes_up": sum(told.bytes_up for told in exchanges) / asked,
    }
    seconds = time.perf_counter() - since
    _say(
        f"{name} {coding} seed {seed}: AUC {last['test_auc']:.5f}, train loss "
        f"{last['train_loss']:.5f}, {line['bytes_up']:,.0f} B up, {seconds:.0f} s"
    )
    return line


def _told(rounds: int, runs: list[Line], exact: list[Line]) -> Line:
    """What the runs of one coding come to; the target is float32's loss at three quarters."""
    aucs = [run["test_auc"] for run in runs]
    apart = [run["test_auc"] - its["test_auc"] for run, its in zip(runs, exact, strict=True)]
    targets = [its["losses"][rounds * 3 // 4] for its in exact]
    return {
        "rounds": rounds,
        "test_auc": statistics.mean(aucs),
        "test_auc_spread": statistics.stdev(aucs),
        "test_auc_from_float32": apart,
        "train_loss": statistics.mean(run["train_loss"] for run in runs),
        "rounds_to_target": [_reached(r["losses"], t) for r, t in zip(runs, targets, strict=True)],
        "bytes_down": statistics.mean(run["bytes_down"] for run in runs),
        "bytes_up": statistics.mean(run["bytes_up"] for run in runs),
    }


def _reached(losses: Mapping[int, float], target: float) -> int | None:
    """The first round whose loss is at most the target; None if there is none."""
    return next((round_ for round_, loss in losses.items() if loss <= target), None)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
