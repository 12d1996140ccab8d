"""Gaussian noise on the sum, on rows chosen by noisy counts: DP-AdaFEST's selection (2023).

    row m is released if   Σ_i 1[m ∈ S(i)] / √|S(i)| + σ1·Z ≥ threshold
    released   ( Σ_i ū_i + σ2·Z ) / D        on those rows and on all dense tensors

A user added or removed moves the first sum by 1 and the second by C at most, in Euclidean norm; a
user replaced by another moves them by √2 and 2C. σ is a noise multiplier times that.

Rows that nobody touched pass the threshold by noise alone. Their number is drawn, then their
places, so a release costs what it releases, never the table.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import final

import numpy as np
import torch
from torch import Tensor

from fedrows.options import option
from fedrows.privacy.ledger import Entry, Event
from fedrows.privacy.mechanism import Mechanism, Released, Touched
from fedrows.privacy.noise import GridNoise, RandomBytes, binomials, choose, normals


@final
@dataclass(frozen=True)
class Gaussian(Mechanism):
    """Gaussian noise on rows' counts and on the sum of clipped updates."""

    noise: float = option(1.0, "Noise on the sum, in units of its sensitivity.", above=0)
    select_noise: float = option(
        1.0, "Noise on rows' counts, in units of their sensitivity.", above=0
    )
    select_threshold: float = option(4.0, "Noisy count from which a row is released.")

    @property
    def noise_deviation(self) -> float:
        """Standard deviation of the noise on every number of the sum."""
        return self.noise * self.clip * (1 if self.sampling == "poisson" else 2)

    @property
    def select_deviation(self) -> float:
        """Standard deviation of the noise on every row's count."""
        return self.select_noise * (1 if self.sampling == "poisson" else math.sqrt(2))

    @property
    def explanation(self) -> str:
        return (
            "Every user is protected from whoever sees the model, by Gaussian noise of deviation "
            f"{self.noise_deviation:g} on the sum of updates that are clipped to {self.clip:g}, "
            f"and of deviation {self.select_deviation:g} on the counts by which rows are chosen."
        )

    def entry(self, round_: int, cohort: int, clients: int, tables: bool = True) -> Entry:
        noise = (self.noise, self.select_noise) if tables else (self.noise,)
        event = Event(noise, self.sampling, cohort, clients)
        return Entry(self.kind, "central noise", round_, event=event)

    def noised(
        self,
        touched: Mapping[str, Touched],
        dense: Mapping[str, Tensor],
        sizes: Mapping[str, int],
        cohort: int,
        source: RandomBytes = os.urandom,
    ) -> Released:
        selected = {}
        for table, sums in touched.items():
            ids = self._selected(sums, sizes[table], source)
            selected[table] = ids, sums.sums_at(ids)
        count = sum(x.numel() for x in (*(sums for _, sums in selected.values()), *dense.values()))
        add = GridNoise(self.noise_deviation, count, source)
        scale = cohort * self.mean_share
        rows = {table: (ids, add(sums) / scale) for table, (ids, sums) in selected.items()}
        return rows, {name: add(x) / scale for name, x in dense.items()}

    def _selected(self, touched: Touched, rows: int, source: RandomBytes) -> Tensor:
        """The ids whose noisy count passes the threshold, ascending, on the CPU."""
        noise = torch.from_numpy(normals(len(touched.ids), source))
        counts = touched.counts + self.select_deviation * noise
        passed = touched.ids[counts >= self.select_threshold]
        decoys = self._untouched(touched.ids.numpy(), rows, source)
        return torch.cat([passed, torch.from_numpy(decoys)]).sort().values

    def _untouched(self, touched: np.ndarray, rows: int, source: RandomBytes) -> np.ndarray:
        """The rows with a count of 0 that pass the threshold by noise alone: O(how many)."""
        chance = math.erfc(self.select_threshold / self.select_deviation / math.sqrt(2)) / 2
        others = rows - len(touched)
        if chance <= 0 or not others:
            return np.empty(0, dtype=np.int64)
        count = int(binomials(np.array([others]), min(chance, 1 - 2.0**-53), source)[0])
        ranks = choose(others, count, source)
        return ranks + np.searchsorted(touched - np.arange(len(touched)), ranks, side="right")
