"""The mean over the sampled clients that hold a row: an ablation of FedSubAvg that needs no heat.

x[m] += Σ_k w_k Δ_k[m] / Σ_{k holds m} w_k, both sums over the cohort.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, final

from fedrows.algorithm import Algorithm, Round, State
from fedrows.rows.heat import Heat
from fedrows.rows.params import Params, Total
from fedrows.rows.row_means import holders_factor


@final
@dataclass(frozen=True)
class HoldersMean(Algorithm):
    """The mean over those of the cohort that hold the row."""

    title: ClassVar[str] = "holders' mean"
    colour: ClassVar[int | None] = 7

    def step_(
        self, params: Params, state: State, total: Total, heat: Mapping[str, Heat], round_: Round
    ) -> None:
        rows = total.rows.items()
        total.add_(params, {table: holders_factor(x.index, x.share) for table, x in rows})
