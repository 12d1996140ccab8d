"""X^t of Theorem 3: the model after every local iteration, as if all N clients had trained.

Between two rounds X^t is the algorithm's step over the updates of all N clients so far; at the
end of a round only the K that were drawn count. The drawn clients, their batches and the step are
those of the server's own rounds, so that every I-th X^t is the model of an ordinary run. Beside it
stand plain rounds of everybody, for exact runs.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedrows import catalogue
from fedrows.algorithm import Algorithm, Round
from fedrows.client import step_
from fedrows.data.batches import batches, local_data
from fedrows.data.federation import FederatedData
from fedrows.model import Model
from fedrows.optimizers.local_optimizer import local_optimizer
from fedrows.plan import Plan
from fedrows.rows.params import Params, Submodels, take, total
from fedrows.seeds import COHORT, choose
from fedrows.server import begin, rounds
from fedrows.simulator.simulated_fleet import SimulatedFleet

EXACT: dict[str, Any] = {
    "weighting": "uniform",
    "dtype": "float64",
    "device": "cpu",
}  # of every plan here


def after_rounds(data: FederatedData, model: Model, name: str, **plan: Any) -> np.ndarray:
    """The one column of the one table, before the first round and after every other.

    All clients take part in every round. (rounds + 1, rows)
    """
    algorithm, everyone = catalogue.algorithm(name)(), data.clients
    exact = Plan(**EXACT, clients_per_round=everyone, chunk=everyone, **plan)
    fleet, progress = SimulatedFleet(model, algorithm, data, exact), begin(model, algorithm, exact)
    (table,) = progress.params.tables
    points = [progress.params.tables[table][:, 0].numpy().copy()]
    for _ in rounds(fleet, exact, progress):
        points.append(progress.params.tables[table][:, 0].numpy().copy())
    return np.stack(points)


def iterations(
    data: FederatedData, model: Model, algorithm: Algorithm, plan: Plan
) -> Iterator[Params]:
    """X^1, X^2, … X^(rounds · I), and the model after the last round; each a copy.

    For algorithms that keep nothing, at the server or at a client, and clients of equal weight.
    """
    fleet = SimulatedFleet(model, algorithm, data, plan)
    params, heat = begin(model, algorithm, plan).params, fleet.heat()
    everyone = torch.arange(fleet.clients)
    index = {table: whole.select(everyone) for table, whole in fleet.data.index.items()}
    local = local_data(fleet.data, everyone)

    def moved(params: Params, update: Submodels, cohort: Tensor) -> Params:
        after, ones = params.copy(), torch.ones(len(cohort), dtype=torch.float64)
        facts = Round(number, plan.lr_at(number), fleet.clients, float(fleet.clients), cohort)
        algorithm.step_(after, {}, total(update, ones, ones), heat, facts)
        return after

    yield params.copy()
    for number in range(1, plan.rounds + 1):
        start = take(params, index, fleet.clients)
        local_models = start.map(torch.clone)
        stream, optimizer = batches(local, index, plan, number), local_optimizer(plan)
        for step, batch in enumerate(stream, start=1):
            more = (None, None, (), plan.clip, plan.lr_at(number), [batch])
            step_(model, algorithm, optimizer, local_models, start, *more)
            if step < plan.local_steps:
                yield moved(params, local_models.map(torch.sub, start), everyone)
        cohort = choose(plan.seed, COHORT, number, fleet.clients, plan.clients_per_round)
        params = moved(params, _of(local_models.map(torch.sub, start), cohort), cohort)
        yield params.copy()


def _of(update: Submodels, cohort: Tensor) -> Submodels:
    """The part of all clients' updates that a cohort made."""
    index = {table: sets.select(cohort) for table, sets in update.index.items()}
    rows = {}
    for table, sets in index.items():
        assert sets.source is not None, "a selected index knows where it comes from"
        rows[table] = update.rows[table][sets.source]
    return Submodels(index, rows, {name: x[cohort] for name, x in update.dense.items()})
