"""What is asked for, beside what was measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.speed.blocks import medians


@dataclass(frozen=True)
class Faster:
    """fedrows is to be so many times as fast as the fastest of some contenders."""

    than: str
    times: float
    of: Sequence[str] = ()  # contenders; without any, the one that is called `than`

    def against(self, time: Mapping[str, float]) -> dict[str, Any] | None:
        """What came of it; nothing if none of them was there."""
        there = [time[name] for name in self.of or [self.than] if name in time]
        if not there:
            return None
        return at_least(f"times {self.than}", min(there) / time["fedrows"], self.times)


def at_least(what: str, value: float, bar: float) -> dict[str, Any]:
    """A number that is to be large."""
    return {"what": what, "value": value, "at_least": bar, "met": value >= bar}


def at_most(what: str, value: float, bar: float) -> dict[str, Any]:
    """A number that is to be small."""
    return {"what": what, "value": value, "at_most": bar, "met": value <= bar}


def said(bar: Mapping[str, Any]) -> str:
    """A bar in a line."""
    side = "at least" if "at_least" in bar else "at most"
    wanted = bar["at_least"] if "at_least" in bar else bar["at_most"]
    missed = "" if bar["met"] else ", missed"
    return f"{bar['what']}: {bar['value']:.4g} (bar: {side} {wanted:g}{missed})"


def contest(times: Mapping[str, Sequence[float]], bars: Sequence[Faster]) -> dict[str, Any]:
    """Prints and returns what contenders came to: rounds/s by the median, all blocks, the bars."""
    time = medians({name: list(values) for name, values in times.items()})
    held = [result for bar in bars if (result := bar.against(time)) is not None]
    for name, seconds in time.items():
        ratio = seconds / time["fedrows"]
        print(f"  {name:34} {1 / seconds:9.2f} rounds/s   fedrows is {ratio:8.2f} times that")
    for bar in held:
        print(f"  {said(bar)}", flush=True)
    return {
        "rounds_per_second": {name: 1 / seconds for name, seconds in time.items()},
        "seconds_per_round": {name: list(values) for name, values in times.items()},
        "bars": held,
    }
