"""Every fast path against the plain way: the same federation, the same rounds, the same numbers.

    python tests/fast_paths.py      # all that this machine can check, a line each; needs no pytest

A check runs a few rounds twice, once on one fast path and once on none. Clients hold very
different numbers of rows, so that cohorts outgrow what was recorded.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).parents[1]))

from fedrows import Plan, Simulation, catalogue
from fedrows.data.federation import FederatedData
from fedrows.lifting.lifted import Lifted
from fedrows.model import Model
from fedrows.models import din, lstm
from fedrows.models.logistic import Logistic
from fedrows.simulator.fast_paths import PLAIN, FastPaths, fastest

CLIENTS, ROUNDS = 12, 4
APART = {"float32": 1e-6, "float64": 1e-12}  # ‖difference‖ / ‖model‖
GPU_PATHS = {
    "CUDA graphs": FastPaths(cuda_graphs=True),
    "row-select kernel": FastPaths(select_kernel=True),
    "recorded rounds": FastPaths(cuda_graphs=True, select_kernel=True, recorded_rounds=True),
}
CPU_PATHS = {
    "traces": FastPaths(traces=True),
    "measured chunks": FastPaths(measured_chunks=True),
}
ALGORITHMS = [name for name in catalogue.names("algorithm") if name != "centralsgd"]
ADDITIVE = [name for name in ALGORITHMS if catalogue.algorithm(name).additive]


class TwoTower(nn.Module):
    """What a user might write: two embeddings, dropout, and a layer over both."""

    def __init__(self) -> None:
        super().__init__()
        self.user, self.item = nn.Embedding(CLIENTS, 4), nn.Embedding(4_000, 4)
        self.deep = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 1))

    def forward(self, user: Tensor, item: Tensor) -> Tensor:
        return self.deep(torch.cat([self.user(user), self.item(item)], -1))[:, 0]


def federation(kind: str) -> FederatedData:
    """Clients of whom the last has hundreds of times as many examples as the first."""
    rng = np.random.default_rng(0)
    sizes = 2 + 3 * np.arange(CLIENTS) ** 2
    owner = np.repeat(np.arange(CLIENTS), sizes)
    count = len(owner)
    ids: dict[str, Any] = {"user": owner, "item": rng.integers(1, 4_000, count)}
    fields = {"user": "user", "item": "item"}
    if kind == "LSTM":
        ids, fields = {"text": rng.integers(0, 4_000, (count, 6))}, {"text": "item"}
    if kind == "DIN":
        ids["history"], fields["history"] = rng.integers(0, 4_000, (count, 5)), "item"
    if kind == "LR":
        ids, fields = {"item": ids["item"]}, {"item": "item"}
    tables = {"user": CLIENTS, "item": 4_000}
    return FederatedData.build(
        client=owner,
        ids=ids,
        fields=fields,
        tables={table: tables[table] for table in dict.fromkeys(fields.values())},
        padded=["item"] if kind in ("LSTM", "DIN") else [],
        label=rng.integers(0, 2, count),
        test=np.zeros(count, dtype=bool),
    )


def model_of(kind: str, data: FederatedData) -> Model:
    """A model of a kind, the same in every call."""
    torch.manual_seed(0)
    if kind == "LR":
        return Logistic(data)
    return {"DIN": din.build, "LSTM": lstm.build}.get(kind, lambda _: Lifted(TwoTower(), data))(
        data
    )


@dataclass(frozen=True)
class Check:
    """One fast path, one model, one algorithm."""

    path: str
    model: str
    algorithm: str
    device: str
    dtype: str = "float64"
    plan: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        more = "".join(f", {name} {value}" for name, value in self.plan.items())
        return f"{self.path}, {self.model}, {self.algorithm}, {self.dtype}{more}"

    def run(self) -> float:
        """How far the two ways are apart; fails if that is too far, or the path was not taken."""
        fast, notes = self._after({**CPU_PATHS, **GPU_PATHS}[self.path])
        plain, _ = self._after(PLAIN)
        apart = float((fast - plain).norm() / plain.norm())
        assert not [note for note in notes if "slower" in note], notes
        assert apart <= APART[self.dtype], f"{self}: {apart:.1e} apart"
        return apart

    def _after(self, paths: FastPaths) -> tuple[Tensor, list[str]]:
        """All numbers of a run that its next round depends on, and what it said."""
        settings = {"rounds": ROUNDS, "clients_per_round": 5, "local_steps": 3, "batch_size": 4}
        plan = Plan(**{**settings, "device": self.device, "dtype": self.dtype, **self.plan})
        data, algorithm = federation(self.model), catalogue.algorithm(self.algorithm)()
        model = model_of(self.model, data)
        if paths.recorded_rounds:
            assert fastest(model, algorithm, data, plan) == paths, "the path that a run takes"
        simulation = Simulation(data, model, algorithm, plan, paths=paths)
        for _ in simulation:
            pass
        numbers = [x.double().flatten().cpu() for x in simulation.tensors().values()]
        return torch.cat(numbers), simulation.simulated.notes


def checks(device: str) -> Iterator[Check]:
    """All that can be checked on a device."""
    models = ("LR", "DIN", "LSTM", "own module")
    for model in models:
        if device == "cpu":
            for path, algorithm in (("traces", "fedsubavg"), ("traces", "scaffold")):
                yield Check(path, model, algorithm, device)
            yield Check("measured chunks", model, "fedsubavg", device)
            yield Check("traces", model, "fedprox", device, plan={"optimizer": "adam"})
            continue
        for algorithm in ALGORITHMS:
            yield Check("CUDA graphs", model, algorithm, device)
        for algorithm in ADDITIVE:
            yield Check("recorded rounds", model, algorithm, device)
        yield Check("row-select kernel", model, "fedsubavg", device)
        for path in GPU_PATHS:
            yield Check(path, model, "fedsubavg", device, "float32")
    if device == "cuda":
        hard = {"clip": 0.5, "lr_decay": 0.9}
        for model in ("LR", "own module"):
            yield Check("recorded rounds", model, "fedsubavg", device, plan=hard)
            for algorithm in ("fedsubavg", "scaffold"):
                yield Check("CUDA graphs", model, algorithm, device, plan=hard)
                epochs = {**hard, "batches": "epoch"}
                yield Check("CUDA graphs", model, algorithm, device, plan=epochs)
            yield Check("CUDA graphs", model, "fedsubavg", device, plan={"chunk": 2})
            for optimizer in ("momentum", "adagrad", "adam", "adamw"):
                own = {"optimizer": optimizer, "weight_decay": 0.1, "lr_decay": 0.9}
                yield Check("recorded rounds", model, "fedsubavg", device, plan=own)
                yield Check("CUDA graphs", model, "fedsubavg", device, plan=own)
                epochs = {**own, "batches": "epoch"}
                yield Check("CUDA graphs", model, "fedsubavg", device, plan=epochs)
            warm = {"lr_schedule": "cosine", "warmup": 1}
            yield Check("recorded rounds", model, "fedsubavg", device, plan=warm)
            yield Check("CUDA graphs", model, "scaffold", device, plan=warm)
            decayed = {"weight_decay": 0.1}
            yield Check("recorded rounds", model, "fedprox", device, plan=decayed)
        yield Check("CUDA graphs", "LR", "centralsgd", device)


def main() -> int:
    """Runs every check; 1 if one fails."""
    failed = 0
    for device in ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",):
        for check in checks(device):
            since = time.perf_counter()
            try:
                said = f"{check.run():.1e} apart"
            except Exception as error:
                failed += 1
                said = f"FAILED: {type(error).__name__}: {error}"
            print(f"{check}: {said} ({time.perf_counter() - since:.1f} s)", flush=True)
    print(f"{failed} failed")
    return min(failed, 1)


if __name__ == "__main__":
    sys.exit(main())
