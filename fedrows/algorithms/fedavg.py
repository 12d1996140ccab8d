"""FedAvg (McMahan et al., AISTATS 2017): the model moves by the mean of the clients' updates.

x[m] += mean_k Δ_k[m];  a client without row m counts as zero, as it would on the full model.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, final

from fedrows.algorithm import Algorithm, Round, State
from fedrows.rows.heat import Heat
from fedrows.rows.params import Params, Total


@final
@dataclass(frozen=True)
class FedAvg(Algorithm):
    """The mean of the updates."""

    colour: ClassVar[int | None] = 1
    additive: ClassVar[bool] = True
    summable: ClassVar[bool] = True

    def step_(
        self, params: Params, state: State, total: Total, heat: Mapping[str, Heat], round_: Round
    ) -> None:
        total.add_(params)
