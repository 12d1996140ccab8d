"""Shamir's sharing (1979): any t shares of a 32-byte secret give it back, t − 1 say nothing of it.

A share is the value at x = 1 + holder of a polynomial of degree t − 1 whose value at 0 is the
secret. The field is that of the smallest prime above 2^256: a secret is one number in it, and there
are as many holders as one likes (bytes over GF(256) would allow 255).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache

from fedrows.privacy.randomness import below

PRIME = 2**256 + 297
SHARE = 33  # bytes
_TRIES = 1000  # subsets tried when some shares are wrong


def share(
    secret: int, threshold: int, holders: Iterable[int], prime: int = PRIME
) -> dict[int, int]:
    """A share of the secret for every holder."""
    factors = [below(prime) for _ in range(threshold - 1)]
    shares = {}
    for holder in holders:
        value, x = 0, holder + 1
        for factor in factors:
            value = (value + factor) * x % prime
        shares[holder] = (value + secret) % prime
    return shares


def value_at(x: int, shares: Mapping[int, int]) -> int:
    """The value at x of the polynomial through these shares."""
    holders = tuple(shares)
    weights = _weights(x, holders)
    return sum(w * shares[h] for w, h in zip(weights, holders, strict=True)) % PRIME


def recover(
    shares: Mapping[int, int], threshold: int, right: Callable[[int], bool]
) -> tuple[int, list[int]] | None:
    """The secret, and the holders whose share is wrong; None if no `threshold` shares give it.

    `right` says whether a number is the secret. The first try succeeds unless somebody lied; then
    further subsets are tried, up to a limit, and the liars found out.
    """
    subsets = itertools.combinations(sorted(shares), threshold)
    for number, subset in enumerate(itertools.islice(subsets, _TRIES)):
        chosen = {holder: shares[holder] for holder in subset}
        secret = value_at(0, chosen)
        if right(secret):
            rest = sorted(shares.keys() - chosen.keys()) if number else []
            return secret, [h for h in rest if value_at(h + 1, chosen) != shares[h]]
    return None


@lru_cache(maxsize=4096)
def _weights(x: int, holders: tuple[int, ...]) -> tuple[int, ...]:
    """Lagrange's weights: what each share counts for at x."""
    factors = []
    for holder in holders:
        above, below = 1, 1
        for other in holders:
            if other != holder:
                above = above * (x - other - 1) % PRIME
                below = below * (holder - other) % PRIME
        factors.append(above * pow(below, -1, PRIME) % PRIME)
    return tuple(factors)
