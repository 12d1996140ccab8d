"""How a run is asked to stop."""

from __future__ import annotations

import signal
from contextlib import suppress
from types import FrameType
from typing import Any


class Stop:
    """Ctrl-C and SIGTERM ask a run to stop after its round; a second Ctrl-C stops at once."""

    def __init__(self) -> None:
        self.asked = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Stop:
        with suppress(ValueError):  # not the main thread: nobody presses keys there
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._ask)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _ask(self, number: int, frame: FrameType | None) -> None:
        if self.asked and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.asked = True
