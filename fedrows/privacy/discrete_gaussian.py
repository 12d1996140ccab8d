"""Integers with Gaussian weights, drawn from secret bytes by a table.

    P(X = x) ∝ e^(−x² / 2σ²),   x a whole number

The sum of n independent ones is close to one whose variance is n times as large. Kairouz, Liu and
Steinke (2021), Theorem 1: if a user moves the sum by Δ in Euclidean norm and in d places, it is
ε²/2-concentrated differentially private, so that its Rényi divergence of order α is α·ε²/2, with

    ε = min( √(Δ²/(nσ²) + τ·d/2),  Δ/(√n·σ) + τ·√d ),   τ = 10·Σ_{k<n} e^(−2π²σ²·k/(k+1))

From σ = 4 on τ is below 10⁻⁶⁰, and ε is that of Gaussian noise. The table is exact to 2⁻¹²⁸: what
lies beyond 14 σ, and the rounding of its chances, are both less likely than that.
"""

from __future__ import annotations

import decimal
import math
import os
from functools import lru_cache

import numpy as np

from fedrows.errors import PlanError
from fedrows.privacy.noise import RandomBytes, words

LEAST = 4.0  # σ from which a sum is as good as one discrete Gaussian
_REACH = 14  # deviations that the table has
_LARGEST = 1 << 21  # entries of a table
_BITS = 320  # of the numbers that the table is made with
_BLOCK = 1 << 20  # numbers drawn at once


def concentrated_epsilon(rho: float, delta: float) -> float:
    """ε at δ of ρ-concentrated differential privacy (Bun and Steinke 2016, Proposition 1.3).

    A mechanism with ε of the theorem above has ρ = ε²/2, and the ρ of several add up.
    """
    return rho + 2 * math.sqrt(rho * math.log(1 / delta))


def discrete_gaussians(
    deviation: float, count: int, source: RandomBytes = os.urandom
) -> np.ndarray:
    """`count` independent ones: (count,) int64."""
    high, low = _table(deviation)
    drawn = np.empty(count, dtype=np.int64)
    for start in range(0, count, _BLOCK):
        part = drawn[start : start + _BLOCK]
        first = words(len(part), source, np.uint64)
        below = np.searchsorted(high, first, side="left")
        # One in 2⁶⁴ draws hits the first half of a bound, and needs the second to be decided.
        for at in np.flatnonzero(below != np.searchsorted(high, first, side="right")):
            second = int(words(1, source, np.uint64)[0])
            while below[at] < len(high) and high[below[at]] == first[at]:
                if low[below[at]] > second:
                    break
                below[at] += 1
        signs = np.frombuffer(source(-(-len(part) // 8)), dtype=np.uint8)
        negative = np.unpackbits(signs, count=len(part)).astype(bool)
        part[:] = np.where(negative, -below, below)
    return drawn


@lru_cache(maxsize=8)
def _table(deviation: float) -> tuple[np.ndarray, np.ndarray]:
    """Bounds between |X| = 0, 1, 2, … as 128 bits, in two halves: how many are ≤ u is |X|."""
    reach = math.ceil(_REACH * deviation) + 1
    if not deviation > 0 or reach > _LARGEST:
        raise PlanError(
            f"Noise of {deviation:g} steps a client cannot be drawn, for at most "
            f"{_LARGEST / _REACH:g} can: lower dp-noise, or ask for more clients per round."
        )
    with decimal.localcontext() as context:
        context.prec = 120
        variance = decimal.Decimal(deviation) ** 2
        unit = decimal.Decimal(2**_BITS)
        ratio = int((-1 / (2 * variance)).exp() * unit)  # e^(−(2k+1)/2σ²) at k = 0
        square = int((-1 / variance).exp() * unit)  # what it is multiplied by from k to k + 1
    weights = [1 << _BITS]
    for _ in range(reach):
        weights.append(weights[-1] * ratio >> _BITS)
        ratio = ratio * square >> _BITS
    total, at, bounds = 2 * sum(weights) - weights[0], 0, []
    for number, weight in enumerate(weights[:-1]):
        at += weight if number == 0 else 2 * weight
        bounds.append((at << 128) // total)
    high = np.array([bound >> 64 for bound in bounds], dtype=np.uint64)
    return high, np.array([bound & (2**64 - 1) for bound in bounds], dtype=np.uint64)
