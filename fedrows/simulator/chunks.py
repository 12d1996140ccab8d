"""How a cohort is cut into chunks of clients that train together: measured once, then kept.

On a CPU many small products of few clients stay in the cache, and several chunks at a time, each on
a thread of its own, waste less than one on all threads. Which is best depends on the model and on
the machine, so all are tried on a run's first cohort, whose results are thrown away: what comes out
of a run depends on the chunks in its last bits only, and a run has one way to cut throughout.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

_SLOW = 0.2  # seconds: a round that takes less is not worth measuring
_BETTER = 0.9  # of the time of one chunk, to be worth leaving it
_MOST = 1_000  # clients in a chunk: with more, what a step touches has left the cache by the next


@dataclass(frozen=True)
class Chunks:
    """So many clients in a chunk; so many chunks at a time, each on one thread."""

    clients: int
    at_a_time: int = 1  # 1: one after another, each on all threads

    def bounds(self, cohort: int) -> list[int]:
        """Where a cohort is cut, its two ends included.

        One client left over joins the chunk before it: PyTorch takes the products of a single one
        by another routine, which rounds another way.
        """
        lows = list(range(0, cohort, self.clients))
        if len(lows) > 1 and self.clients > 1 and cohort - lows[-1] == 1:
            lows.pop()
        return [*lows, cohort]


def cut(cohort: int, threads: int, parts: int) -> Chunks:
    """A cohort in so many chunks for each of some threads."""
    clients = min(-(-cohort // (parts * threads)), _MOST)
    return Chunks(clients, min(threads, -(-cohort // clients)))


def fastest(train: Callable[[Chunks], object], cohort: int, threads: int) -> Chunks:
    """The way that takes the least time; one chunk unless another is clearly better.

    Of many threads, twice as many are tried until they are slower: they wait for each other
    whenever Python has its turn. Then that many threads have several chunks each.
    """
    tried: dict[Chunks, float] = {}

    def seconds(way: Chunks) -> float:
        if way not in tried:
            train(way)  # warm up: other shapes have other traces
            start = time.perf_counter()
            train(way)
            tried[way] = time.perf_counter() - start
        return tried[way]

    whole = Chunks(min(cohort, _MOST))  # cut only if it is huge
    if seconds(whole) < _SLOW:
        return whole
    counts = [2**n for n in range(1, threads.bit_length()) if 2**n < threads] + [threads]
    at_once, least = counts[0], math.inf
    for count in counts:
        now = seconds(cut(cohort, count, 1))
        if now >= least:
            break
        at_once, least = count, now
    for parts in (2, 5):
        seconds(cut(cohort, at_once, parts))
    best = min(tried, key=lambda way: tried[way])
    return best if tried[best] < _BETTER * tried[whole] else whole
