"""FedAdam (Reddi et al., ICLR 2021, Algorithm 2): the server runs Adam on the mean update.

    m ← β1·m + (1−β1)·Δ;   v ← β2·v + (1−β2)·Δ²;   x += η·m / (√v + τ),   v starts at τ²

As published it moves every row in every round, through its momentum. The lazy form moves the
received rows only and lets the others rest: an approximation, and the one that costs O(touched).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, final

import torch
from torch import Tensor

from fedrows.algorithm import Algorithm, Round, State
from fedrows.options import option
from fedrows.rows.heat import Heat
from fedrows.rows.params import Params, Total


@final
@dataclass(frozen=True)
class FedAdam(Algorithm):
    """Adam at the server."""

    colour: ClassVar[int | None] = 5
    summable: ClassVar[bool] = True

    server_lr: float = option(1.0, "Learning rate of the server.", above=0, search="1e-3..1:4")
    beta1: float = option(0.9, "Decay of the first moment.", least=0, most=1)
    beta2: float = option(0.99, "Decay of the second moment.", least=0, most=1)
    tau: float = option(
        1e-3,
        "Adaptivity: added to the root of the second moment.",
        above=0,
        search="1e-8..1e-2:4",
    )
    lazy: bool = option(False, "Move received rows only: an approximation.")

    sweeps = property(lambda self: not self.lazy)

    def start(self, params: Params) -> State:
        return {
            "first": params.map(torch.zeros_like),
            "second": params.map(lambda x: torch.full_like(x, self.tau**2)),
        }

    def step_(
        self, params: Params, state: State, total: Total, heat: Mapping[str, Heat], round_: Round
    ) -> None:
        first, second = state["first"], state["second"]
        for table, rows in total.rows.items():
            merged, x = rows.merged, params.tables[table]
            m, v = first.tables[table], second.tables[table]
            if self.lazy:
                ids = merged.ids
                m_new, v_new = self._moments(m[ids], v[ids], merged.values)
                m[ids], v[ids] = m_new, v_new
                x[ids] += self._step(m_new, v_new)
            else:
                update = torch.zeros_like(x).index_copy_(0, merged.ids, merged.values)
                m[:], v[:] = self._moments(m, v, update)
                x += self._step(m, v)
        for name, update in total.dense.items():
            m, v = first.dense[name], second.dense[name]
            m_new, v_new = self._moments(m, v, update)
            m.copy_(m_new)
            v.copy_(v_new)
            params.dense[name] += self._step(m_new, v_new)

    def _moments(self, m: Tensor, v: Tensor, update: Tensor) -> tuple[Tensor, Tensor]:
        b1, b2 = self.beta1, self.beta2
        return b1 * m + (1 - b1) * update, b2 * v + (1 - b2) * update.square()

    def _step(self, m: Tensor, v: Tensor) -> Tensor:
        return self.server_lr * m / (v.sqrt() + self.tau)
