"""Private estimates of how many clients hold each row, from everybody's index sets at once.

A coin per row, a coin per raw value, or a sketch: what `counting` chooses from. Sums of answers are
drawn directly where that is possible, at a cost that follows the rows held, not clients × rows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from fedrows.errors import PlanError
from fedrows.privacy.noise import RandomBytes, words
from fedrows.privacy.oracle import Oracle, simulated
from fedrows.privacy.response import Response
from fedrows.privacy.values import Values, rows_per_value
from fedrows.rows.index import Index

RESOLVED = 2  # standard errors that a count must be worth
_AT_ONCE = 1 << 9  # values whose coins are thrown at once


@dataclass(frozen=True, eq=False)
class Estimate:
    """Estimated counts of the rows held, and what they cost."""

    estimates: np.ndarray  # (H,), unbiased
    errors: np.ndarray  # (H,), standard errors
    bytes_up: float  # per client
    epsilon: float  # for one raw value; infinite if the way adds no noise
    epsilon_set: float  # for the largest set of any client
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
        return rows_per_value(self.values, self.owner, self.held[self.place])

    def standing(self, source: RandomBytes) -> np.ndarray:
        """Whether each entry's bit stands: (R,)."""
        if self.shares is None:
            return np.ones(len(self.owner), dtype=bool)
        limits = np.floor(self.shares * 2.0**32).astype(np.uint64)[self.owner]
        return words(len(limits), source) < limits

    def with_shares(self, counts: np.ndarray, errors: np.ndarray) -> np.ndarray:
        """The standard errors with what the shares add: Σ s(1−s) ≤ Σ s, which is the count."""
        return errors if self.shares is None else np.sqrt(errors**2 + counts.clip(min=0))


def by_row(holders: Holders, epsilon: float, source: RandomBytes) -> Estimate:
    """A coin per row; the rows of one value add their ε up."""
    response = Response.symmetric(epsilon)
    position = holders.place[holders.standing(source)]
    ones = response.ones(
        np.bincount(position, minlength=len(holders.held)), holders.clients, source
    )
    counts = response.estimate(ones, holders.clients)
    return Estimate(
        counts,
        holders.with_shares(counts, response.error(counts, holders.clients)),
        holders.rows / 8,
        holders.rows_per_value * response.epsilon,
        holders.largest * response.epsilon,
        _smallest(response, holders.clients),
    )


def by_sketch(holders: Holders, oracle: Oracle, source: RandomBytes) -> Estimate:
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


def by_value(holders: Holders, epsilon: float, source: RandomBytes) -> Estimate:
    """A coin per raw value. A row a×b is held by who holds a and b, and counted by both coins.

        ỹ = (y − q) / (p − q)             a client's answer y for a value, unbiased for its bit
        n̂(a×b) = Σ_i ỹ_i(a) · ỹ_i(b)      variance s·(n_a + n_b + N·s), s = q(1−q)/(p−q)²

    So nothing shows which variants a client has, but for the coin of a. Values that are crossed
    with others have their coins thrown one by one: clients × values of them.
    """
    response, clients = Response.symmetric(epsilon), holders.clients
    first, second = holders.values.of(holders.held)[0], holders.values.crossed(holders.held)
    made = second != -1  # rows a×b; the others are plain
    names = np.unique(np.concatenate([first, second[made]]))
    of_first, of_second = np.searchsorted(names, first), np.searchsorted(names, second)
    entries = made[holders.place]
    who = np.concatenate([holders.owner, holders.owner[entries]])
    what = np.concatenate([of_first[holders.place], of_second[holders.place][entries]])
    who, what = np.divmod(np.unique(who * len(names) + what), len(names))
    _check_whole(holders, who, names[what])
    having = np.bincount(what, minlength=len(names))
    counts = response.estimate(response.ones(having, clients, source), clients)
    crossed, back = np.unique(of_second[made], return_inverse=True)
    inner = np.unique(of_first[made])
    pairs = np.zeros((len(crossed), len(names)))
    thrown = _answers(response, clients, who, what, crossed, source)
    for low in range(0, len(inner), _AT_ONCE):
        part = inner[low : low + _AT_ONCE]
        answers = _answers(response, clients, who, what, part, source)
        both, same = np.isin(part, crossed), np.searchsorted(crossed, part)
        answers[:, both] = thrown[:, same[both]]  # a value has one coin, in whatever rows it stands
        pairs[:, part], counts[part] = thrown.T @ answers, answers.sum(0)
    counts[crossed] = thrown.sum(0)
    plain = counts[of_first]
    errors = response.error(plain, clients)
    noise = float(response.error(np.zeros(1), 1)[0]) ** 2
    both = counts[of_second[made]].clip(0, clients) + plain[made].clip(0, clients)
    plain[made] = pairs[back, of_first[made]]
    errors[made] = np.sqrt(noise * (both + clients * noise))
    half = RESOLVED**2 * noise / 2
    most = counts[crossed].max(initial=0.0).clip(0, clients) + clients * noise
    least = half + math.sqrt(half**2 + 2 * half * most) if len(crossed) else 0.0
    bases = np.unique(holders.values.bases(holders.held)).tolist()
    bits = sum(holders.values.size(base, holders.rows) for base in bases) + int((names < -1).sum())
    return Estimate(
        plain,
        errors,
        bits / 8,
        response.epsilon,
        int(np.bincount(who, minlength=1).max(initial=0)) * response.epsilon,
        max(least, _smallest(response, clients)),
    )


def _smallest(response: Response, clients: int) -> float:
    """The least count that is twice its standard error: the positive root of n² = 4·variance(n)."""
    keep, lie = response.keep * (1 - response.keep), response.lie * (1 - response.lie)
    scale = RESOLVED**2 / (response.keep - response.lie) ** 2
    half = scale * (keep - lie) / 2
    return half + math.sqrt(half**2 + scale * clients * lie)


def _answers(
    response: Response,
    clients: int,
    who: np.ndarray,
    what: np.ndarray,
    values: np.ndarray,
    source: RandomBytes,
) -> np.ndarray:
    """Every client's answer for some values, sorted, each unbiased for its bit: (N, V)."""
    bits = np.zeros((clients, len(values)), dtype=bool)
    if len(values):
        position = np.searchsorted(values, what).clip(max=len(values) - 1)
        inside = values[position] == what
        bits[who[inside], position[inside]] = True
    return (response.answer(bits, source) - response.lie) / (response.keep - response.lie)


def _check_whole(holders: Holders, who: np.ndarray, what: np.ndarray) -> None:
    """Raises a PlanError if somebody holds a and b, but not a×b.

    who, what: the raw values that each client holds.
    """
    rows, owner = holders.held[holders.place], holders.owner
    for low, high, base, size in holders.values.groups:
        if low == base:
            continue
        inside = (rows >= low) & (rows < high)
        held = np.bincount(owner[inside], minlength=holders.clients)
        others = holders.values.crossed(np.arange(low, high, size))
        values, variants = (
            np.bincount(who[chosen], minlength=holders.clients)
            for chosen in ((what >= base) & (what < base + size), np.isin(what, others))
        )
        if not np.array_equal(held, values * variants):
            raise PlanError(
                "Coins by value need clients that hold a value in all of their variants, but some "
                "client holds one in only some of them: use coins by row."
            )
