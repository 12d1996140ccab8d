"""Gaussian noise on every row of every table, so that no row needs to be chosen.

    released   ( Σ_i ū_i + σ·Z ) / D        on all rows and on all dense tensors

Each ū_i has norm at most C, so a user replaced by another moves the sum by 2C at most, and σ is a
noise multiplier times that. Which rows are released tells nothing: it is all of them. A round costs
the whole table, so this is for small ones.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from fedrows.options import option
from fedrows.privacy.ledger import Entry, Event
from fedrows.privacy.mechanism import Mechanism, Released, Touched
from fedrows.privacy.noise import GridNoise, RandomBytes


@final
@dataclass(frozen=True)
class AllRows(Mechanism):
    """Gaussian noise on the sum of clipped updates, on all rows."""

    noise: float = option(1.0, "Noise on the sum, over its sensitivity.", above=0)

    @property
    def deviation(self) -> float:
        """Standard deviation of the noise on every number of the sum."""
        return self.noise * 2 * self.clip

    @property
    def explanation(self) -> str:
        return (
            "Every user is protected from whoever sees the model, by Gaussian noise of deviation "
            f"{self.deviation:g} on all rows of the sum of updates that are clipped to "
            f"{self.clip:g}."
        )

    def entry(self, round_: int, cohort: int, clients: int, tables: bool = True) -> Entry:
        event = Event((self.noise,), self.sampling, cohort, clients)
        return Entry(self.kind, "noise on all rows", round_, event=event)

    def noised(
        self,
        touched: Mapping[str, Touched],
        dense: Mapping[str, Tensor],
        sizes: Mapping[str, int],
        cohort: int,
        source: RandomBytes = os.urandom,
    ) -> Released:
        whole = {table: torch.arange(sizes[table]) for table in touched}
        sums = {table: touched[table].sums_at(ids) for table, ids in whole.items()}
        count = sum(x.numel() for x in (*sums.values(), *dense.values()))
        add = GridNoise(self.deviation, count, source)
        scale = cohort * self.mean_share  # fixed in advance, whoever answers
        rows = {table: (whole[table], add(x) / scale) for table, x in sums.items()}
        return rows, {name: add(x) / scale for name, x in dense.items()}
