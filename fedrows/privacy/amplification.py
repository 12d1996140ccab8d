"""What a secret cohort adds to privacy: a bound for any mechanism, by its Rényi divergences.

Wang, Balle and Kasiviswanathan (2019), Theorem 9. K of N clients are drawn without replacement,
γ = K/N, and one user is replaced by another. If a mechanism's divergence of order j is ε(j), that
of the mechanism on the cohort, at a whole order α, is at most

    1/(α−1) · ln( 1 + γ²·C(α,2)·min(4(e^ε(2) − 1), 2·e^ε(2))
                    + Σ_{j=3..α} 2·γ^j·C(α,j)·e^((j−1)·ε(j)) )

A divergence grows with its order, so an order between two whole ones takes the larger.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np


def sampled_divergences(multiplier: float, rate: float, orders: Sequence[float]) -> np.ndarray:
    """The divergences on a sampled cohort, of a mechanism with ε(α) = α / (2·multiplier²)."""
    return np.array([_at(multiplier, rate, float(order)) for order in orders])


def _at(multiplier: float, rate: float, order: float) -> float:
    def plain(alpha: float | np.ndarray) -> float | np.ndarray:
        return alpha / (2 * multiplier**2)

    whole, without = max(2, math.ceil(order)), float(plain(order))
    if rate >= 1:
        return without
    second = float(plain(2))
    pair = math.log(2) + second
    if second < 1:
        pair = min(pair, math.log(4 * math.expm1(second)))
    logs = [0.0, 2 * math.log(rate) + _ways(whole, 2) + pair]
    for j in range(3, whole + 1):
        more = (j - 1) * float(plain(j))
        logs.append(math.log(2) + j * math.log(rate) + _ways(whole, j) + more)
    return min(without, float(np.logaddexp.reduce(logs)) / (whole - 1))


def _ways(n: int, k: int) -> float:
    """ln C(n, k)."""
    return math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)
