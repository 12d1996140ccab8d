"""How a study stands while its runs are made: status.json in its folder.

A study's run has no folder of its own until it is finished, so its round is told here.
"""

from __future__ import annotations

import time
from pathlib import Path

from fedrows.runs.status_file import EVERY, STATUS, process_facts, replace_quietly
from fedrows.study.scheduling import ReportProgress

MOST = 200  # runs that are named


def written(folder: Path, progress: ReportProgress | None) -> ReportProgress:
    """The same progress, which is also written into the study's folder."""
    status = _StudyStatus(folder)

    def report(done: int, of: int, label: str, round_: int) -> None:
        status.take_in(done, of, label, round_)
        if progress is not None:
            progress(done, of, label, round_)

    return report


class _StudyStatus:
    def __init__(self, folder: Path) -> None:
        self._path, self._process, self._next = folder / STATUS, process_facts(), 0.0
        self._rounds: dict[str, int] = {}  # of the runs that are being made
        self._done = -1

    def take_in(self, done: int, of: int, label: str, round_: int) -> None:
        finished, self._done = self._done >= 0 and done > self._done, done
        self._rounds[label] = round_
        if finished:
            del self._rounds[label]
        elif len(self._rounds) > MOST:  # those that failed stay
            del self._rounds[next(iter(self._rounds))]
        if time.monotonic() >= self._next or done == of:
            self._next = time.monotonic() + EVERY
            facts = {"done": done, "of": of, "running": self._rounds, "time": time.time()}
            replace_quietly(self._path, self._process | facts)
