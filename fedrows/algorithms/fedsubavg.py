"""FedSubAvg (NeurIPS 2022, Algorithm 1): FedAvg in which every row moves at full speed.

x[m] += (N / n_m) · mean_k Δ_k[m];  a dense parameter is held by all, so its factor is 1.
With weights: Σ_i w_i / Σ_{i holds m} w_i in place of N / n_m, and the weighted mean.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, final

import torch
from torch import Tensor

from fedrows.algorithm import Algorithm, Round, State
from fedrows.options import option
from fedrows.rows.heat import Heat
from fedrows.rows.index import Index
from fedrows.rows.params import Params, Total


@final
@dataclass(frozen=True)
class FedSubAvg(Algorithm):
    """The mean of the updates, each row times the inverse of its heat."""

    colour: ClassVar[int | None] = 0
    additive: ClassVar[bool] = True
    uses_heat: ClassVar[bool] = True
    deployed: ClassVar[Mapping[str, Any]] = {"cap": "cohort"}
    summable: ClassVar[bool] = True

    # A holder's share of the mean is 1/K. With a cap of K, a row moves no further than its holders
    # together moved it, whatever heat was claimed. `boundedsubavg` bounds it by any one of them.
    cap: float | str | None = option(
        None,
        "Largest correction that a row may get; cohort: clients-per-round.",
        least=1,
        words=("cohort",),
    )
    alpha: float = option(1.0, "The correction is (N / n_m)^alpha; 0 is FedAvg.", least=0, most=1)

    def for_cohorts(self, clients: int) -> FedSubAvg:
        return replace(self, cap=float(clients)) if self.cap == "cohort" else self

    def correction(
        self,
        index: Mapping[str, Index],
        heat: Mapping[str, Heat],
        dtype: torch.dtype,
        share: Tensor | None = None,
    ) -> dict[str, Tensor]:
        cap = self.cap
        assert not isinstance(cap, str), "for_cohorts has made it a number"
        return {t: heat[t].correction(x, dtype, cap, self.alpha) for t, x in index.items()}

    def step_(
        self, params: Params, state: State, total: Total, heat: Mapping[str, Heat], round_: Round
    ) -> None:
        index = {table: rows.index for table, rows in total.rows.items()}
        dtype = next(iter(total.rows.values())).values.dtype
        total.add_(params, self.correction(index, heat, dtype))
