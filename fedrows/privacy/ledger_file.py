"""A ledger on disk, of one run or of all runs over the same data: what they spent, line by line.

    {"run": "3f…", "round": 5, "entries": [{"kind": "model/user-replaced", …}]}

A line is on the disk before anything that it pays for is released. A process that is killed in
between has paid for nothing, and never the other way round. A run that goes on from an older
checkpoint spends again for the rounds that it does again, and both lines count.

Permanent answers and other series are bounded within a run. Over runs their bounds add up.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO

from fedrows.errors import RunFolderError
from fedrows.files.whole import as_json, reason, sync_folder, wait_for_lock
from fedrows.privacy.ledger import Entry, Ledger


@dataclass(frozen=True)
class Spending:
    """What one run has spent at once."""

    run: str
    round: int  # 0: before the first
    entries: tuple[Entry, ...]


class LedgerFile:
    """A ledger on disk that several runs may append to; only its owner may read it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._read: list[Spending] = []
        self._at = 0  # bytes that were read

    def spendings(self) -> list[Spending]:
        """Everything that was spent, by any run; nothing if there is no file yet."""
        if not self.path.exists():
            return []
        with self._opened("rb") as file:
            self._go_on(file)
        return self._read

    def of(self, run: str) -> list[Spending]:
        """What one run has spent."""
        return [each for each in self.spendings() if each.run == run]

    def ledger(self, delta: float) -> Ledger:
        """All runs' entries in one ledger; a series is of its run."""
        return combined(self.spendings(), delta)

    def append(
        self, spending: Spending, allowed: Callable[[Sequence[Spending]], None] = lambda _: None
    ) -> None:
        """Puts what will be spent on the disk; the release comes after that.

        allowed: is called with what was spent before, while nobody else can append, and raises if
        this would be too much.
        """
        line = {
            "run": spending.run,
            "round": spending.round,
            "entries": [entry.to_json() for entry in spending.entries],
        }
        with self._opened("r+b") as file:
            self._go_on(file)
            allowed(self._read)
            file.truncate(self._at)  # a line that was cut short has paid for nothing
            file.seek(self._at)
            try:
                file.write(as_json(line))
                file.flush()
                os.fsync(file.fileno())
            except OSError:
                file.truncate(self._at)
                raise
            self._read.append(spending)
            self._at = file.tell()

    def _go_on(self, file: IO[bytes]) -> None:
        """Reads the lines that have come since, but for a last one that was cut short."""
        if os.fstat(file.fileno()).st_size < self._at:
            self._read, self._at = [], 0  # another file has taken its name
        file.seek(self._at)
        for line in file.read().split(b"\n")[:-1]:
            try:
                self._read.append(_spending(json.loads(line)))
            except (ValueError, KeyError, TypeError):
                raise RunFolderError(
                    f"Line {len(self._read) + 1} of {self.path} is not one of a ledger: restore "
                    "the file, or name another with --ledger."
                ) from None
            self._at += len(line) + 1

    @contextmanager
    def _opened(self, mode: str) -> Iterator[IO[bytes]]:
        """The file, which other processes wait for; it is made if it is to be written."""
        try:
            flags = os.O_RDONLY if mode == "rb" else os.O_RDWR | os.O_CREAT
            new = not self.path.exists()
            with os.fdopen(os.open(self.path, flags, 0o600), mode, buffering=0) as file:
                wait_for_lock(file.fileno())
                if new:
                    sync_folder(self.path.parent)
                yield file
        except RunFolderError:
            raise
        except OSError as error:
            raise RunFolderError(
                f"The ledger {self.path} cannot be used ({reason(error)}), and nothing was "
                "released: mend that, or name another file with --ledger."
            ) from error


def combined(spendings: Sequence[Spending], delta: float) -> Ledger:
    """The entries of several runs in one ledger; a series is bounded within its run alone."""
    ledger = Ledger(delta)
    for each in spendings:
        ledger.add_(*of_run(each.run, each.entries))
    return ledger


def of_run(run: str, entries: Sequence[Entry]) -> list[Entry]:
    """Entries as a ledger of many runs has them: a series has the name of its run."""
    return [
        replace(entry, mechanism=f"{entry.mechanism}, run {run}") if entry.series else entry
        for entry in entries
    ]


def _spending(line: dict[str, object]) -> Spending:
    run, round_, entries = line["run"], line["round"], line["entries"]
    if not (isinstance(run, str) and isinstance(round_, int) and isinstance(entries, list)):
        raise ValueError
    return Spending(run, round_, tuple(Entry.from_json(each) for each in entries))
