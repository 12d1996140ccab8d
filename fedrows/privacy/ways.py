"""Private estimates of how many clients hold each row, from everybody's index sets at once.

A coin per row, a coin per raw value, or a sketch: what `counting` chooses from. Each draws the sum
of all clients' answers directly, at a cost that follows the rows held, not clients × rows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from fedrows.errors import PlanError
from fedrows.privacy.noise import Source, words
from fedrows.privacy.oracle import Oracle, simulated
from fedrows.privacy.response import Response
from fedrows.privacy.values import Values, rows_per_value
from fedrows.rows.index import Index

RESOLVED = 2  # standard errors that a count must be worth


@dataclass(frozen=True, eq=False)
class Estimate:
    """Estimated counts of the rows held, and what they cost."""

    counts: np.ndarray  # (H,), unbiased
    errors: np.ndarray  # (H,), standard errors
    bytes_up: float  # per client
    epsilon: float  # for one raw value
    epsilon_set: float  # for the largest set
    smallest: float  # the least count that is twice its standard error


@dataclass(frozen=True, eq=False)
class Holders:
    """Who holds what in one table, as flat arrays.

    shares: the probability with which each client's bits stand; None if they always do.
    """

    index: Index
    held: np.ndarray  # (H,), sorted
    rows: int  # of the whole table
    values: Values
    shares: np.ndarray | None = None  # (N,)

    @property
    def clients(self) -> int:
        """N."""
        return self.index.clients

    @cached_property
    def owner(self) -> np.ndarray:
        """The client of each entry: (R,)."""
        return self.index.owner.cpu().numpy()

    @cached_property
    def place(self) -> np.ndarray:
        """Where each entry's id stands among those held: (R,)."""
        if self.index.place is not None:
            return self.index.place.cpu().numpy()
        return np.searchsorted(self.held, self.index.ids.cpu().numpy())

    @property
    def largest(self) -> int:
        """The most rows that one client holds."""
        return int(self.index.lengths.max()) if self.clients else 0

    @cached_property
    def rows_per_value(self) -> int:
        """The most rows that one value of one client stands behind."""
        return rows_per_value(self.owner, self.values.of(self.held)[0][self.place])

    def standing(self, source: Source) -> np.ndarray:
        """Whether each entry's bit stands: (R,)."""
        if self.shares is None:
            return np.ones(len(self.owner), dtype=bool)
        limits = np.floor(self.shares * 2.0**32).astype(np.uint64)[self.owner]
        return words(len(limits), source) < limits

    def with_shares(self, counts: np.ndarray, errors: np.ndarray) -> np.ndarray:
        """The standard errors with what the shares add: Σ s(1−s) ≤ Σ s, which is the count."""
        return errors if self.shares is None else np.sqrt(errors**2 + counts.clip(min=0))


def by_row(holders: Holders, epsilon: float, source: Source) -> Estimate:
    """A coin per row; the rows of one value add their ε up."""
    response = Response.symmetric(epsilon)
    place = holders.place[holders.standing(source)]
    ones = response.ones(np.bincount(place, minlength=len(holders.held)), holders.clients, source)
    counts = response.estimate(ones, holders.clients)
    return Estimate(
        counts,
        holders.with_shares(counts, response.error(counts, holders.clients)),
        holders.rows / 8,
        holders.rows_per_value * response.epsilon,
        holders.largest * response.epsilon,
        _smallest(response, holders.clients),
    )


def by_sketch(holders: Holders, oracle: Oracle, source: Source) -> Estimate:
    """A sketch of each client's rows; the rows of one value add their ε up."""
    stands = holders.standing(source)
    ids, owner = holders.held[holders.place[stands]], holders.owner[stands]
    sketches = simulated(oracle, owner, ids, holders.clients, source)
    counts = sketches.estimate(holders.held)
    return Estimate(
        counts,
        holders.with_shares(counts, np.full(len(counts), sketches.error)),
        oracle.bytes_up,
        holders.rows_per_value * oracle.epsilon,
        holders.largest * oracle.epsilon,
        RESOLVED * sketches.error,
    )


def by_value(holders: Holders, epsilon: float, source: Source) -> Estimate:
    """A coin per value, shared by its rows in the variants that a client has.

    Clients of one profile, which is the variants they have, are counted together: so many have a
    value, so many say so. A row adds up the profiles that have its variant.
    """
    response = Response.symmetric(epsilon)
    held = holders.held
    values, variants = holders.values.of(held)
    bases = holders.values.bases(held)
    counts, errors = np.empty(len(held)), np.empty(len(held))
    bits, smallest, most = 0, 0.0, np.zeros(holders.clients, dtype=np.int64)
    for base in np.unique(bases).tolist():
        rows = np.flatnonzero(bases == base)  # places among the held
        names, number = np.unique(values[rows], return_inverse=True)
        value = np.zeros(len(held), dtype=np.int64)
        value[rows] = number
        inside = bases[holders.place] == base
        owner, place = holders.owner[inside], holders.place[inside]
        profile, profiles = _profiles(owner, variants[place], holders.clients)
        who, what = np.divmod(np.unique(owner * len(names) + value[place]), len(names))
        _check_whole(len(place), profile[who], profiles)
        most += np.bincount(who, minlength=holders.clients)
        bits += holders.values.size(base, holders.rows)
        shape = len(profiles), len(names)
        having = np.bincount(profile[who] * len(names) + what, minlength=shape[0] * shape[1])
        asked = np.bincount(profile[profile >= 0], minlength=len(profiles))  # clients
        ones = response.ones(
            having.reshape(shape), np.repeat(asked[:, None], len(names), 1), source
        )
        for variant in np.unique(variants[rows]).tolist():
            with_it = np.array([variant in its for its in profiles])
            here, clients = rows[variants[rows] == variant], int(asked[with_it].sum())
            counts[here] = response.estimate(ones[with_it].sum(0)[value[here]], clients)
            errors[here] = response.error(counts[here], clients)
            smallest = max(smallest, _smallest(response, clients))
    whole = int(most.max(initial=0)) * response.epsilon
    return Estimate(counts, errors, bits / 8, response.epsilon, whole, smallest)


def _smallest(response: Response, clients: int) -> float:
    """The least count that is twice its standard error: the positive root of n² = 4·variance(n)."""
    keep, lie = response.keep * (1 - response.keep), response.lie * (1 - response.lie)
    scale = RESOLVED**2 / (response.keep - response.lie) ** 2
    half = scale * (keep - lie) / 2
    return half + math.sqrt(half**2 + scale * clients * lie)


def _profiles(
    owner: np.ndarray, variants: np.ndarray, clients: int
) -> tuple[np.ndarray, list[frozenset[int]]]:
    """Which variants each client has: a number per client (N,), −1 for none, and the sets."""
    pairs = np.unique(np.stack([owner, variants]), axis=1)
    ends = np.searchsorted(pairs[0], np.arange(clients + 1)).tolist()
    numbers: dict[tuple[int, ...], int] = {}
    profile = np.full(clients, -1)
    which = pairs[1].tolist()
    for client in range(clients):
        its = tuple(which[ends[client] : ends[client + 1]])
        if its:
            profile[client] = numbers.setdefault(its, len(numbers))
    return profile, [frozenset(its) for its in numbers]


def _check_whole(entries: int, profile: np.ndarray, profiles: list[frozenset[int]]) -> None:
    """Raises a PlanError if somebody holds a value in only some of its variants."""
    sizes = np.array([len(its) for its in profiles], dtype=np.int64)
    if entries != sizes[profile].sum():
        raise PlanError(
            "Coins by value need clients that hold a value in all of their variants, but some "
            "client holds one in only some of them: use coins by row."
        )
