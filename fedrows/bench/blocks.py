"""Timing in alternating blocks: every contender gets its turn before any gets its second.

A shared machine is faster in one second than in the next, so only ratios of medians over blocks
that lie side by side are worth anything.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from statistics import median

Rounds = Callable[[int], object]  # runs so many rounds


def seconds_per_round(
    contenders: Mapping[str, tuple[Rounds, int]], blocks: int
) -> dict[str, list[float]]:
    """Seconds per round of each contender in every block; its count is the rounds of a block."""
    found: dict[str, list[float]] = {name: [] for name in contenders}
    for run, count in contenders.values():
        run(max(1, count // 10))  # warm up
    for _ in range(blocks):
        for name, (run, count) in contenders.items():
            start = time.perf_counter()
            run(count)
            found[name].append((time.perf_counter() - start) / count)
    return found


def medians(times: Mapping[str, list[float]]) -> dict[str, float]:
    """The median block of each contender."""
    return {name: median(values) for name, values in times.items()}
