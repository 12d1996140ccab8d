"""Who masks against whom: everybody, or k neighbours each, with the odds that this goes wrong.

Bell et al. (CCS 2020): on a ring in random order, everybody is a neighbour of the k/2 before and
the k/2 behind (a Harary graph). The order follows from a seed that everybody can check, the digest
of all keys that were advertised. With γ of the clients colluding with the server and δ of them
dropping out, and shares of which `needed` open a secret, it goes wrong if

    security     some client has ≥ needed colluding neighbours, or ≥ 2·needed − (k + 1) of them, or
                 the honest ones that stay are not connected: that takes k/2 bad ones in a row
    correctness  some client has < needed neighbours that stay

The second of these is for a server that shows different clients different drop-outs. The clients
around one sign one list each, so `needed` signatures under each of two lists take that many
colluders.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass

from fedrows.errors import PlanError

LIKELY = 2.0**-40  # the odds that are called negligible here


class Graph:
    """The neighbours of every client of a cohort."""

    def __init__(self, clients: Sequence[int], k: int | None, seed: bytes) -> None:
        """With k of None, or of at least as many as there are others, the graph is complete."""
        self.order = sorted(clients, key=lambda one: _place(seed, one))
        self.k = len(clients) - 1 if k is None else min(k, len(clients) - 1)
        self._at = {client: position for position, client in enumerate(self.order)}

    def neighbours(self, client: int) -> list[int]:
        """The clients that one masks against, in rising order."""
        if self.k == len(self.order) - 1:
            return sorted(other for other in self.order if other != client)
        at, n = self._at[client], len(self.order)
        steps = (*range(-(self.k // 2), 0), *range(1, self.k // 2 + 1))
        return sorted(self.order[(at + step) % n] for step in steps)


def _place(seed: bytes, client: int) -> bytes:
    """Where a client stands in the random order; nobody can choose it without choosing the seed."""
    return hashlib.sha256(b"fedrows graph" + seed + client.to_bytes(8, "little")).digest()


def lowest_threshold(clients: int, colluding: int) -> int:
    """The lowest threshold of a sum in which all mask against all.

    A client opens for one list of survivors. Two lists with t clients each take 2t ≤ n + colluding.
    Of t survivors two must be honest, or the sum shows the vector of the only one.
    """
    return max((clients + colluding) // 2 + 1, colluding + 2)


@dataclass(frozen=True)
class Failure:
    """The odds, at most, that a round on a graph goes wrong."""

    security: float  # a client's vector can be told
    correctness: float  # the sum cannot be opened


def failure(n: int, k: int, needed: int, colluding: float, dropping: float) -> Failure:
    """The odds for n clients with k neighbours each (a union bound over clients)."""
    _check(n, colluding, dropping)
    bad, gone = (math.floor(share * n + 1e-9) for share in (colluding, dropping))
    colluders = _drawn(n - 1, min(bad, n - 1), k)  # P(c colluders among k neighbours)
    leavers = _drawn(n - 1, min(gone, n - 1), k)
    enough = max(0, min(needed, 2 * needed - k - 1))  # open both secrets of a client
    exposed = n * math.fsum(colluders[enough:])
    if k >= n - 1:  # complete: two honest ones that stay are always connected
        cut = 0.0
    else:
        lost = min(bad + gone, n)
        cut = n * math.prod(max(0, lost - i) / (n - i) for i in range(k // 2))
    stuck = n * math.fsum(leavers[max(0, k - needed + 1) :])
    return Failure(min(1.0, exposed + cut), min(1.0, stuck))


def choose(
    n: int,
    colluding: float,
    dropping: float,
    security: float = LIKELY,
    correctness: float = LIKELY,
) -> tuple[int, int]:
    """The smallest even k, and the shares needed, with both odds below what is asked.

    A PlanError if no k below n − 1 does it: then every client must mask against all others.
    """
    for k in range(2, n - 1, 2):
        low, high = 1, k  # more shares needed: safer, but harder to open
        while low < high:
            middle = (low + high) // 2
            if failure(n, k, middle, colluding, dropping).security <= security:
                high = middle
            else:
                low = middle + 1
        odds = failure(n, k, low, colluding, dropping)
        if odds.security <= security and odds.correctness <= correctness:
            return k, low
    raise PlanError(
        f"No graph over {n} clients bears {colluding:.0%} of them colluding and {dropping:.0%} "
        f"dropping out with odds of 2^{math.log2(security):.0f}: let all mask against all."
    )


def _drawn(others: int, marked: int, k: int) -> list[float]:
    """P(c of k drawn are marked) for c = 0 … k, drawing from `others` without putting back."""
    return [
        math.exp(
            _log_choose(marked, c) + _log_choose(others - marked, k - c) - _log_choose(others, k)
        )
        for c in range(k + 1)
    ]


def _log_choose(n: int, k: int) -> float:
    if not 0 <= k <= n:
        return -math.inf
    return math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)


def _check(n: int, colluding: float, dropping: float) -> None:
    for name, share in (("colluding", colluding), ("dropping", dropping)):
        if not 0 <= share < 1:
            raise PlanError(f"The share {name} is {share!r}, but must be at least 0 and below 1.")
    if n < 3:
        raise PlanError(f"A graph over {n} clients makes no sense: there must be at least 3.")
