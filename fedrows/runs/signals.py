"""SIGTERM, heard as Ctrl-C is."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class AskedToEnd(KeyboardInterrupt):
    """SIGTERM, which asks a process to end as Ctrl-C does."""


@contextmanager
def hearing_sigterm() -> Iterator[None]:
    """Raises AskedToEnd where SIGTERM would end this process without a word."""

    def leave(number: int, frame: FrameType | None) -> None:
        raise AskedToEnd

    try:
        before = signal.signal(signal.SIGTERM, leave)
    except ValueError:  # not the main thread
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
