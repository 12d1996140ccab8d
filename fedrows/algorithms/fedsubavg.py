"""FedSubAvg (NeurIPS 2022, Algorithm 1): FedAvg in which every row moves at full speed.

x[m] += (N / n_m) · mean_k Δ_k[m];  a dense parameter is held by all, so its factor is 1.
With weights: Σ_i w_i / Σ_{i holds m} w_i in place of N / n_m, and the weighted mean.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
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
    deployed: ClassVar[Mapping[str, Any]] = {"cap": 100.0}  # heat is what clients claim there
    summable: ClassVar[bool] = True

    cap: float | None = option(None, "Largest correction that a row may get.", least=1)
    alpha: float = option(1.0, "The correction is (N / n_m)^alpha; 0 is FedAvg.", least=0, most=1)

    def correction(
        self, index: Mapping[str, Index], heat: Mapping[str, Heat], dtype: torch.dtype
    ) -> dict[str, Tensor]:
        return {t: heat[t].correction(x, dtype, self.cap, self.alpha) for t, x in index.items()}

    def step_(
        self, params: Params, state: State, total: Total, heat: Mapping[str, Heat], round_: Round
    ) -> None:
        index = {table: rows.index for table, rows in total.rows.items()}
        dtype = next(iter(total.rows.values())).values.dtype
        total.add_(params, self.correction(index, heat, dtype))
