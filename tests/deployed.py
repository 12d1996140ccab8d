"""A small federation to deploy, its simulated twins, and how far two models are apart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedrows.algorithm import Algorithm, Round
from fedrows.client import Upload
from fedrows.data.federation import FederatedData
from fedrows.flower.server.fleet import FlowerFleet
from fedrows.flower.wire.contract import DeployedTask
from fedrows.model import Model
from fedrows.models.logistic import Logistic
from fedrows.plan import Plan
from fedrows.rows.index import Index
from fedrows.rows.params import Params, Submodels
from fedrows.server import ATTEMPT, Progress, begin, rounds
from fedrows.simulation import Simulation
from fedrows.simulator.simulated_fleet import SimulatedFleet

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


def with_local_users(seed: int = 1, **more: Any) -> FederatedData:
    """8 clients with 6 examples each of 10 items, and a row for each user that stays there."""
    draw = np.random.default_rng(seed)
    client = np.repeat(np.arange(8), 6)
    return FederatedData.build(
        client=client,
        ids={"user": client, "item": draw.integers(0, 10, len(client))},
        label=draw.random(len(client)) < 0.5,
        test=np.zeros(len(client), dtype=bool),
        tables={"user": 8, "item": 10},
        local=["user"],
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
    """The same run in a clear simulation; secure heat counts clients, and so does the twin's."""
    its = fleet.contract
    simulation = Simulation(data, its.model(data), its.algorithm, its.plan)
    if its.secret:
        simulation.fleet.heat = lambda: data.heat("uniform")  # type: ignore[method-assign]
    for _ in simulation:
        pass
    return simulation.progress.whole()


def difference(one: Params, other: Params) -> float:
    pairs = [(one.tables[t], other.tables[t]) for t in one.tables]
    pairs += [(one.dense[d], other.dense[d]) for d in one.dense]
    return max(float((a - b).abs().max()) for a, b in pairs)


def with_drop_outs(
    model: Model,
    algorithm: Algorithm,
    data: FederatedData,
    plan: Plan,
    lines: Sequence[Mapping[str, Any]],
) -> Progress:
    """Where a simulated run ends whose clients drop out as in a deployed one.

    lines: the deployed run's rounds.jsonl, its clients named by their numbers.
    """
    fleet = Leaving(model, algorithm, data, plan)
    fleet.lines = {line["round"]: line for line in lines}
    progress = begin(model, algorithm, plan, data.local)
    for _ in rounds(fleet, plan, progress):
        pass
    return progress


class Leaving(SimulatedFleet):
    """A simulated fleet in which some clients train in vain: nobody hears of it, not even they."""

    lines: dict[int, Mapping[str, Any]]  # by round

    def draw(self, counter: int, count: int) -> Tensor:
        """The cohort of the last try, as the deployed run has drawn it."""
        return super().draw(counter + (self.lines[counter]["tries"] - 1) * ATTEMPT, count)

    def trained(
        self, cohort: Tensor, start: Submodels, sent: Submodels | None, round_: Round
    ) -> Upload:
        gone = {x for who in self.lines[round_.number]["dropped"].values() for x in who}
        stay = [i for i, x in enumerate(cohort.tolist()) if x not in gone]
        some = cohort[torch.tensor(stay, dtype=torch.int64)]
        index = self.open_round(replace(round_, cohort=some)).index
        parts = [None if x is None else _of(x, stay, index) for x in (start, sent)]
        assert parts[0] is not None
        return super().trained(some, parts[0], parts[1], round_)


def _of(whole: Submodels, places: list[int], index: Mapping[str, Index]) -> Submodels:
    own = [whole.slice(i, i + 1) for i in places]
    return Submodels(
        index,
        {table: torch.cat([x.rows[table] for x in own]) for table in whole.rows},
        {name: torch.cat([x.dense[name] for x in own]) for name in whole.dense},
    )
