"""The mean over the sampled clients that stepped on a row: an ablation that needs no heat.

x[m] += Σ_k w_k Δ_k[m] / Σ_{k stepped on m} w_k, both sums over the cohort. A client stepped on a
row if the row occurred in one of its batches, whether or not its numbers moved. A server cannot see
that, so clients send one bit for each of their rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, final

from fedrows.algorithm import Algorithm, Round, State
from fedrows.rows.heat import Heat
from fedrows.rows.params import Params, Total
from fedrows.rows.row_means import stepped_factor


@final
@dataclass(frozen=True)
class SteppedMean(Algorithm):
    """The mean over those of the cohort in whose batches the row occurred."""

    title: ClassVar[str] = "stepped-on mean"
    colour: ClassVar[int | None] = 8

    @property
    def needs_occurred(self) -> bool:
        return True

    def step_(
        self, params: Params, state: State, total: Total, heat: Mapping[str, Heat], round_: Round
    ) -> None:
        total.add_(params, {table: stepped_factor(rows) for table, rows in total.rows.items()})
