"""FedAvgM (Hsu, Qi and Brown, 2019): FedAvg with momentum at the server.

    v ← β·v + mean_k Δ_k;    x += η·v

Momentum moves every row in every round, so a round costs the whole table.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, final

import torch

from fedrows.algorithm import Algorithm, Round, State
from fedrows.options import option
from fedrows.rows.heat import Heat
from fedrows.rows.params import Params, Total


@final
@dataclass(frozen=True)
class FedAvgM(Algorithm):
    """The mean of the updates, with momentum."""

    summable: ClassVar[bool] = True

    momentum: float = option(0.9, "Share of the last step that goes on.", least=0, most=1)
    server_lr: float = option(1.0, "Learning rate of the server.", above=0)

    @property
    def sweeps(self) -> bool:
        return True

    def start(self, params: Params) -> State:
        return {"velocity": params.map(torch.zeros_like)}

    def step_(
        self, params: Params, state: State, total: Total, heat: Mapping[str, Heat], round_: Round
    ) -> None:
        velocity = state["velocity"]
        for table, rows in total.rows.items():
            v, merged = velocity.tables[table], rows.merged
            v *= self.momentum
            v[merged.ids] += merged.values
            params.tables[table] += self.server_lr * v
        for name, update in total.dense.items():
            v = velocity.dense[name]
            v *= self.momentum
            v += update
            params.dense[name] += self.server_lr * v
