"""Random numbers that must stay secret, from the operating system and nothing else.

The noise of a private mechanism protects only while nobody can foretell it, so nothing here has a
seed. Draws are vectorised. A test may pass a source of bytes of its own.

Sums and noise are rounded to one grid far below the noise, so a result is a rounding of the ideal
mechanism's: the low bits of a floating-point number say nothing about the sum beneath.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

RandomBytes = Callable[[int], bytes]  # so many random bytes

_GRID = 2.0**-30  # of the noise
_BLOCK = 1 << 20  # numbers drawn at once


def words(count: int, source: RandomBytes = os.urandom, dtype: type = np.uint32) -> np.ndarray:
    """`count` uniform unsigned integers."""
    size = np.dtype(dtype).itemsize
    return np.frombuffer(source(count * size), dtype=dtype)


def uniforms(count: int, source: RandomBytes = os.urandom) -> np.ndarray:
    """`count` float64 in (0, 1), multiples of 2⁻⁵³ plus a half of it."""
    return ((words(count, source, np.uint64) >> np.uint64(11)) + 0.5) * 2.0**-53


def normals(count: int, source: RandomBytes = os.urandom) -> np.ndarray:
    """`count` standard normal float64, by Box and Muller, each pair from 128 random bits."""
    made = np.empty(count + count % 2)
    for low in range(0, len(made), 2 * _BLOCK):
        part = made[low : low + 2 * _BLOCK]
        half = len(part) // 2
        radius = np.sqrt(-2 * np.log(uniforms(half, source)))
        angle = 2 * np.pi * uniforms(half, source)
        part[:half] = radius * np.cos(angle)
        part[half:] = radius * np.sin(angle)
    return made[:count]


def binomials(trials: np.ndarray, chance: float, source: RandomBytes = os.urandom) -> np.ndarray:
    """A Binomial(trials, chance) for every entry, by inversion; the chance is not 0 or 1.

    The number of ones in that many answers, without making each of them. O(distinct numbers of
    trials · standard deviation), so a million features with a thousand different heats are quick.
    """
    different, which = np.unique(np.ravel(trials), return_inverse=True)
    draws = uniforms(len(which), source)
    made = np.empty(len(which), dtype=np.int64)
    order = np.argsort(which, kind="stable")
    ends = np.searchsorted(which[order], np.arange(len(different) + 1))
    for number, n in enumerate(different.tolist()):
        alike = order[ends[number] : ends[number + 1]]
        middle, reach = n * chance, 10 * np.sqrt(n * chance * (1 - chance)) + 40
        low, high = max(0, int(middle - reach)), min(n, int(middle + reach) + 1)
        cumulative = np.cumsum(_binomial(n, chance, low, high))
        steps = np.searchsorted(cumulative / cumulative[-1], draws[alike], side="right")
        made[alike] = low + np.minimum(steps, high - low)
    return made.reshape(np.shape(trials))


def _binomial(n: int, chance: float, low: int, high: int) -> np.ndarray:
    """The chances of low … high ones among n."""
    ones = torch.arange(low, high + 1, dtype=torch.float64)
    ways = torch.lgamma(torch.tensor(n + 1.0, dtype=torch.float64))
    ways = ways - torch.lgamma(ones + 1) - torch.lgamma(n - ones + 1)
    log = ways + ones * np.log(chance) + (n - ones) * np.log1p(-chance)
    return log.exp().numpy()


def choose(among: int, count: int, source: RandomBytes = os.urandom) -> np.ndarray:
    """`count` different numbers below `among`, every set equally likely, ascending.

    O(count) unless most of them are chosen.
    """
    if 2 * count > among:
        return np.sort(np.argsort(words(among, source, np.uint64), kind="stable")[:count])
    chosen = np.empty(0, dtype=np.int64)
    while len(chosen) < count:
        drawn = np.concatenate([chosen, _below(2 * (count - len(chosen)) + 8, among, source)])
        _, first = np.unique(drawn, return_index=True)
        chosen = drawn[np.sort(first)][:count]  # in the order drawn, or small numbers would win
    return np.sort(chosen)


def _below(count: int, limit: int, source: RandomBytes) -> np.ndarray:
    """`count` numbers below a limit < 2⁵³, uniform to 2⁻⁵³."""
    return np.minimum((uniforms(count, source) * limit).astype(np.int64), limit - 1)


class GridNoise:
    """Adds Gaussian noise on a grid. Rounding may move a sum of d numbers by √d grid steps more."""

    def __init__(self, deviation: float, count: int, source: RandomBytes) -> None:
        self.grid = 2.0 ** math.floor(math.log2(deviation * _GRID))
        self.deviation = deviation * (1 + math.sqrt(count) * self.grid / deviation)
        self.source = source

    def __call__(self, sums: Tensor) -> Tensor:
        noise = self.deviation * torch.from_numpy(normals(sums.numel(), self.source))
        steps = (sums / self.grid).round() + (noise.view(sums.shape) / self.grid).round()
        return steps * self.grid
