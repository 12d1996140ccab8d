"""FedSubAvg (NeurIPS 2022, Algorithm 1): FedAvg in which every row moves at full speed.

x[m] += (N / n_m) · mean_k Δ_k[m];  a dense parameter is held by all, so its factor is 1.
With weights: Σ_i w_i / Σ_{i holds m} w_i in place of N / n_m, and the weighted mean.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import final

from fedrows.algorithm import Algorithm, Round, State
from fedrows.heat import Heat
from fedrows.options import option
from fedrows.params import Params, Total


@final
@dataclass(frozen=True)
class FedSubAvg(Algorithm):
    """The mean of the updates, each row times the inverse of its heat."""

    cap: float | None = option(None, "Largest correction that a row may get.", least=1)
    alpha: float = option(1.0, "The correction is (N / n_m)^alpha; 0 is FedAvg.", least=0, most=1)

    def step_(
        self, params: Params, state: State, total: Total, heat: Mapping[str, Heat], round_: Round
    ) -> None:
        factors = {
            table: heat[table].correction(rows.index, rows.values.dtype, self.cap, self.alpha)
            for table, rows in total.rows.items()
        }
        total.add_(params, factors)
