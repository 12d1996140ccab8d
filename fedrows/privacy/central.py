"""What comes before a noisy mean: corrected updates, noisy heat, and cohorts drawn in secret.

The heat behind the correction is itself released with noise (`private_heat`): otherwise one user
would move everybody else's part of the sum. The noise on the sum is a `Mechanism`'s.
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
from fedrows.privacy.discrete_gaussian import LEAST, discrete_gaussians
from fedrows.privacy.ledger import Entry, Event
from fedrows.privacy.mechanism import Mechanism
from fedrows.privacy.noise import GridNoise, RandomBytes, binomials, choose, words
from fedrows.rows.heat import Heat
from fedrows.rows.index import Index
from fedrows.rows.params import Submodels


def corrected(update: Submodels, factors: Mapping[str, Tensor]) -> Submodels:
    """The update with every row times its entry's factor (R,)."""
    rows = {t: x * factors[t][:, None] if t in factors else x for t, x in update.rows.items()}
    return Submodels(update.index, rows, update.dense)


def private_heat(
    index: Index,
    rows: int,
    how: Mechanism,
    noise: float,
    most: int,
    z: float = 1.0,
    source: RandomBytes = os.urandom,
) -> tuple[Heat, Entry]:
    """Heat with noise, and its entry: no user counts for more than `most` rows.

    Clients are counted, whatever weights the mean has. A user with more rows counts for `most` of
    them, drawn at random. A user added or removed moves the counts by √most, one replaced by
    √(2·most). The server adds Gaussian noise, or every client its share of it. Counts are floored
    at max(1, z deviations). Every row of the table has a noisy count: a list of the rows that
    somebody holds would be exact.
    """
    whole, event = private_counts(index, rows, how, noise, most, source)
    deviation = noise * math.sqrt(most * (2 if how.sampling == "fixed" else 1))
    whole = whole.clamp(min=max(1.0, z * deviation))
    device = index.ids.device
    heat = Heat(torch.arange(rows, device=device), whole.to(device), float(index.clients))
    return heat, Entry(how.kind, "heat", 0, event=event)


def private_counts(
    index: Index,
    rows: int,
    how: Mechanism,
    noise: float,
    most: int,
    source: RandomBytes = os.urandom,
) -> tuple[Tensor, Event]:
    """How many clients have each row of a table, with the noise of `private_heat`, and its event.

    Unbiased, so a count may be below 0.
    """
    if most < 1 or not noise > 0:
        raise PlanError(f"Private heat has noise {noise} and {most} rows a user: both must be > 0.")
    alike = torch.ones(index.clients, dtype=torch.float64)
    held, counts = capped_counts(index, alike, most, source)
    replaced = how.sampling == "fixed"
    deviation = noise * math.sqrt(most * (2 if replaced else 1))
    whole = torch.zeros(rows, dtype=torch.float64)
    whole[held] = counts
    event = Event((noise,), "all")
    if how.client_noise is None:
        whole = GridNoise(deviation, rows, source)(whole)
    else:
        coding = heat_coding(noise, index.clients, most)
        steps = whole.numpy().astype(np.int64) * coding.steps
        steps += discrete_gaussians(math.sqrt(index.clients) * coding.deviation, rows, source)
        whole = torch.from_numpy(steps / coding.steps)
        event = Event((noise * math.sqrt(how.counted_share),), "all", discrete=True)
    return whole, event


@dataclass(frozen=True)
class HeatCoding:
    """How a party writes its counts, in whole steps, and its share of the noise."""

    steps: int  # that a row counts for
    deviation: float  # of one party's noise, in steps


def heat_coding(noise: float, parties: int, most: int) -> HeatCoding:
    """Steps so small that parties' noise adds up as Gaussian noise does (`discrete_gaussian`).

    Two clients' rows are √(2·most) apart, which `noise` is a multiple of.
    """
    one = noise * math.sqrt(2 * most / parties)
    steps = math.ceil(LEAST / one)
    return HeatCoding(steps, one * steps)


def capped_counts(
    index: Index, shares: Tensor, most: int, source: RandomBytes = os.urandom
) -> tuple[Tensor, Tensor]:
    """The rows that anybody holds, and Σ s_i over their holders, no user counting for over `most`.

    Shares are at most 1, so a user moves the counts by √most in Euclidean norm.
    """
    owner, lengths = index.owner.cpu().numpy(), index.lengths.numpy()
    order = np.lexsort((words(len(owner), source, np.uint64), owner))
    rank = np.arange(len(owner)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    kept = torch.from_numpy(order[rank < most])
    held, position = torch.unique(index.ids.cpu(), return_inverse=True)
    counts = torch.zeros(len(held), dtype=torch.float64)
    counts.index_add_(0, position[kept], shares.cpu()[index.owner.cpu()[kept]])
    return held, counts


def draw_cohort(
    how: Mechanism, clients: int, cohort: int, source: RandomBytes = os.urandom
) -> Tensor:
    """The clients of a round, drawn in secret: a cohort that can be foretold amplifies nothing."""
    if not 0 < cohort <= clients:
        raise PlanError(f"A cohort of {cohort} cannot be drawn from {clients} clients.")
    if how.sampling == "poisson" and cohort < clients:
        cohort = int(binomials(np.array([clients]), cohort / clients, source)[0])
    return torch.from_numpy(choose(clients, cohort, source))
