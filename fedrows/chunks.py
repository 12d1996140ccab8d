"""How a cohort is cut into chunks of clients that train together: measured once, then kept.

On a CPU many small products of few clients stay in the cache, and several chunks at a time, each on
a thread of its own, waste less than one on all threads. Which is best depends on the model and on
the machine, so all are tried on a run's first cohort, whose results are thrown away: what comes out
of a run depends on the chunks in its last bits only, and a run has one way to cut throughout.
"""

from __future__ import annotations

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


def ways(cohort: int, threads: int) -> list[Chunks]:
    """The ways to cut a cohort that are worth a try; the first is to cut it only if it is huge."""
    found = [Chunks(min(cohort, _MOST))]
    for count in (1, 2, 5):
        clients = min(-(-cohort // (count * threads)), _MOST)
        found.append(Chunks(clients, min(threads, -(-cohort // clients))))
    return list(dict.fromkeys(found))


def fastest(train: Callable[[Chunks], object], cohort: int, threads: int) -> Chunks:
    """The way that takes the least time; one chunk unless another is clearly better."""
    whole, *others = ways(cohort, threads)
    train(whole)  # warm up
    least = _seconds(train, whole)
    if least < _SLOW:
        return whole
    best, least = whole, least * _BETTER
    for way in others:
        train(way)  # warm up: other shapes have other traces
        seconds = _seconds(train, way)
        if seconds < least:
            best, least = way, seconds
    return best


def _seconds(train: Callable[[Chunks], object], way: Chunks) -> float:
    start = time.perf_counter()
    train(way)
    return time.perf_counter() - start
