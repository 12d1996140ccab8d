"""The GPU against the CPU: the same rounds, and how fast each one is.

    FEDROWS_DATA=… python benchmarks/gpu.py

Runs every algorithm for some rounds on both, in float64, and prints the largest difference; then
FedSubAvg's rounds/s in float32. Needs torch and numpy only.
"""

from __future__ import annotations

import sys
import time
from dataclasses import replace
from pathlib import Path

import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).parents[1]))

from fedrows import catalogue
from fedrows.data import FederatedData
from fedrows.lifted import Lifted
from fedrows.model import Model
from fedrows.models.logistic import Logistic
from fedrows.plan import Plan
from fedrows.simulation import Simulation


class Factors(nn.Module):
    """A small deep model, to send the lifted path through as well."""

    def __init__(self, rows: int) -> None:
        super().__init__()
        self.weight = nn.Embedding(rows, 8)
        self.mlp = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        return self.mlp(self.weight(features).sum(1))[:, 0]


def difference(data: FederatedData, model: Model, name: str, plan: Plan) -> float:
    """The largest difference between the two devices' models after the plan's rounds."""
    ends = []
    for device in ("cpu", "cuda"):
        algorithm = catalogue.algorithm(name)()
        simulation = Simulation(data, model, algorithm, replace(plan, device=device))
        for _ in simulation:
            pass
        params = simulation.progress.whole()
        ends.append([x.cpu() for x in (*params.tables.values(), *params.dense.values())])
    return max(float((a - b).abs().max()) for a, b in zip(*ends, strict=True))


def speed(data: FederatedData, model: Model, plan: Plan) -> float:
    """FedSubAvg's rounds/s, the first rounds left out."""
    simulation = Simulation(data, model, catalogue.algorithm("fedsubavg")(), plan)
    for progress in simulation:
        if progress.round == 20:
            torch.cuda.synchronize()
            start = time.perf_counter()
    torch.cuda.synchronize()
    return (plan.rounds - 20) / (time.perf_counter() - start)


def main() -> None:
    """Prints the differences and the speeds."""
    torch.backends.cuda.matmul.allow_tf32 = False
    task = catalogue.task("movielens")
    data = task.load(task.options())
    torch.manual_seed(0)
    deep = Lifted(Factors(data.tables["weight"]), data)
    print(torch.__version__, torch.cuda.get_device_name())
    for batches in ("draw", "epoch"):
        plan = Plan(rounds=20, clients_per_round=50, batches=batches, clip=5.0, dtype="float64")
        for name in catalogue.names("algorithm"):
            print(
                f"{batches:6} {name:15} logistic {difference(data, Logistic(data), name, plan):.1e}"
            )
    plan = Plan(rounds=10, clients_per_round=50, dtype="float64")
    for name in catalogue.names("algorithm"):
        print(f"draw   {name:15} lifted   {difference(data, deep, name, plan):.1e}")
    plan = Plan(rounds=320, device="cuda")
    print(f"logistic, cuda: {speed(data, Logistic(data), plan):.0f} rounds/s")
    print(
        f"logistic, cpu:  {speed(data, Logistic(data), replace(plan, device='cpu')):.0f} rounds/s"
    )
    print(f"lifted, cuda:   {speed(data, deep, plan):.0f} rounds/s")
    print(f"lifted, cpu:    {speed(data, deep, replace(plan, device='cpu')):.0f} rounds/s")


if __name__ == "__main__":
    main()
