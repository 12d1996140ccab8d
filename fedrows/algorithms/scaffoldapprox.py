"""The server-side approximation of Scaffold that the paper uses for its CTR tasks.

    ΔX ← (N−K)/N · ΔX + K/N · mean_k Δ_k;    X += ΔX

Clients keep nothing. A row that nobody holds goes on moving by a geometric sum,
x += ρ(1−ρⁿ)/(1−ρ)·ΔX after n rounds with ρ = (N−K)/N, which the lazy form adds up when the row is
next read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import ClassVar, final

import torch

from fedrows.algorithm import Algorithm, Round, State, number_per_row, single_number
from fedrows.options import option
from fedrows.rows.heat import Heat
from fedrows.rows.index import Index
from fedrows.rows.params import Params, Total
from fedrows.tables import everything


@final
@dataclass(frozen=True)
class ScaffoldApprox(Algorithm):
    """A running mean of the mean updates."""

    title: ClassVar[str] = "Scaffold (server-side approximation)"
    colour: ClassVar[int | None] = 6
    plain_steps: ClassVar[bool] = True

    lazy: bool = option(False, "Move rows only when they are next read; the result is the same.")

    lags = property(attrgetter("lazy"))
    sweeps = property(lambda self: not self.lazy)

    def start(self, params: Params) -> State:
        return {
            "change": params.map(torch.zeros_like),
            "settled": Params(number_per_row(params), {}),  # the round each row was last moved by
            "ratio": Params({}, {"ratio": single_number(params)}),
        }

    def settle_(
        self, params: Params, state: State, index: Mapping[str, Index] | None, round_: int
    ) -> None:
        ratio = float(state["ratio"].dense["ratio"])
        for table, rows in params.tables.items():
            settled, change = state["settled"].tables[table], state["change"].tables[table]
            ids = everything(rows) if index is None else index[table].ids
            missed = round_ - 1 - settled[ids]  # n, 0 where nothing is missing
            faded = ratio**missed
            moved = ratio * (1 - faded) / (1 - ratio)
            rows[ids] = rows[ids] + change[ids] * moved.to(rows)[:, None]
            change[ids] = change[ids] * faded.to(change)[:, None]
            settled[ids] = round_ - 1

    def step_(
        self, params: Params, state: State, total: Total, heat: Mapping[str, Heat], round_: Round
    ) -> None:
        fresh = len(total.share) / round_.clients  # K / N
        ratio = state["ratio"].dense["ratio"]
        if float(ratio) != 1 - fresh:
            if round_.number > 1:  # what was missed so far faded by the old ratio
                self.settle_(params, state, None, round_.number)
            ratio.fill_(1 - fresh)
        change = state["change"]
        for table, rows in total.rows.items():
            merged, old = rows.merged, change.tables[table]
            new = (1 - fresh) * old[merged.ids] + fresh * merged.values
            old[merged.ids] = new
            params.tables[table][merged.ids] += new
            state["settled"].tables[table][merged.ids] = round_.number
        for name, dense in total.dense.items():
            change.dense[name].mul_(1 - fresh).add_(dense, alpha=fresh)
            params.dense[name] += change.dense[name]
        if not self.lazy:
            self.settle_(params, state, None, round_.number + 1)
