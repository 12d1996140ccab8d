"""What docs/asynchronous-results.md compares: cases of a task, a kind of devices and a concurrency.

`make_asynchronous` makes the tables from them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean

from draw_asynchronous import CLOCKS, Json, first

TASKS = ("synthetic", "movielens-mf", "amazon")
RULES = ("row", "version", "none")
NEVER = float("inf")


@dataclass(frozen=True)
class Case:
    """A task, a kind of devices and a concurrency, with its seeds."""

    task: str
    clock: str
    times: int  # C / M
    runs: Sequence[Json]
    whole: bool = False  # whether M = K, and not K / 5

    @property
    def name(self) -> str:
        """C / M in words."""
        return f"{self.times}, M = K" if self.whole else f"{self.times}"

    @property
    def rules(self) -> list[str]:
        """The rules of staleness that were run."""
        return [rule for rule in RULES if f"{rule}, {self.times}" in self.runs[0]["async"]]

    def seconds(self, rule: str) -> list[float]:
        """Virtual seconds to the target by seed; infinite where it was not reached."""
        return [number(x["async"][f"{rule}, {self.times}"]["seconds"]) for x in self.runs]

    def waited(self) -> list[float]:
        """The same of the synchronous run with the best deadline."""
        return [first({d: y["seconds"] for d, y in x["waiting"].items()}) for x in self.runs]

    def smaller(self) -> list[float]:
        """The same of synchronous rounds of M clients; empty if they were not run."""
        return [
            min(number(y["seconds"]) for y in x["smaller"].values())
            for x in self.runs
            if x["smaller"]
        ]

    def best(self, rule: str) -> list[float]:
        """The least loss by seed."""
        return [x["async"][f"{rule}, {self.times}"]["best"] for x in self.runs]

    def base(self) -> list[float]:
        """The same of the synchronous run without a deadline."""
        return [x["waiting"]["none"]["best"] for x in self.runs]

    @property
    def worse(self) -> float:
        """How far `row` ends above the synchronous run."""
        return fmean(self.best("row")) - fmean(self.base())

    @property
    def spread(self) -> float:
        """The range of the synchronous run's seeds."""
        return max(self.base()) - min(self.base())

    @property
    def ends_well(self) -> bool:
        """Whether `row` ends above it by no more than its seeds range over."""
        return self.worse <= self.spread

    def ratio(self, rule: str) -> float:
        """How many times sooner on average; 0 if a seed did not get there."""
        return times_sooner(self.waited(), self.seconds(rule))


def times_sooner(one: Sequence[float], other: Sequence[float]) -> float:
    """The mean over seeds of one time over another; 0 if a seed did not get there."""
    return 0.0 if NEVER in other else fmean(a / b for a, b in zip(one, other, strict=True))


def number(x: float | None) -> float:
    """Seconds as a number; infinite if a run did not get there."""
    return NEVER if x is None else x


def cases(results: Json) -> Iterator[Case]:
    """All that were measured, in the order of the tables."""
    for task in TASKS:
        clocks = results.get(task, {}).get("clocks", {})
        for clock in CLOCKS:
            if clock in clocks:
                times = sorted({int(x.split(", ")[1]) for x in clocks[clock][0]["async"]})
                for each in times:
                    yield Case(task, clock, each, clocks[clock])
    if buffers := results.get("buffers"):
        before = results["amazon"]["clocks"]["heavy-tail"]
        runs = [
            {**x, "smaller": {}, "async": {f"{r}, {buffers['times']}": v for r, v in own.items()}}
            for x, own in zip(before, (y["async"] for y in buffers["runs"]), strict=True)
        ]
        yield Case("amazon", "heavy-tail", buffers["times"], runs, whole=True)


def same_rate(results: Json) -> Case:
    """With M = K, `row` with the rate of the synchronous run."""
    buffers, before = results["buffers"], results["amazon"]["clocks"]["heavy-tail"]
    runs = [
        {**x, "smaller": {}, "async": {f"row, {buffers['times']}": y["same"]}}
        for x, y in zip(before, buffers["runs"], strict=True)
    ]
    return Case("amazon", "heavy-tail", buffers["times"], runs, whole=True)


def fresh(results: Json) -> Case:
    """The same on seeds of its own."""
    buffers = results["buffers"]
    return Case("amazon", "heavy-tail", buffers["times"], buffers["fresh"]["runs"], whole=True)


def fastest(cases: Iterable[Case]) -> Case | None:
    """With `row`, of the cases that end as well as the synchronous run; None if none does."""
    return max((x for x in cases if x.ends_well), key=lambda x: x.ratio("row"), default=None)
