"""The mean over the sampled clients that stepped on a row: an ablation that needs no heat.

x[m] += Σ_k w_k Δ_k[m] / Σ_{k stepped on m} w_k, both sums over the cohort. A client stepped on a
row if its update moved any number of it, which is what a server can see.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, final

import torch

from fedrows.algorithm import Algorithm, Round, State
from fedrows.rows.heat import Heat
from fedrows.rows.params import Params, Total


@final
@dataclass(frozen=True)
class SteppedMean(Algorithm):
    """The mean over those of the cohort that moved the row."""

    title: ClassVar[str] = "stepped-on mean"
    colour: ClassVar[int | None] = 8

    def step_(
        self, params: Params, state: State, total: Total, heat: Mapping[str, Heat], round_: Round
    ) -> None:
        factors = {}
        for table, rows in total.rows.items():
            merged = rows.merged
            stepped = merged.sum(rows.share * (rows.values != 0).any(1))
            factors[table] = torch.where(stepped > 0, 1 / stepped, 1.0)[merged.inverse]
        total.add_(params, factors)
