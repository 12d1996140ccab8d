"""Signals that ask a process to end, such as SIGTERM, heard as Ctrl-C is."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

# A terminal that is closed sends SIGHUP, and Ctrl-\ SIGQUIT; batch systems send any of them.
_NAMES = ("SIGTERM", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2", "SIGXCPU")
ENDING = [getattr(signal, name) for name in _NAMES if hasattr(signal, name)]  # Windows has one


class AskedToEnd(KeyboardInterrupt):
    """A signal that asks a process to end as Ctrl-C does."""


@contextmanager
def handling(
    numbers: list[signal.Signals], handle: Callable[[int, FrameType | None], None]
) -> Iterator[None]:
    """Calls `handle` where one of these signals would end this process without a word.

    A SIGHUP that is ignored stays ignored: `nohup` asks for that.
    """
    before = {}
    try:
        for number in numbers:
            if number.name == "SIGHUP" and signal.getsignal(number) == signal.SIG_IGN:
                continue
            before[number] = signal.signal(number, handle)
    except ValueError:  # not the main thread, which alone hears signals
        pass
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def hearing_signals() -> Iterator[None]:
    """Raises AskedToEnd where SIGTERM, or another such signal, would end this process."""

    def leave(number: int, frame: FrameType | None) -> None:
        raise AskedToEnd

    with handling(ENDING, leave):
        yield
