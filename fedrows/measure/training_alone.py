"""Clients that train for themselves: federated training with sharing switched off.

Every client has a copy of the whole model, starts where the federation starts, and goes through the
same local steps; nothing is ever averaged. C clients train side by side, as a cohort does. A client
has copies of all rows, because it draws negatives from all of them: keep C small.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from fedrows import catalogue
from fedrows.algorithm import Round
from fedrows.data.examples import Examples
from fedrows.data.federation import FederatedData
from fedrows.data.fresh_negatives import FreshNegatives
from fedrows.measure.ranked_items import RankScorer
from fedrows.model import Model
from fedrows.plan import Plan
from fedrows.rows.index import Index
from fedrows.rows.params import Params, Submodels
from fedrows.simulator.simulated_fleet import SimulatedFleet


class DrawsNegatives(Protocol):
    """A way to draw the pools of a cohort."""

    def draw(self, held: Index, cohort: Tensor, round_: int) -> Index:
        """The items in each client's pool of a round, sorted."""


class GivenNegatives(FreshNegatives):
    """Fresh negatives that are drawn in a given way; it must draw as many as the plan says."""

    def __init__(self, data: FederatedData, plan: Plan, way: DrawsNegatives) -> None:
        super().__init__(data, plan)
        self.way = way

    def draw(self, held: Index, cohort: Tensor, round_: int) -> Index:
        return self.way.draw(held, cohort, round_)


@dataclass(frozen=True, eq=False)
class AloneModels:
    """The models of C clients that have trained alone."""

    model: Model
    data: FederatedData
    tables: dict[str, Tensor]  # (C · rows, width) of a shared table, client after client
    dense: dict[str, Tensor]  # (C, …)

    def of(self, client: int) -> Params:
        """One client's whole model, as views."""
        tables = {}
        for table, rows in self.tables.items():
            size = self.data.tables[table]
            shared = table not in self.data.local
            tables[table] = rows[client * size : (client + 1) * size] if shared else rows
        return Params(tables, {name: x[client] for name, x in self.dense.items()})

    def scorer(self, examples: Examples) -> RankScorer:
        """The scores that each client's own model gives its examples' candidates."""
        assert self.data.target is not None
        field, owner = self.data.target[0], examples.owner.tolist()

        def score(some: Tensor, candidates: Tensor) -> Tensor:
            rows = []
            for position, number in enumerate(some.tolist()):
                only = slice(position, position + 1)
                fields = {**examples.fields(some[only]), field: candidates[only]}
                rows.append(self.model.scores(self.of(owner[number]), fields))
            return torch.cat(rows)

        return score


def train_alone(
    model: Model,
    data: FederatedData,
    plan: Plan,
    rounds: int,
    negatives: DrawsNegatives | None = None,
) -> AloneModels:
    """The models of all clients of some data after so many rounds, in which all train alone.

    negatives: another way to draw, for data that are to be ranked.
    """
    plain = catalogue.algorithm(catalogue.BASELINE)()
    fleet = SimulatedFleet(model, plain, data, replace(plan, chunk=None))
    if negatives is not None:
        fleet.negatives = GivenNegatives(data, plan, negatives)
    device, dtype, count = plan.torch_device, plan.torch_dtype, data.clients
    begin = model.start().map(lambda x: x.to(device, dtype))
    tables = {
        table: rows.clone() if table in data.local else rows.repeat(count, 1)
        for table, rows in begin.tables.items()
    }
    dense = {name: x.expand(count, *x.shape).clone() for name, x in begin.dense.items()}
    cohort = torch.arange(count)
    for number in range(1, rounds + 1):
        facts = Round(number, plan.lr_at(number), count, float(count), cohort)
        opened = fleet.open_round(facts)
        addresses = {
            table: index.ids
            if table in data.local
            else index.ids + index.owner * data.tables[table]
            for table, index in opened.index.items()
        }
        rows = {
            table: tables[table].index_select(0, position) for table, position in addresses.items()
        }
        start = Submodels(opened.index, rows, {name: x.clone() for name, x in dense.items()})
        update = opened.train(start, None).update
        for table, position in addresses.items():
            tables[table].index_add_(0, position, update.rows[table])
        for name, x in dense.items():
            x.add_(update.dense[name])
    return AloneModels(model, data, tables, dense)
