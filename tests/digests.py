"""Prints a digest of what every algorithm makes of `synthetic`: all its tensors and its metrics.

    ATEN_CPU_CAPABILITY=avx2 OMP_NUM_THREADS=1 python tests/digests.py > tests/digests.json

Vector instructions and threads decide in which order PyTorch adds, so both are fixed there. Its
square roots come from a library that rounds them in a way of each processor's own, so NumPy's,
which are rounded as IEEE 754 says, take their place. Cohorts are trained whole: on a busy machine
a round may take so long that chunks would be measured.
"""

import functools
import hashlib
import json
import tempfile
from dataclasses import fields
from pathlib import Path

import numpy as np
import torch
from torch import nn

from fedrows import FederatedData, Plan, Simulation, catalogue, simulate
from fedrows.task import Task

PLANS = {
    "plain": {},
    "float64": {"dtype": "float64"},
    "epoch": {"batches": "epoch", "clip": 0.5, "lr_decay": 0.9},
    "chunk": {"chunk": 7, "weighting": "uniform", "seed": 5},
}


def rounded_root(x: torch.Tensor) -> torch.Tensor:
    """√x of every number, the same on every processor."""
    return torch.from_numpy(np.asarray(np.sqrt(x.detach().numpy())))


def digest(tensors: dict[str, torch.Tensor], line: dict[str, object]) -> str:
    """SHA-256 of tensors and of a line of metrics, but for its seconds."""
    made = hashlib.sha256()
    for name, x in sorted(tensors.items()):
        made.update(f"{name} {x.dtype} {tuple(x.shape)}".encode())
        made.update(x.detach().contiguous().cpu().numpy().tobytes())
    shown = {name: value for name, value in line.items() if name != "seconds"}
    made.update(json.dumps(shown, sort_keys=True).encode())
    return made.hexdigest()[:32]


@functools.cache
def synthetic() -> tuple[Task, FederatedData]:
    """The task and its data."""
    task = catalogue.task("synthetic")
    return task, task.load(task.options())


def one(name: str, own: dict[str, object], plan: dict[str, object]) -> str:
    """The digest of ten rounds of an algorithm."""
    task, data = synthetic()
    model = catalogue.model(task.model)(data)
    fixed = {"rounds": 10, "device": "cpu", "chunk": task.plan["clients_per_round"]}
    settings = Plan(**{**task.plan, **fixed, **plan})
    with tempfile.TemporaryDirectory() as folder:
        algorithm = catalogue.algorithm(name)(**own)
        run = Simulation(data, model, algorithm, settings, folder=Path(folder) / "tables")
        for _ in run:
            pass
        whole = run.progress.whole()
        tensors = run.tensors()
        if settings.tables == "memory":
            tensors |= {f"whole/{table}": x for table, x in whole.tables.items()}
        return digest(tensors, run.evaluate())


class Net(nn.Module):
    """A plain module, to be lifted over the cohort."""

    def __init__(self, rows: int) -> None:
        super().__init__()
        self.weight = nn.Embedding(rows, 4)
        self.score = nn.Linear(4, 1)
        for number, x in enumerate(self.parameters()):
            at = torch.arange(x.numel(), dtype=torch.float32)
            x.data = torch.sin(at + number).view(x.shape) / 8

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        return self.score(torch.tanh(self.weight(features)).sum(1))[:, 0]


def lifted(name: str) -> str:
    """The digest of ten rounds of a plain module."""
    _, data = synthetic()
    net = Net(data.tables["weight"])
    result = simulate(data, net, name, rounds=10, device="cpu", threads=1, chunk=10)
    return digest(dict(result.params.tables) | dict(result.params.dense), result.history[-1])


def main() -> None:
    torch.set_num_threads(1)
    torch.Tensor.sqrt = rounded_root
    found = {}
    for name in catalogue.names("algorithm"):
        kind = catalogue.algorithm(name)
        ways = [{}]
        if any(field.name == "lazy" for field in fields(kind)):
            ways.append({"lazy": True})
        for own in ways:
            for title, plan in PLANS.items():
                found[" ".join([name, *own, title])] = one(name, own, plan)
        if not kind(**ways[-1]).sweeps:
            found[f"{name} mapped"] = one(name, ways[-1], {"tables": "mapped"})
        if not kind.pooled:
            found[f"{name} lifted"] = lifted(name)
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
