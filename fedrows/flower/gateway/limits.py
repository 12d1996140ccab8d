"""How often somebody may ask, and how much they may send at a time."""

from __future__ import annotations

import time
from collections import Counter, OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

REMEMBERED = 20_000  # buckets; who has not asked for longest is forgotten, with a full bucket


@dataclass(frozen=True)
class RequestRate:
    """So many requests a second, and so many at once after a pause."""

    per_second: float
    at_once: float


class RequestBuckets:
    """A bucket for everyone who asks; their number is bounded, and so is the memory."""

    def __init__(self, rate: RequestRate) -> None:
        self._rate = rate
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()  # left, when

    def wait(self, who: str) -> float:
        """Takes a request out of a bucket; returns the seconds to wait if it is empty, else 0."""
        now, rate = time.monotonic(), self._rate
        left, when = self._buckets.get(who, (rate.at_once, now))
        left = min(rate.at_once, left + (now - when) * rate.per_second)
        taken = left >= 1
        self._buckets[who] = (left - 1 if taken else left, now)
        self._buckets.move_to_end(who)
        if len(self._buckets) > REMEMBERED:
            self._buckets.popitem(last=False)
        return 0.0 if taken else (1 - left) / rate.per_second


class BytesUnderWay:
    """The bytes that everyone sends at the moment, so that nobody fills the memory."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._held: Counter[str] = Counter()

    @contextmanager
    def hold(self, who: str, size: int) -> Iterator[bool]:
        """Counts a body while it comes; gives False if it would be too much at a time."""
        fits = self._held[who] + size <= self._most
        self._held[who] += size if fits else 0
        try:
            yield fits
        finally:
            self._held[who] -= size if fits else 0
            if not self._held[who]:
                del self._held[who]
