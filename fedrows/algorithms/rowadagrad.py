"""Adagrad at the server, on any mean of a row (Reddi et al., ICLR 2021, Algorithm 2: FedAdagrad).

    v[m] ← v[m] + Δ[m]²;   x[m] += η·Δ[m] / (√v[m] + τ),   v starts at τ²

Δ[m] is the row's mean that the option `mean` names (fedrows/rows/row_means.py). A row without an
update has Δ = 0 and stays where it is, so this is exact and costs O(touched). With mean=cohort it
is FedAdagrad as published. Dense tensors are treated alike, with the cohort's mean.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, final

import torch
from torch import Tensor

from fedrows.algorithm import Algorithm, Round, State
from fedrows.options import option
from fedrows.rows.heat import Heat
from fedrows.rows.params import Params, Total
from fedrows.rows.row_means import MEANS, correction_by_mean, needs_occurred_by_mean, row_mean


@final
@dataclass(frozen=True)
class RowAdagrad(Algorithm):
    """Adagrad at the server, row by row."""

    title: ClassVar[str] = "row-wise Adagrad"
    colour: ClassVar[int | None] = 10
    uses_heat: ClassVar[bool] = True

    mean: str = option("bounded", "Mean of a row that the server steps by.", choices=MEANS)
    server_lr: float = option(0.1, "Learning rate of the server.", above=0, search="1e-3..1:4")
    tau: float = option(
        1e-3,
        "Adaptivity: added to the root of the sum of squares.",
        above=0,
        search="1e-8..1e-2:4",
    )

    needs_occurred = property(needs_occurred_by_mean)
    correction = correction_by_mean

    def start(self, params: Params) -> State:
        return {"second": params.map(lambda x: torch.full_like(x, self.tau**2))}

    def step_(
        self, params: Params, state: State, total: Total, heat: Mapping[str, Heat], round_: Round
    ) -> None:
        second = state["second"]
        for table, rows in total.rows.items():
            ids, update = row_mean(self.mean, table, rows, heat)
            v = second.tables[table][ids] + update.square()
            second.tables[table][ids] = v
            params.tables[table][ids] += self._step(update, v)
        for name, update in total.dense.items():
            v = second.dense[name].add_(update.square())
            params.dense[name] += self._step(update, v)

    def _step(self, update: Tensor, v: Tensor) -> Tensor:
        return self.server_lr * update / (v.sqrt() + self.tau)
