"""What there is to see of a run, and the interface of observers."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from fedrows.errors import FedrowsError
from fedrows.measure.metric_choice import measured


class WatchError(FedrowsError, OSError):
    """Measurements that cannot be written where they should be."""


@dataclass(frozen=True)
class RunInfo:
    """A run that begins, or goes on after round `at`."""

    name: str  # a/b is run b of comparison a
    config: Mapping[str, Any] = field(default_factory=dict)  # as config.json has it
    rounds: int = 0
    at: int = 0
    folder: Path | None = None


@dataclass(frozen=True)
class NodeReport:
    """How a node of a deployed run stands after a round."""

    answered: int = 0  # messages, of this process
    last_answer: float | None = None  # seconds since 1970; None: it has not answered yet
    away: float | None = None  # seconds since it last answered, if it does not answer now
    why: str = ""  # why it does not
    refused: Mapping[str, int] = field(default_factory=dict)  # reason → how often


@dataclass(frozen=True)
class BufferReport:
    """How an asynchronous run stands after a step."""

    wanted: int  # M, the updates that make a step
    waiting: int  # updates that have come in for the next one
    under_way: Mapping[str, int]  # clients that train, by node
    ages: Sequence[int]  # of the updates of the step, in steps


@dataclass(frozen=True)
class RoundReport:
    """What happened in one round. Bytes are those of all its clients together."""

    round: int
    asked: int
    answered: int
    dropped: int = 0
    rejected: Mapping[str, int] = field(default_factory=dict)  # reason → uploads
    bytes_down: float | None = None  # None: nothing travels
    bytes_up: float | None = None
    seconds: Mapping[str, float] = field(default_factory=dict)  # phase → seconds
    nodes: Mapping[str, NodeReport] = field(default_factory=dict)  # of a deployed run, by name
    buffer: BufferReport | None = None  # of a deployed run that is asynchronous


class Watcher(Protocol):
    """Someone who is told of every round. A class that extends it has what it wants to hear."""

    def round(self, report: RoundReport) -> None:
        """A round is done."""
        return

    def measured(self, line: Mapping[str, Any]) -> None:
        """A round was evaluated; the line is that of metrics.jsonl."""
        return

    def event(self, name: str, fields: Mapping[str, Any]) -> None:
        """Something else happened, such as a checkpoint or a report that was written."""
        return


@runtime_checkable
class Observer(Watcher, Protocol):
    """Sees how runs go, one run after another."""

    def begin(self, run: RunInfo) -> None:
        """A run begins, or goes on."""

    def end(self, done: bool) -> None:
        """The run is done, or was stopped."""

    def close(self) -> None:
        """There will be no more runs."""


class NumberWriter(Observer, Protocol):
    """An observer that takes everything as numbers by name and round."""

    def add(self, numbers: Mapping[str, float], step: int) -> None:
        """Writes the numbers of a round."""

    def round(self, report: RoundReport) -> None:
        self.add(numbers_of(report), report.round)

    def measured(self, line: Mapping[str, Any]) -> None:
        self.add(metrics_of(line), line["round"])


@runtime_checkable
class Served(Protocol):
    """An observer that can be asked at an address."""

    address: str | None


def metrics_of(line: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of an evaluated round by name; those that have no value are left out."""
    names = (*measured([line]), "bytes_down", "bytes_up", "seconds")
    numbers = {name: line.get(name) for name in names}
    for bucket in line.get("buckets") or ():
        prefix = f"heat/{bucket['low']}-{bucket['high']}"
        numbers |= {f"{prefix}/{name}": bucket.get(name) for name in ("loss", "auc")}
    return {name: float(x) for name, x in numbers.items() if x is not None and math.isfinite(x)}


def numbers_of(report: RoundReport) -> dict[str, float]:
    """The numbers of a round by name."""
    numbers = {
        "round/asked": report.asked,
        "round/answered": report.answered,
        "round/dropped": report.dropped,
        "round/rejected": sum(report.rejected.values()),
        "round/bytes_down": report.bytes_down,
        "round/bytes_up": report.bytes_up,
        **_of_buffer(report.buffer),
        **{f"round/rejected_by/{plain(why)}": count for why, count in report.rejected.items()},
        **{f"round/seconds/{plain(phase)}": x for phase, x in report.seconds.items()},
    }
    return {name: float(x) for name, x in numbers.items() if x is not None}


def _of_buffer(report: BufferReport | None) -> dict[str, float]:
    """The numbers of an asynchronous step by name; none of another."""
    if report is None:
        return {}
    return {
        "round/waiting": report.waiting,
        "round/under_way": sum(report.under_way.values()),
        "round/age_mean": sum(report.ages) / max(len(report.ages), 1),
        "round/age_max": max(report.ages, default=0),
    }


def settings_of(config: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    """A config as a flat list of settings: {"plan": {"lr": 0.1}} has plan.lr."""
    settings: dict[str, Any] = {}
    for name, value in config.items():
        if isinstance(value, Mapping):
            settings |= settings_of(value, f"{before}{name}.")
        else:
            settings[before + name] = value
    return settings


def plain(text: str) -> str:
    """Text as part of a name: letters, digits, - and _ stay what they are."""
    return re.sub(r"[^A-Za-z0-9_-]+", "_", text)
