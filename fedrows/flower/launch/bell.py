"""A bell between processes of one machine: who waits wakes up as soon as another one rings.

A bell is a file, and ringing changes its time. Any number of processes may ring and wait, they need
no connection, and a bell that is rung while nobody waits is heard by the next who does.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

BELL = "FEDROWS_BELL"  # the environment variable with a bell's path
TICK = 0.01  # seconds between two looks at the file


class Bell:
    """A bell at a path; without one it is never heard."""

    def __init__(self, path: str | Path | None) -> None:
        self._path = str(path) if path else ""
        self._heard = self._rung()

    def ring(self) -> None:
        """Wakes up whoever waits."""
        if not self._path:
            return
        now = time.time_ns()
        try:
            os.utime(self._path, ns=(now, now))
        except OSError:
            Path(self._path).touch(mode=0o600)

    def wait(self, seconds: float, sooner: Callable[[], bool] = lambda: False) -> bool:
        """Waits for the bell, or until `sooner` is true; False if the time is over first."""
        until = time.monotonic() + seconds
        while True:
            if (rung := self._rung()) != self._heard:
                self._heard = rung
                return True
            if sooner():
                return True
            if (left := until - time.monotonic()) <= 0:
                return False
            time.sleep(min(left, TICK))

    def _rung(self) -> int:
        """When it was rung last; 0 for never."""
        try:
            return os.stat(self._path).st_mtime_ns
        except OSError:
            return 0
