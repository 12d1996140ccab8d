"""A small federation to deploy, its simulated twin, and how far two models are apart."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from fedrows.data.federation import FederatedData
from fedrows.flower.server.fleet import FlowerFleet
from fedrows.flower.wire.contract import DeployedTask
from fedrows.models.logistic import Logistic
from fedrows.rows.params import Params
from fedrows.server import Progress, begin, rounds
from fedrows.simulation import Simulation

CONFIG: dict[str, Any] = {
    "rounds": 4, "clients-per-round": 6, "lr": 0.3, "seed": 3, "local-steps": 3, "dtype": "float64"
}  # fmt: skip


def examples(
    clients: int = 12, rows: int = 30, seed: int = 0, each: int = 8, **more: Any
) -> FederatedData:
    draw = np.random.default_rng(seed)
    client = np.repeat(np.arange(clients), each)
    ids = draw.zipf(1.3, len(client)).clip(max=rows - 1)
    return FederatedData.build(
        client=client,
        ids={"item": ids},
        label=(draw.random(len(client)) < 0.5),
        test=draw.random(len(client)) < 0.2,
        tables={"item": rows},
        **more,
    )


def task_of(data: FederatedData, model: Any = lambda d, s: Logistic(d)) -> DeployedTask:
    return DeployedTask("test", lambda config: data, model, lambda config: data)


def shards_of(data: FederatedData, nodes: int = 3) -> dict[str, FederatedData]:
    return {f"n{i}": data.select(torch.arange(i, data.clients, nodes)) for i in range(nodes)}


def run(fleet: FlowerFleet, data: FederatedData) -> Progress:
    its = fleet.contract
    progress = begin(its.model(data), its.algorithm, its.plan, data.local)
    for _ in rounds(fleet, its.plan, progress):
        pass
    return progress


def simulated(fleet: FlowerFleet, data: FederatedData) -> Params:
    its = fleet.contract
    simulation = Simulation(data, its.model(data), its.algorithm, its.plan)
    for _ in simulation:
        pass
    return simulation.progress.whole()


def difference(one: Params, other: Params) -> float:
    pairs = [(one.tables[t], other.tables[t]) for t in one.tables]
    pairs += [(one.dense[d], other.dense[d]) for d in one.dense]
    return max(float((a - b).abs().max()) for a, b in pairs)
