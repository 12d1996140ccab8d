"""Noise inside the sum: every client adds its share, so that the server sees noisy sums alone.

    a client sends   round(ū_i · S / C) + Z_i     over all rows of all tables and all dense tensors
    the server has   ( Σ ū_i + noise ) / D

The distributed discrete Gaussian mechanism (Kairouz, Liu and Steinke 2021), without its rotation.
There is no union: the sum runs over every row, so which rows a cohort holds is not shown either.
ε counts on the noise of `counted` of a cohort only, for the others may drop out, or collude with
the server and tell it their noise. A sum with fewer honest clients is not opened.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import final

from torch import Tensor

from fedrows.options import option
from fedrows.privacy.ledger import Entry, Event
from fedrows.privacy.mechanism import Mechanism, Released, Touched
from fedrows.privacy.noise import RandomBytes


@final
@dataclass(frozen=True)
class Distributed(Mechanism):
    """Noise in whole numbers that clients add before the secure sum."""

    noise: float = option(1.0, "Noise of a whole cohort, in units of its sensitivity.", above=0)
    counted: float = option(
        0.6,
        "Share of a cohort whose noise ε counts on; with fewer nothing is opened.",
        above=0,
        most=1,
    )

    @property
    def client_noise(self) -> float:
        return self.noise

    @property
    def explanation(self) -> str:
        return (
            "Every user is protected from the server and from whoever sees the model, by noise of "
            f"deviation {self.noise * 2 * self.clip:g} on the sum of updates that are clipped to "
            f"{self.clip:g}. Clients add it before the sum; ε counts on {self.counted:g} of them."
        )

    @property
    def counted_share(self) -> float:
        return self.counted

    def entry(self, round_: int, cohort: int, clients: int, tables: bool = True) -> Entry:
        noise = self.noise * math.sqrt(self.counted)
        event = Event((noise,), self.sampling, cohort, clients, discrete=True)
        return Entry(self.kind, "noise in the sum", round_, event=event)

    def noised(
        self,
        touched: Mapping[str, Touched],
        dense: Mapping[str, Tensor],
        sizes: Mapping[str, int],
        cohort: int,
        source: RandomBytes = os.urandom,
    ) -> Released:
        scale = cohort * self.mean_share  # the sums have their noise already
        rows = {table: (x.ids, x.sums / scale) for table, x in touched.items()}
        return rows, {name: x / scale for name, x in dense.items()}
