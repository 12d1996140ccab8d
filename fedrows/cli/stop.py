"""How a run is asked to stop."""

from __future__ import annotations

import signal
from contextlib import ExitStack
from types import FrameType

from fedrows.runs.signals import ENDING, handling


class Stop:
    """Ctrl-C, SIGTERM and signals like it ask a run to stop after its round.

    A second Ctrl-C stops at once.
    """

    def __init__(self) -> None:
        self.asked = False
        self._handlers = ExitStack()

    def __enter__(self) -> Stop:
        self._handlers.enter_context(handling([signal.SIGINT, *ENDING], self._ask))
        return self

    def __exit__(self, *_: object) -> None:
        self._handlers.close()

    def _ask(self, number: int, frame: FrameType | None) -> None:
        if self.asked and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.asked = True
