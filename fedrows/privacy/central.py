"""Central differential privacy at user level: clipped updates, noise, rows chosen in private.

    ū_i = s_i · u_i · min(1, C / |u_i|)     u_i the corrected update, s_i = min(w_i, cap) / cap
    row m is released if   Σ_i 1[m ∈ S(i)] / √|S(i)| + σ1·Z ≥ threshold
    released   ( Σ_i ū_i + σ2·Z ) / D        on those rows and on all dense tensors

A user added or removed moves the first sum by 1 and the second by C at most, in Euclidean norm; a
user replaced by another moves them by √2 and 2C. σ is a noise multiplier times that. D is fixed in
advance, and the heat behind the correction is itself released with noise (`private_heat`):
otherwise one user would move everybody else's part. `docs/privacy.md` derives all of it.

Rows that nobody touched pass the threshold by noise alone. Their number is drawn, then their
places, so a release costs what it releases, never the table. The selection is DP-AdaFEST's (2023).

Sums and noise are rounded to one grid far below the noise, so the result is a rounding of the ideal
mechanism's: the low bits of a floating-point number say nothing about the sum beneath.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedrows.errors import PlanError
from fedrows.options import check, option
from fedrows.privacy.ledger import Entry, Event
from fedrows.privacy.noise import Source, binomials, choose, normals, words
from fedrows.rows.heat import Heat
from fedrows.rows.index import Index
from fedrows.rows.params import Submodels

_GRID = 2.0**-30  # of the noise


@dataclass(frozen=True, eq=False)
class Touched:
    """What a cohort's clipped updates come to in one table."""

    ids: Tensor  # (U,), ascending
    counts: Tensor  # (U,), Σ_i 1 / √|S(i)| over a row's holders
    sums: Tensor  # (U, width), Σ_i ū_i


@dataclass(frozen=True)
class CentralDP:
    """The options of user-level privacy against whoever sees the model."""

    clip: float = option(1.0, "Largest norm of a client's corrected update.", above=0)
    noise: float = option(1.0, "Noise on the sum, over its sensitivity.", above=0)
    select_noise: float = option(1.0, "Noise on rows' counts, over their sensitivity.", above=0)
    select_threshold: float = option(4.0, "Noisy count from which a row is released.")
    weight_cap: float | None = option(None, "Weights count up to this; none: all alike.", above=0)
    mean_share: float = option(1.0, "Mean of min(w, cap)/cap, fixed in advance.", above=0, most=1)
    sampling: str = option("fixed", "How a cohort is drawn.", choices=("poisson", "fixed"))

    def __post_init__(self) -> None:
        check(self)

    @property
    def kind(self) -> str:
        """The kind of privacy that the sampling allows to account for."""
        return "model/user" if self.sampling == "poisson" else "model/user-replaced"

    @property
    def noise_deviation(self) -> float:
        """Standard deviation of the noise on every number of the sum."""
        return self.noise * self.clip * (1 if self.sampling == "poisson" else 2)

    @property
    def select_deviation(self) -> float:
        """Standard deviation of the noise on every row's count."""
        return self.select_noise * (1 if self.sampling == "poisson" else math.sqrt(2))

    def entry(self, round_: int, cohort: int, clients: int, tables: bool = True) -> Entry:
        """What one round's release writes into the ledger."""
        noise = (self.noise, self.select_noise) if tables else (self.noise,)
        event = Event(noise, self.sampling, cohort, clients)
        return Entry(self.kind, "central noise", round_, event=event)

    def shares(self, weights: Tensor) -> Tensor:
        """s_i = min(w_i, cap) / cap, or 1: (K,) float64."""
        weights = weights.to(torch.float64)
        if self.weight_cap is None:
            return torch.ones_like(weights)
        return (weights / self.weight_cap).clamp(0, 1)

    def clipped(self, update: Submodels, weights: Tensor) -> Submodels:
        """ū_i of every client, in float64. An update that is not finite counts as zero."""
        exact = update.map(lambda x: x.to(torch.float64))
        if not len(weights):  # a Poisson sample may be empty, and is released all the same
            return exact
        sound = torch.isfinite(exact.norms())
        made = exact.map(lambda x: x.nan_to_num(0, 0, 0))
        scale = (self.clip / made.norms()).nan_to_num(1, 1).clamp(max=1)
        made.scale_(torch.where(sound, scale * self.shares(weights).to(scale), 0))
        return made

    def noised(
        self,
        touched: Mapping[str, Touched],
        dense: Mapping[str, Tensor],
        sizes: Mapping[str, int],
        cohort: int,
        source: Source = os.urandom,
    ) -> tuple[dict[str, tuple[Tensor, Tensor]], dict[str, Tensor]]:
        """The private mean from sums of clipped updates: the rows selected, and dense tensors.

        For sums that come out of a secure sum; `sizes` are the rows of the whole tables.
        """
        selected = {}
        for table, its in touched.items():
            ids = self._selected(its, sizes[table], source)
            selected[table] = ids, _sum_at(ids, its.ids, its.sums, its.sums.shape[1])
        count = sum(x.numel() for x in (*(sums for _, sums in selected.values()), *dense.values()))
        add = GridNoise(self.noise_deviation, count, source)
        scale = cohort * self.mean_share
        rows = {table: (ids, add(sums) / scale) for table, (ids, sums) in selected.items()}
        return rows, {name: add(x) / scale for name, x in dense.items()}

    def _selected(self, touched: Touched, rows: int, source: Source) -> Tensor:
        """The ids whose noisy count passes the threshold, ascending, on the CPU."""
        noise = torch.from_numpy(normals(len(touched.ids), source))
        counts = touched.counts + self.select_deviation * noise
        passed = touched.ids[counts >= self.select_threshold]
        decoys = self._untouched(touched.ids.numpy(), rows, source)
        return torch.cat([passed, torch.from_numpy(decoys)]).sort().values

    def _untouched(self, touched: np.ndarray, rows: int, source: Source) -> np.ndarray:
        """The rows with a count of 0 that pass the threshold by noise alone: O(how many)."""
        chance = math.erfc(self.select_threshold / self.select_deviation / math.sqrt(2)) / 2
        others = rows - len(touched)
        if chance <= 0 or not others:
            return np.empty(0, dtype=np.int64)
        count = int(binomials(np.array([others]), min(chance, 1 - 2.0**-53), source)[0])
        ranks = choose(others, count, source)
        return ranks + np.searchsorted(touched - np.arange(len(touched)), ranks, side="right")


class GridNoise:
    """Adds Gaussian noise on a grid. Rounding may move a sum of d numbers by √d grid steps more."""

    def __init__(self, deviation: float, count: int, source: Source) -> None:
        self.grid = 2.0 ** math.floor(math.log2(deviation * _GRID))
        self.deviation = deviation * (1 + math.sqrt(count) * self.grid / deviation)
        self.source = source

    def __call__(self, sums: Tensor) -> Tensor:
        noise = self.deviation * torch.from_numpy(normals(sums.numel(), self.source))
        steps = (sums / self.grid).round() + (noise.view(sums.shape) / self.grid).round()
        return steps * self.grid


def corrected(update: Submodels, factors: Mapping[str, Tensor]) -> Submodels:
    """The update with every row times its entry's factor (R,)."""
    rows = {t: x * factors[t][:, None] if t in factors else x for t, x in update.rows.items()}
    return Submodels(update.index, rows, update.dense)


def private_heat(
    index: Index,
    weights: Tensor,
    how: CentralDP,
    noise: float,
    most: int,
    z: float = 1.0,
    source: Source = os.urandom,
) -> tuple[Heat, Entry]:
    """Heat with Gaussian noise, and its entry: no user counts for more than `most` rows.

    A user with more counts for `most` of them, drawn at random. A user added or removed moves the
    counts by √most, one replaced by √(2·most). Counts are floored at max(1, z deviations). Rows
    that nobody holds have noisy counts too, which nobody ever reads, so they are not drawn.
    """
    if most < 1 or not noise > 0:
        raise PlanError(f"Private heat has noise {noise} and {most} rows a user: both must be > 0.")
    held, counts = capped_counts(index, how.shares(weights), most, source)
    replaced = how.sampling == "fixed"
    deviation = noise * math.sqrt(most * (2 if replaced else 1))
    counts = GridNoise(deviation, len(counts), source)(counts).clamp(min=max(1.0, z * deviation))
    ids = held.to(index.ids.device) if index.held is None else index.held
    total = index.clients * how.mean_share
    return Heat(ids, counts.to(ids.device), total), Entry(
        how.kind, "heat", 0, event=Event((noise,), "all")
    )


def capped_counts(
    index: Index, shares: Tensor, most: int, source: Source = os.urandom
) -> tuple[Tensor, Tensor]:
    """The rows that anybody holds, and Σ s_i over their holders, no user counting for over `most`.

    Shares are at most 1, so a user moves the counts by √most in Euclidean norm.
    """
    owner, lengths = index.owner.cpu().numpy(), index.lengths.numpy()
    order = np.lexsort((words(len(owner), source, np.uint64), owner))
    rank = np.arange(len(owner)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    kept = torch.from_numpy(order[rank < most])
    held, place = torch.unique(index.ids.cpu(), return_inverse=True)
    counts = torch.zeros(len(held), dtype=torch.float64)
    counts.index_add_(0, place[kept], shares.cpu()[index.owner.cpu()[kept]])
    return held, counts


def draw_cohort(how: CentralDP, clients: int, cohort: int, source: Source = os.urandom) -> Tensor:
    """The clients of a round, drawn in secret: a cohort that can be foretold amplifies nothing."""
    if not 0 < cohort <= clients:
        raise PlanError(f"A cohort of {cohort} cannot be drawn from {clients} clients.")
    if how.sampling == "poisson" and cohort < clients:
        cohort = int(binomials(np.array([clients]), cohort / clients, source)[0])
    return torch.from_numpy(choose(clients, cohort, source))


def _sum_at(ids: Tensor, entries: Tensor, values: Tensor, width: int) -> Tensor:
    """The sum of the entries' values at each id: (U, width); entries of other ids are left out."""
    sums = torch.zeros(len(ids), width, dtype=torch.float64)
    if len(ids) and len(entries):
        place = torch.searchsorted(ids, entries).clamp_(max=len(ids) - 1)
        there = ids[place] == entries
        sums.index_add_(0, place[there], values[there])
    return sums
