"""FedSubAvg with a bounded correction: no row moves further than its holders moved it.

x[m] += Σ_k share_k · Δ_k[m] / max(p_m, s_m);  a dense parameter is held by all, so its factor is 1.

p_m is the share of all clients' weight that holds row m, which is what a cohort holds of it on
average. s_m is the share of the present cohort's weight that holds it. If fewer holders are present
than expected, this is FedSubAvg. If more are, it is the mean over the present holders, where
FedSubAvg would go beyond all of them. docs/bounded-correction.md derives its bias and variance.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, final

import torch
from torch import Tensor

from fedrows.algorithm import Algorithm, Round, State
from fedrows.rows.heat import Heat
from fedrows.rows.index import Index
from fedrows.rows.params import Params, Total
from fedrows.rows.row_means import bounded_factor, known_factors


@final
@dataclass(frozen=True)
class BoundedSubAvg(Algorithm):
    """The sum over a row's holders, divided by the larger of their expected and present weight."""

    title: ClassVar[str] = "bounded FedSubAvg"
    colour: ClassVar[int | None] = 9
    additive: ClassVar[bool] = True
    uses_heat: ClassVar[bool] = True
    reads_shares: ClassVar[bool] = True
    # A secure sum shows neither who holds a row nor how many do.
    nearest_summable: ClassVar[str] = "fedsubavg with cap=cohort"

    def correction(
        self,
        index: Mapping[str, Index],
        heat: Mapping[str, Heat],
        dtype: torch.dtype,
        share: Tensor | None = None,
    ) -> dict[str, Tensor] | None:
        return known_factors("bounded", index, heat, dtype, share)

    def step_(
        self, params: Params, state: State, total: Total, heat: Mapping[str, Heat], round_: Round
    ) -> None:
        rows = total.rows.items()
        total.add_(params, {t: bounded_factor(x.index, x.share, heat[t]) for t, x in rows})
