"""The differentially private mean out of a secure sum: clipped, with noise, on rows drawn by noise.

    a client sends   ū_k, its corrected and clipped update, and 1 / √|S(k)| behind every row
    the server has   ( Σ ū_k + noise ) / D on the rows that the mechanism releases

What is not released is dropped: it would count in a round that its client was not drawn for.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedrows.algorithm import Algorithm
from fedrows.privacy.held_back import HeldBack
from fedrows.privacy.layout import Contribution, OpenedRows, SumLayout
from fedrows.privacy.mechanism import Mechanism, Touched
from fedrows.privacy.noise import RandomBytes
from fedrows.privacy.ring import Coding
from fedrows.privacy.weighted_mean import (
    PRECISION,
    ClientUpdates,
    Mean,
    dense_lines,
    dense_of,
    dense_size,
)
from fedrows.rows.heat import Heat
from fedrows.rows.params import Submodels

SLACK = 1e-6  # share of a clipped norm that is left for rounding to fixed point


def corrected(update: Submodels, factors: Mapping[str, Tensor]) -> Submodels:
    """The update with every row times its entry's factor (R,)."""
    rows = {t: x * factors[t][:, None] if t in factors else x for t, x in update.rows.items()}
    return Submodels(update.index, rows, update.dense)


@dataclass(frozen=True)
class ClippedMean:
    """What all private means of clipped updates have in common; none of them holds rows back."""

    mechanism: Mechanism
    widths: Mapping[str, int]  # of the shared tables
    dense: Mapping[str, tuple[int, ...]]  # shapes
    sizes: Mapping[str, int]  # table → rows
    algorithm: Algorithm
    heat: Mapping[str, Heat]
    cohort: int  # clients, as planned: who answers must not change the denominator
    source: RandomBytes

    def clipped(self, updates: ClientUpdates) -> Submodels:
        """ū_k of every client: its update after the algorithm's correction, clipped, in float64."""
        exact = updates.update
        known = {table: self.heat[table] for table in exact.index}
        device = next(iter(known.values())).ids.device if known else torch.device("cpu")
        index = {table: sets.to(device) for table, sets in exact.index.items()}
        factors = self.algorithm.correction(index, known, torch.float64)
        if factors is not None:
            exact = corrected(exact, {table: x.cpu() for table, x in factors.items()})
        return self.mechanism.clipped(exact, torch.from_numpy(updates.weights))

    def released(self, touched: Mapping[str, Touched], dense: np.ndarray) -> Mean:
        """The private mean from sums: of the rows, and of the dense numbers in one line."""
        tensors = dense_of(dense, self.dense)
        noised = self.mechanism.noised(touched, tensors, self.sizes, self.cohort, self.source)
        return Mean(1.0, *noised)

    def bounded(self, mean: Mean | None, *_: Any) -> Mean | None:
        """The mean as it is: what it is made of was clipped, and has noise on it."""
        return mean

    def keep_(self, *_: Any) -> None:
        """Nothing is held back."""


@dataclass(frozen=True)
class NoisyMean(ClippedMean):
    """The client's and the server's part in a noisy mean of parties that are one client each."""

    def layout(self, union: Mapping[str, np.ndarray]) -> SumLayout:
        """The vector of a round over a union: every row with a number more, for its count."""
        return SumLayout(union, self._wider, dense_size(self.dense))

    def coding(self, most_rows: Mapping[str, int]) -> Coding:
        """How numbers are written, if no client holds more rows of a table than `most_rows`."""
        numbers = (
            1
            + dense_size(self.dense)
            + sum(width * most_rows[table] for table, width in self.widths.items())
        )
        # Rounding moves d numbers by √d steps at most, which the slack has room for.
        clip = self.mechanism.clip
        precise = min(PRECISION, SLACK * min(clip, 1.0) / math.sqrt(numbers))
        return Coding(max(clip, 1.0), self.cohort, precision=precise)

    def contribute(
        self, updates: ClientUpdates, union: Mapping[str, np.ndarray], held: HeldBack
    ) -> Contribution:
        """What the clients send, each a party of its own; one that did not train sends zeros."""
        exact = self.clipped(updates)
        exact.scale_(torch.full((len(updates.weights),), 1 - SLACK, dtype=torch.float64))
        counted = Submodels(exact.index, _with_counts(exact), {})
        rows = HeldBack(self._wider).joined(counted, updates.party, updates.names, union)
        extra = dense_lines(exact, self.dense, updates.party, len(updates.names))
        return Contribution(rows, extra, {})

    def mean(self, opened: OpenedRows, layout: SumLayout) -> Mean:
        """The private mean out of a sum."""
        touched = {
            table: Touched(
                torch.from_numpy(layout.union[table]),
                torch.from_numpy(sums[:, -1].copy()),
                torch.from_numpy(sums[:, :-1].copy()),
            )
            for table, (_, sums) in opened.rows.items()
        }
        return self.released(touched, opened.extra)

    @property
    def _wider(self) -> dict[str, int]:
        """The widths of rows with their counts behind."""
        return {table: width + 1 for table, width in self.widths.items()}


def _with_counts(exact: Submodels) -> dict[str, Tensor]:
    """The rows with 1 / √|S(i)| behind each, |S(i)| over all tables together."""
    if not exact.index:
        return {}
    sizes = torch.stack([sets.lengths for sets in exact.index.values()]).sum(0)
    part = (1 - SLACK) * sizes.to(torch.float64).clamp(min=1).rsqrt()  # (A,)
    return {
        table: torch.cat([x, part[exact.index[table].owner][:, None]], dim=1)
        for table, x in exact.rows.items()
    }
