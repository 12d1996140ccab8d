"""Adam at the server, on any mean of a row, with the bias correction of each row's own steps.

    m ← β1·m + (1−β1)·Δ;   v ← β2·v + (1−β2)·Δ²;   t ← t + 1
    x += η · m/(1−β1ᵗ) / (√(v/(1−β2ᵗ)) + τ)

Δ[m] is the row's mean that the option `mean` names (fedrows/rows/row_means.py). t counts the rounds
in which the row was received. A row that nobody holds rests, with its moments, so a round costs
O(touched). So a row that is seen for the first time in round 500 takes a whole first step. Dense
tensors are treated alike, with the cohort's mean; their t is the number of rounds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, final

import torch
from torch import Tensor

from fedrows.algorithm import Algorithm, Round, State, number_per_row, single_number
from fedrows.options import option
from fedrows.rows.heat import Heat
from fedrows.rows.params import Params, Total
from fedrows.rows.row_means import MEANS, correction_by_mean, needs_occurred_by_mean, row_mean


@final
@dataclass(frozen=True)
class RowAdam(Algorithm):
    """Adam at the server, row by row."""

    title: ClassVar[str] = "row-wise Adam"
    colour: ClassVar[int | None] = 11
    uses_heat: ClassVar[bool] = True

    mean: str = option("bounded", "Mean of a row that the server steps by.", choices=MEANS)
    server_lr: float = option(0.01, "Learning rate of the server.", above=0, search="1e-3..1:4")
    beta1: float = option(0.9, "Decay of the first moment.", least=0, most=0.9999)
    beta2: float = option(0.99, "Decay of the second moment.", least=0, most=0.9999)
    tau: float = option(
        1e-3,
        "Adaptivity: added to the root of the second moment.",
        above=0,
        search="1e-8..1e-2:4",
    )

    needs_occurred = property(needs_occurred_by_mean)
    correction = correction_by_mean

    def start(self, params: Params) -> State:
        return {
            "first": params.map(torch.zeros_like),
            "second": params.map(torch.zeros_like),
            "steps": Params(number_per_row(params), {"rounds": single_number(params)}),
        }

    def step_(
        self, params: Params, state: State, total: Total, heat: Mapping[str, Heat], round_: Round
    ) -> None:
        first, second, steps = state["first"], state["second"], state["steps"]
        for table, rows in total.rows.items():
            ids, update = row_mean(self.mean, table, rows, heat)
            m, v = self._moments(first.tables[table][ids], second.tables[table][ids], update)
            count = steps.tables[table][ids] + 1  # (U,)
            steps.tables[table][ids] = count
            first.tables[table][ids], second.tables[table][ids] = m, v
            params.tables[table][ids] += self._step(m, v, count[:, None])
        rounds = steps.dense["rounds"].add_(1)
        for name, update in total.dense.items():
            m, v = self._moments(first.dense[name], second.dense[name], update)
            first.dense[name].copy_(m)
            second.dense[name].copy_(v)
            params.dense[name] += self._step(m, v, rounds)

    def _moments(self, m: Tensor, v: Tensor, update: Tensor) -> tuple[Tensor, Tensor]:
        b1, b2 = self.beta1, self.beta2
        return b1 * m + (1 - b1) * update, b2 * v + (1 - b2) * update.square()

    def _step(self, m: Tensor, v: Tensor, count: Tensor) -> Tensor:
        mean = m / (1 - self.beta1**count).to(m.dtype)
        root = (v / (1 - self.beta2**count).to(v.dtype)).sqrt()
        return self.server_lr * mean / (root + self.tau)
