"""LSTM, DIN and a user's own module on this machine: a round against what one would do instead.

fedrows      FedSubAvg rounds: sampling, gathering, training, aggregating; no evaluation
centralised  plain PyTorch on as many samples: I steps of K·B (see `baselines`)
one by one   plain PyTorch, one client after another on a copy of the model, then FedAvg
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from fedrows.algorithms.fedsubavg import FedSubAvg
from fedrows.bench import baselines, shapes
from fedrows.bench.blocks import Rounds, medians, seconds_per_round, settings
from fedrows.cli.flags import Parser, UsageError
from fedrows.fleet import SimulatedFleet
from fedrows.server import begin, rounds

SHAPES = {"lstm": shapes.texts, "din": shapes.clicks, "own": shapes.own}
BARS = {  # times centralised, and times one by one, on two CPU cores
    "lstm": {"centralised": 0.8, "one by one": 1.5},
    "din": {"centralised": 1.0, "one by one": 5.0},
    "own": {"one by one": 2.0},
}


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Measures, prints and returns rounds/s and the ratios of each model."""
    parser = Parser("bench models", (__doc__ or "").split("\n")[0])
    names = ",".join(SHAPES)
    parser.add_argument("--only", metavar="NAMES", default=names, help=f"Of {names} (default).")
    options = settings(parser, argv, blocks=5)
    result: dict[str, Any] = {"blocks": options.blocks, "threads": torch.get_num_threads()}
    for name in options.own["only"].split(","):
        if name not in SHAPES:
            raise UsageError(f"--only names {name!r}, but must name some of {names}.")
        result[name] = _measure(name, options.blocks)
    options.write(result)
    return result


def plain_module(name: str, shape: shapes.Shape, sparse: bool) -> nn.Module:
    """The model in plain PyTorch."""
    tables = shape.data.tables
    torch.manual_seed(0)
    if name == "lstm":
        return baselines.Text(tables["text"], sparse)
    if name == "din":
        return baselines.Interest(tables["user"], tables["item"], sparse)
    return shapes.TwoTower(tables["user"], tables["item"], sparse=sparse)


def _measure(name: str, blocks: int) -> dict[str, Any]:
    shape = SHAPES[name]("cpu")
    data, plan = shape.data, shape.plan
    batches = baselines.pooled_batches(data, plan)
    fleet = SimulatedFleet(shape.model(), FedSubAvg(), data, plan)
    count = 10 if name == "own" else 1
    central = baselines.centralised(plain_module(name, shape, True), batches, plan.lr)
    alone = baselines.one_by_one(plain_module(name, shape, True), data, plan)
    contenders: dict[str, tuple[Rounds, int]] = {
        "fedrows": (_simulated(fleet), count),
        "centralised": (central, count),
        "one by one": (alone, 1),
    }
    time = medians(seconds_per_round(contenders, blocks))
    times = {who: seconds / time["fedrows"] for who, seconds in time.items() if who != "fedrows"}
    for who, seconds in time.items():
        print(f"{name:5} {who:12} {1 / seconds:8.2f} rounds/s")
    for who, ratio in times.items():
        bar = f" (bar: {BARS[name][who]})" if who in BARS[name] else ""
        print(f"{name:5} fedrows is {ratio:.2f} × {who}{bar}")
    print(f"{name:5} chunks chosen: {fleet.chunks}", flush=True)
    speed = {who: 1 / seconds for who, seconds in time.items()}
    return {"rounds_per_second": speed, "times": times, "chunks": str(fleet.chunks)}


def _simulated(fleet: SimulatedFleet) -> Rounds:
    loop = rounds(fleet, fleet.plan, begin(fleet.model, fleet.algorithm, fleet.plan))

    def run(count: int) -> None:
        for _ in itertools.islice(loop, count):
            pass

    return run
