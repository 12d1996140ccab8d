"""Scaffold (Karimireddy et al., ICML 2020, option II), exact although clients hold submodels.

    client   gradient += c − c_i;    c_i ← c_i − c − Δ_i / (steps_i · lr)
    server   x += mean_k Δ_k;        c += (Σ_k w_k · Δc_k) / (Σ_i w_i over all clients)

On the full model a sampled client that does not hold row m would have drifted by exactly
−lr·steps·c[m], and its c_i[m] stays 0. So the server adds that drift itself: nothing is lost by
moving rows instead of models. The drift of a row in a round in which nobody holds it is
−c[m]·lr·(mean steps), and c[m] does not change then; the lazy form keeps one running sum of
lr·(mean steps) and catches a row up when it is next read, which gives the same numbers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, ClassVar, final

import torch
from torch import Tensor

from fedrows.algorithm import Algorithm, Round, State, number_per_row, single_number
from fedrows.options import option
from fedrows.rows.heat import Heat
from fedrows.rows.index import Index
from fedrows.rows.params import Params, Submodels, Total, take


@final
@dataclass(frozen=True)
class Scaffold(Algorithm):
    """The mean of updates whose clients' drift is controlled."""

    colour: ClassVar[int | None] = 4
    plain_steps: ClassVar[bool] = True
    keeps: ClassVar[bool] = True
    returns: ClassVar[tuple[str, ...]] = ("control",)
    finish_on_device: ClassVar[Mapping[str, Any]] = {
        "extra": {"control": {"update": "-1/(steps*lr)", "sent": -1}},
        "kept": {"update": "-1/(steps*lr)", "sent": -1, "kept": 1},
    }

    lazy: bool = option(False, "Move rows only when they are next read; the result is the same.")

    lags = property(attrgetter("lazy"))
    sweeps = property(lambda self: not self.lazy)

    def start(self, params: Params) -> State:
        return {
            "control": params.map(torch.zeros_like),
            "seen": Params(number_per_row(params), {}),  # the drift that each row has been given
            "drift": Params({}, {"drift": single_number(params)}),
        }

    def settle_(
        self, params: Params, state: State, index: Mapping[str, Index] | None, round_: int
    ) -> None:
        drift = state["drift"].dense["drift"]
        for table, rows in params.tables.items():
            ids = slice(None) if index is None else index[table].ids
            seen, control = state["seen"].tables[table], state["control"].tables[table]
            missed = (drift - seen[ids]).to(rows.dtype)
            rows[ids] = rows[ids] - control[ids] * missed[:, None]
            seen[ids] = drift

    def send(self, state: State, index: Mapping[str, Index], clients: int) -> Submodels:
        return take(state["control"], index, clients)

    def adjust_(
        self,
        gradient: Submodels,
        local: Submodels,
        start: Submodels,
        sent: Submodels | None,
        kept: Submodels | None,
    ) -> None:
        assert sent is not None
        assert kept is not None
        gradient.add_(sent)
        gradient.add_(kept, -1)

    def finish(
        self,
        update: Submodels,
        sent: Submodels | None,
        kept: Submodels | None,
        lr: float,
        steps: Tensor,
    ) -> tuple[dict[str, Submodels], Submodels]:
        assert sent is not None
        assert kept is not None
        change = update.map(torch.clone)
        change.scale_(-1 / (steps * lr))
        change.add_(sent, -1)
        return {"control": change}, kept.map(torch.add, change)

    def step_(
        self, params: Params, state: State, total: Total, heat: Mapping[str, Heat], round_: Round
    ) -> None:
        control, change = state["control"], total.extra["control"]
        drift = state["drift"].dense["drift"]
        share_of_all = total.weight / round_.weight
        steps = total.steps.to(torch.float64)
        everyone = float((total.share.to(steps) * steps).sum()) * round_.lr
        drift += everyone
        for table, rows in total.rows.items():
            merged, c = rows.merged, control.tables[table]
            holders = merged.sum(rows.share * rows.index.spread(steps).to(rows.share))
            others = everyone - holders * round_.lr  # (U,), the drift of those who lack the row
            moved = merged.values - c[merged.ids] * others[:, None]
            params.tables[table][merged.ids] += moved
            state["seen"].tables[table][merged.ids] = drift
            c[merged.ids] += change.rows[table].merged.values * share_of_all
        for name, dense in total.dense.items():
            params.dense[name] += dense
            control.dense[name] += change.dense[name] * share_of_all
        if not self.lazy:
            self.settle_(params, state, None, round_.number + 1)
