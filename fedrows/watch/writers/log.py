"""A line of the log for every round, evaluation and event."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fedrows.watch import logs
from fedrows.watch.observer import RoundReport, RunInfo, metrics_of
from fedrows.watch.watching import Watching

WARNINGS = {
    "rejected",
    "failed",
    "repeated",
    "node-lost",
    "node-left",
}  # events that someone should look at
CONFIG = ("task", "algorithm", "plan")  # what a log says of a run's settings


def opened(watching: Watching) -> LogWriter | None:
    """The log that was asked for; a file without a form is one of text."""
    form = watching.log or ("text" if watching.log_file else "off")
    if form == "off":
        return None
    path = Path(watching.log_file) if watching.log_file else None
    return LogWriter(logs.start(form, path, watching.log_level))


class LogWriter:
    """Says everything to the logger `fedrows.run`."""

    def __init__(self, handler: logging.Handler | None = None) -> None:
        self._handler = handler
        self._logger = logging.getLogger("fedrows.run")
        self._name, self._at, self._going = "", 0, False

    def begin(self, run: RunInfo) -> None:
        self._name, self._at, self._going = run.name, run.at, True
        config = {name: run.config[name] for name in CONFIG if name in run.config}
        self._say("begin", {"rounds": run.rounds, **config})

    def round(self, report: RoundReport) -> None:
        self._at = report.round
        level = logging.WARNING if any(report.rejected.values()) else logging.INFO
        away = {name: round(x.away, 1) for name, x in report.nodes.items() if x.away is not None}
        buffer = None if report.buffer is None else asdict(report.buffer)
        more = {"nodes": len(report.nodes) or None, "away": away, "buffer": buffer}
        self._say("round", {**vars(report), **more}, level)

    def measured(self, line: Mapping[str, Any]) -> None:
        self._at = line["round"]
        self._say("measured", metrics_of(line))

    def event(self, name: str, fields: Mapping[str, Any]) -> None:
        level = logging.WARNING if name in WARNINGS else logging.INFO
        self._say(name, fields, level)

    def end(self, done: bool) -> None:
        self._going = False
        self._say("end" if done else "stopped", {})

    def close(self) -> None:
        if self._going:
            self._going = False
            self._say("broken off", {}, logging.WARNING)
        if self._handler is not None:
            logs.stop(self._handler)
            self._handler = None

    def _say(self, what: str, fields: Mapping[str, Any], level: int = logging.INFO) -> None:
        known = {name: x for name, x in fields.items() if x is not None and x != {}}
        where = {"run": self._name, "round": self._at}
        self._logger.log(level, "%s", what, extra={"fields": where | known})
