"""FedProx (Li et al., MLSys 2020): FedAvg whose clients are held near the model they were sent.

The local loss gets (μ/2)·|x − x_start|², so the local gradient gets μ·(x − x_start).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, final

import torch

from fedrows.algorithm import Algorithm, Round, State
from fedrows.options import option
from fedrows.rows.heat import Heat
from fedrows.rows.params import Params, Submodels, Total


@final
@dataclass(frozen=True)
class FedProx(Algorithm):
    """The mean of the updates, made with a proximal term."""

    colour: ClassVar[int | None] = 3
    additive: ClassVar[bool] = True
    summable: ClassVar[bool] = True

    mu: float = option(0.01, "Strength of the proximal term.", least=0)

    def adjust_(
        self,
        gradient: Submodels,
        local: Submodels,
        start: Submodels,
        sent: Submodels | None,
        kept: Submodels | None,
    ) -> None:
        # The difference first: μ·x − μ·x_start is not 0 where x = x_start, but a rounding error,
        # and Adam makes steps of any size out of that.
        gradient.add_(local.map(torch.sub, start), self.mu)

    def step_(
        self, params: Params, state: State, total: Total, heat: Mapping[str, Heat], round_: Round
    ) -> None:
        total.add_(params)
