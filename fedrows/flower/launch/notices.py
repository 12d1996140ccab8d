"""What goes wrong at the moment: said in the log and to operators, every few seconds at most.

A process of a federation writes notices to its log, as lines that begin with `MARK`. `fedrows
deploy superlink` and `fedrows deploy node` repeat such lines to whoever started them, and the gate
adds them to its answers to operators, so that `fedrows deploy run` and `status` show them too. A
ServerApp is a process beside the SuperLink: it leaves what a run waits for in a file, for the gate.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable
from pathlib import Path

from fedrows.files.whole import write_private

MARK = "fedrows notice: "
NOTICE = "fedrows-notice"  # the header of an answer to an operator
STARTED = "fedrows-started"  # another one: it differs after the SuperLink has started again
LEFT = "FEDROWS_NOTICE"  # the environment variable with the file of a ServerApp's last notice
DATABASE = "database"  # the subject of notices that the SuperLink cannot write
EVERY = 5.0  # seconds between two times that the same is said
KEPT = 12.0  # seconds that a notice is handed to operators after it was true
WINDOW, MANY = 10.0, 3  # so many small troubles within so many seconds are worth a notice
BREAKS = "{n} connections to the SuperLink broke off within 10 s ({why}): they are tried again."
AWAY = ("refused", "unreachable", "no route", "connecttimeout", "name or service")
SAYS = (401, 403, 413, 503)  # answers in which the gate says why


def _print(line: str) -> None:
    with contextlib.suppress(OSError):  # the log's own disk may be full
        print(line, flush=True)


class Notices:
    """Sentences about what goes wrong, by their subject: a newer one takes an older one's place."""

    def __init__(
        self,
        write: Callable[[str], None] = _print,
        clock: Callable[[], float] = time.monotonic,
        left: str | None = None,
    ) -> None:
        """left: the file in which a ServerApp leaves notices, if there is one."""
        self._write, self._clock, self._left = write, clock, left
        self._counted: dict[str, list[float]] = {}
        self._said: dict[str, float] = {}
        self._recent: dict[str, tuple[float, str]] = {}

    def add(self, subject: str, sentence: str) -> None:
        """Notes what goes wrong with a subject; it is written unless it was a moment ago."""
        now = self._clock()
        self._recent = {s: notice for s, notice in self._recent.items() if now - notice[0] < KEPT}
        self._said = {s: at for s, at in self._said.items() if now - at < EVERY}
        self._recent[subject] = (now, sentence)
        if subject not in self._said and len(self._said) < 100:
            self._said[subject] = now
            self._write(MARK + " ".join(sentence.split()))

    def count(self, subject: str, sentence: str) -> None:
        """Notes one of many small troubles; `{n}` in the sentence becomes how many there were."""
        now = self._clock()
        times = [at for at in self._counted.get(subject, ()) if now - at < WINDOW][-999:]
        self._counted[subject] = [*times, now]
        if len(times) + 1 >= MANY:
            self.add(subject, sentence.replace("{n}", str(len(times) + 1)))

    def just_now(self, subject: str) -> str:
        """The sentence about a subject that was true within `EVERY`; empty if none was."""
        at, sentence = self._recent.get(subject, (0.0, ""))
        return sentence if self._clock() - at < EVERY else ""

    def recent(self) -> list[str]:
        """The sentences that were true a moment ago."""
        now = self._clock()
        own = [sentence for at, sentence in self._recent.values() if now - at < KEPT]
        with contextlib.suppress(OSError):
            if self._left and time.time() - Path(self._left).stat().st_mtime < KEPT:
                own.append(Path(self._left).read_text("utf-8"))
        return own


class FailedRequests:
    """Notes why requests of a node or a ServerApp fail; a single broken connection is no news."""

    def __init__(self, notices: Notices | None = None) -> None:
        self.notices = notices or Notices()

    def __call__(self, error: Exception) -> None:
        """Notes an error of httpx."""
        answer = getattr(error, "response", None)
        if answer is None:
            why = " ".join(str(error).split()) or type(error).__name__
            if any(word in why.lower() for word in AWAY):
                self.notices.add("away", f"The server does not answer ({why}): it is tried again.")
                return
            self.notices.count("breaks", BREAKS.replace("{why}", why))
            return
        plain_text = answer.headers.get("content-type", "").startswith("text/plain")
        if plain_text and answer.status_code in SAYS:
            why = " ".join(answer.text.split())[:300]
            # Another reason is said at once, the same one with other numbers is not.
            self.notices.add(re.sub(r"\d+", "", f"refused: {why}"), why)


def leave_notice(sentence: str, left: str | None) -> None:
    """Says what a run waits for, in the log and in the file that the SuperLink's gate reads."""
    _print(MARK + sentence)
    if left:
        with contextlib.suppress(OSError):
            write_private(Path(left), sentence.encode())


def notices_in(text: str) -> list[str]:
    """The sentences of the notices in a log."""
    return [line.removeprefix(MARK) for line in text.splitlines() if line.startswith(MARK)]
