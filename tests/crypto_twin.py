"""What the tests of private sums share: cohorts, hostile messengers, a test of uniformity."""

from collections.abc import Callable, Generator
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedrows.privacy.keys import MaskWords, NodeKey, random_words
from fedrows.privacy.protocol import Outcome, run
from fedrows.privacy.secure_sum import client, server
from fedrows.privacy.terms import SumTerms

PHASES = ("keys", "shares", "masked", "agreed", "opened")
Change = Callable[[bytes], bytes]


@cache
def node(number: int) -> NodeKey:
    return NodeKey()


def registry(clients: Any) -> dict[int, bytes]:
    return {one: node(one).public for one in clients}


def vectors(terms: SumTerms) -> dict[int, MaskWords]:
    return {one: random_words(terms.length, terms.dtype) for one in terms.cohort}


def total(parts: dict[int, MaskWords], clients: Any, terms: SumTerms) -> MaskWords:
    """The sum, without any of it."""
    found = np.zeros(terms.length, dtype=terms.dtype)
    for one in clients:
        found = found + parts[one]
    return found


def halves(terms: SumTerms, parts: dict[int, MaskWords], hostile: Any = None) -> dict[int, Any]:
    """The client halves; `hostile` wraps some of them."""
    keys = registry(terms.cohort)
    found: dict[int, Any] = {
        one: client(terms, one, node(one), keys, parts[one]) for one in terms.cohort
    }
    for one, wrap in (hostile or {}).items():
        found[one] = wrap(found[one])
    return found


def add_up(
    terms: SumTerms, parts: dict[int, MaskWords], drop: Any = None, hostile: Any = None
) -> Outcome[Any, Any]:
    return run(server(terms, registry(terms.cohort)), halves(terms, parts, hostile), drop)


def altered(
    half: Generator[bytes, bytes, Any], phase: int, up: Change | None = None, down: Any = None
) -> Generator[bytes, bytes, Any]:
    """A client whose message of one phase is altered on its way up, or the request to it."""
    number, reply = 0, next(half)
    while True:
        answer = yield up(reply) if up and number == phase else reply
        number += 1
        if down and number == phase:
            answer = down(answer)
        try:
            reply = half.send(answer)
        except StopIteration as stop:
            return stop.value


def chi_square(counts: NDArray[Any], expected: NDArray[Any] | float) -> float:
    """How many standard deviations the chi-square of a histogram lies above what it should be."""
    freedom = len(counts) - 1
    found = float(((counts - expected) ** 2 / expected).sum())
    return (found - freedom) / float(np.sqrt(2 * freedom))


def histograms(words: MaskWords) -> list[NDArray[Any]]:
    """How often each value of each byte occurs: every byte of a uniform word is uniform."""
    table = words.reshape(-1, 1).view(np.uint8)
    return [np.bincount(column, minlength=256) for column in table.T]


def far_from_uniform(words: MaskWords) -> float:
    """Standard deviations, at worst over the bytes of a word; above 7 nobody believes in chance."""
    return max(chi_square(counts, len(words) / 256) for counts in histograms(words))


def far_apart(one: MaskWords, other: MaskWords) -> float:
    """The same for two samples of equal size: whether they can have the same distribution."""
    found = 0.0
    for a, b in zip(histograms(one), histograms(other), strict=True):
        both = a + b
        seen = both > 0
        gap = ((a - b)[seen] ** 2 / both[seen]).sum()
        freedom = max(1, seen.sum() - 1)
        found = max(found, float((gap - freedom) / np.sqrt(2 * freedom)))
    return found
