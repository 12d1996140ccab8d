"""Stays with the processes of a SuperLink or a node: repeats their notices, starts a node again."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from fedrows.files.whole import reason
from fedrows.flower.launch.notices import EVERY, notices_in
from fedrows.flower.launch.processes import (
    MARK,
    LaunchError,
    ProcessGroup,
    end_marked,
    undisturbed,
)
from fedrows.flower.launch.starting import why_ended
from fedrows.runs.signals import AskedToEnd, hearing_signals

LONGEST_PAUSE = 30.0  # seconds before a node is started again
STEADY = 60.0  # seconds after which a node counts as running well
ROOM = 65536  # bytes that must find room on a disk


class Repeater:
    """Repeats the notices in the logs of a group, each as soon as it is written."""

    def __init__(self, group: ProcessGroup, say: Callable[[str], None]) -> None:
        self._group, self._say = group, say
        self._read: dict[Path, int] = {}

    def __call__(self) -> bool:
        """Says what is new; True if that was anything."""
        sentences = [s for name in self._group.processes for s in self._new(self._group.log(name))]
        for sentence in sentences:
            self._say(sentence)
        return bool(sentences)

    def _new(self, log: Path) -> list[str]:
        try:
            size, begin = log.stat().st_size, self._read.get(log, 0)
            if size == begin:
                return []
            with log.open("rb") as file:
                file.seek(begin if begin < size else 0)  # a log of another start is a new file
                text = file.read()
        except OSError:
            return []
        lines = text[: text.rfind(b"\n") + 1]
        self._read[log] = (begin if begin < size else 0) + len(lines)
        return notices_in(lines.decode("utf-8", "replace"))


class DiskWatch:
    """Says, every few seconds, that a folder has no room left: its log has none either."""

    def __init__(self, folder: Path, say: Callable[[str], None]) -> None:
        self._folder, self._say = folder, say
        self._next = 0.0

    def __call__(self) -> bool:
        """Tries to write; True if that failed."""
        if time.monotonic() < self._next:
            return False
        self._next = time.monotonic() + EVERY / 2
        trial = self._folder / ".room"
        try:
            trial.write_bytes(b"\0" * ROOM)
        except OSError as error:
            self._say(
                f"{self._folder} cannot be written ({reason(error)}): rounds stand still until "
                "there is room, and then go on."
            )
            self._next = time.monotonic() + EVERY
            return True
        finally:
            with contextlib.suppress(OSError):
                trial.unlink()
        return False


class DatabaseWatch:
    """Says that the SuperLink's database is gone, while the SuperLink still has it open."""

    def __init__(self, database: Path, say: Callable[[str], None]) -> None:
        self._database, self._say = database, say
        self._file: int | None = None  # the inode that was there
        self._next = 0.0

    def __call__(self) -> bool:
        """Looks for the file; True if it is gone or another one."""
        if time.monotonic() < self._next:
            return False
        self._next = time.monotonic() + EVERY
        try:
            file = self._database.stat().st_ino
        except OSError:
            file = None
        self._file = self._file or file
        if file == self._file:
            return False
        self._say(
            f"{self._database} was deleted or replaced. Runs go on while this SuperLink runs; the "
            "next start knows neither runs nor nodes: admit the nodes again then."
        )
        return True


def supervise(
    group: ProcessGroup,
    begin: Callable[[], None],
    look: Callable[[], str | None] = lambda: None,
    repeat: Callable[[], bool] = lambda: False,
    again: Callable[[str], None] | None = None,
) -> int:
    """Starts a group and stays with it; 0 when asked to end, an error when one of it ends.

    look: a sentence as soon as there is a reason to give up, which is then the error.
    repeat: is called all the time, and says what goes wrong.
    again: the group is started again when one of it ends; gets the sentence that says why.
    """
    try:
        with hearing_signals():
            begin()
            pauses, since = _pauses(), time.monotonic()
            while True:
                repeat()
                if (sentence := look()) is not None:
                    raise LaunchError(sentence)
                if (ended := group.ended) is not None:
                    if again is None:
                        raise LaunchError(why_ended(group, ended))
                    pauses = _pauses() if time.monotonic() - since > STEADY else pauses
                    _start_again(group, begin, pauses, why_ended(group, ended), again)
                    since = time.monotonic()
                time.sleep(0.2)
    except AskedToEnd:
        return 0
    finally:
        with undisturbed():
            group.stop()
            end_marked(group.environment[MARK])


def _start_again(
    group: ProcessGroup,
    begin: Callable[[], None],
    pauses: Iterator[float],
    why: str,
    say: Callable[[str], None],
) -> None:
    """Starts a group again, after longer and longer pauses, until it has begun."""
    while True:
        pause = next(pauses)
        say(f"{why} It is started again in {pause:g} s.")
        group.stop()
        time.sleep(pause)
        try:
            begin()
            return
        except (LaunchError, OSError) as error:
            why = str(error)


def _pauses() -> Iterator[float]:
    """1, 2, 4, … seconds, and then the longest for ever."""
    pause = 1.0
    while True:
        yield pause
        pause = min(2 * pause, LONGEST_PAUSE)
