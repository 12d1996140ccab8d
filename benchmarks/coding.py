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
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from loopback import Loopback

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


def measure_coding(cases: Iterable[str] = ()) -> list[Line]:
    """For each case and coding, quality and bytes over all seeds, beside float32's."""
    lines = []
    for name in cases or CASES:
        settings, data = _open(name)
        runs: dict[str, list[Line]] = {coding: [] for coding in CODINGS}
        for seed in SEEDS:
            for coding, lines_of_coding in runs.items():
                lines_of_coding.append(_run(name, settings, data, coding, seed))
        for coding, own in runs.items():
            line = _summary(settings.plan.rounds, own, runs["float32"])
            lines.append({"case": name, "data": data.name, "coding": coding, **line})
    return lines


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
    with tempfile.TemporaryDirectory() as folder:
        loopback = Loopback()
        for i in range(NODES):
            shard, state = data.select(torch.arange(i, data.clients, NODES)), Path(folder, f"{i}")
            node = ClientNode(contract, shard, NodeState(state), f"node-{i}")
            loopback.here[i + 1] = node.answer
        deployment = Deployment(contract, loopback, {}, lambda text: None)
        deployment.fleet.run = "0" * 16
        for exchange in deployment:
            assert exchange.answered == exchange.asked, exchange
            loopback.sent.clear()
            exchanges.append(exchange)
            if deployment.due:
                params = deployment.progress.whole()
                deployment.evaluator.calibrate(params)
                losses[exchange.round] = deployment.evaluator.train_loss(params)
    last = deployment.evaluate()
    asked = sum(exchange.asked for exchange in exchanges)
    line = {
        "losses": losses,
        "train_loss": last["train_loss"],
        "test_auc": last["test_auc"],
        "bytes_down": sum(x.bytes_down for x in exchanges) / asked,
        "bytes_up": sum(x.bytes_up for x in exchanges) / asked,
    }
    seconds = time.perf_counter() - since
    _say(
        f"{name} {coding} seed {seed}: AUC {last['test_auc']:.5f}, train loss "
        f"{last['train_loss']:.5f}, {line['bytes_up']:,.0f} B up, {seconds:.0f} s"
    )
    return line


def _summary(rounds: int, runs: list[Line], exact: list[Line]) -> Line:
    """What the runs of one coding come to; the target is float32's loss at three quarters."""
    aucs = [run["test_auc"] for run in runs]
    apart = [a["test_auc"] - b["test_auc"] for a, b in zip(runs, exact, strict=True)]
    targets = [run["losses"][rounds * 3 // 4] for run in exact]
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
