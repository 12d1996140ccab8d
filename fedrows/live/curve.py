"""Curves with few points: what a screen can show of ten thousand rounds."""

from __future__ import annotations

from collections.abc import Sequence

MOST = 20_000  # points of a curve that are kept in memory

Points = tuple[list[float], list[float]]


class LiveCurve:
    """One metric of a run by round, and what of it was not sent yet."""

    def __init__(self) -> None:
        self.x: list[float] = []
        self.y: list[float] = []
        self._new = 0  # points at the end that are new

    def append(self, x: float, y: float) -> None:
        self.x.append(x)
        self.y.append(float(f"{y:.5g}"))
        self._new += 1
        if len(self.x) > MOST and self._new < MOST // 2:
            self.x, self.y = thinned(self.x, self.y, MOST // 2)

    def points(self, most: int) -> Points:
        """The whole curve, in at most so many points."""
        return thinned(self.x, self.y, most)

    def news(self, most: int) -> Points | None:
        """What was added since the last call; None if nothing was."""
        if not self._new:
            return None
        new, self._new = self._new, 0
        return thinned(self.x[-new:], self.y[-new:], most)


def thinned(x: Sequence[float], y: Sequence[float], most: int) -> Points:
    """At most so many of the points: the ends, and of every stretch the lowest and the highest.

    So a spike of one round is seen, however long the run is.
    """
    count = len(x)
    most = max(most, 4)
    if count <= most:
        return list(x), list(y)
    stretches = (most - 2) // 2
    indices = [0]
    for stretch in range(stretches):
        low = 1 + stretch * (count - 2) // stretches
        high = 1 + (stretch + 1) * (count - 2) // stretches
        places = range(low, high)
        least, greatest = min(places, key=y.__getitem__), max(places, key=y.__getitem__)
        indices += sorted({least, greatest})
    indices.append(count - 1)
    return [x[i] for i in indices], [y[i] for i in indices]
