"""A row's step that decays with how often it was stepped on, on any mean of a row.

    t[m] ← t[m] + 1;   x[m] += η · Δ[m] / t[m]^power

Δ[m] is the row's mean that the option `mean` names (fedrows/rows/row_means.py). t counts the rounds
in which the row was received, so a cold row still takes long steps when a hot one has settled. A
decay by the number of the round would stop both. Costs O(touched). Dense tensors move by η times
the cohort's mean, without decay: the plan's lr-decay is for them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, final

from fedrows.algorithm import Algorithm, Round, State, number_per_row
from fedrows.options import option
from fedrows.rows.heat import Heat
from fedrows.rows.params import Params, Total
from fedrows.rows.row_means import MEANS, correction_by_mean, needs_occurred_by_mean, row_mean


@final
@dataclass(frozen=True)
class RowDecay(Algorithm):
    """A row's mean, divided by a power of how often the row was received."""

    title: ClassVar[str] = "decaying row step"
    uses_heat: ClassVar[bool] = True

    mean: str = option("bounded", "Mean of a row that the server steps by.", choices=MEANS)
    server_lr: float = option(1.0, "Learning rate of the server.", above=0, search="0.1..10:3")
    power: float = option(0.5, "Power of the count that divides a step; 0: none.", least=0, most=1)

    needs_occurred = property(needs_occurred_by_mean)
    correction = correction_by_mean

    def start(self, params: Params) -> State:
        return {"steps": Params(number_per_row(params), {})}

    def step_(
        self, params: Params, state: State, total: Total, heat: Mapping[str, Heat], round_: Round
    ) -> None:
        for table, rows in total.rows.items():
            ids, update = row_mean(self.mean, table, rows, heat)
            steps = state["steps"].tables[table]
            count = steps[ids] + 1  # (U,)
            steps[ids] = count
            rate = (self.server_lr / count**self.power).to(update.dtype)
            params.tables[table][ids] += rate[:, None] * update
        for name, update in total.dense.items():
            params.dense[name] += self.server_lr * update
