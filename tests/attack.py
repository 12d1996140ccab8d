"""An attack on a private mechanism: what ε its outputs prove, and random bytes that repeat."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np


def bytes_of(seed: int) -> Callable[[int], bytes]:
    """A source of bytes for tests: the same ones every time."""
    return np.random.default_rng(seed).bytes


def proven_epsilon(with_it: np.ndarray, without: np.ndarray, delta: float = 0.0) -> float:
    """A lower bound of ε that holds with 99.9 %, from how often an event happened on two inputs.

    (P(event | with) − δ) / P(event | without), the first bounded from below and the second from
    above by Clopper and Pearson.
    """
    low = 1 - _upper(len(with_it) - int(with_it.sum()), len(with_it))
    high = _upper(int(without.sum()), len(without))
    return math.log(max(low - delta, 1e-300) / high)


def _upper(hits: int, trials: int, alpha: float = 5e-4) -> float:
    """The largest chance under which so few hits are not rarer than α."""
    logs = np.cumsum(np.log(np.arange(1, trials + 1)))
    factorial = np.concatenate([[0.0], logs])
    ones = np.arange(hits + 1)
    ways = factorial[trials] - factorial[ones] - factorial[trials - ones]
    low, high = hits / trials, 1.0
    for _ in range(50):
        middle = (low + high) / 2
        if middle in (0.0, 1.0):
            break
        tail = np.exp(ways + ones * math.log(middle) + (trials - ones) * math.log1p(-middle)).sum()
        low, high = (middle, high) if tail > alpha else (low, middle)
    return high
