"""A client half that lives through the end of its process: its seed and what it was sent.

A client half is a function of its inputs, its randomness and the requests it gets. So it is enough
to keep a seed and the requests: after a restart it is run again from the start, silently, and goes
on where it was. The file is as secret as the masks, belongs to one sum, and goes when that ends.

It is not brought to the disk at once. A machine that loses its power may come back with an older
version, and an answer to another request from there would show the difference of two masks. So a
half is for the time until the machine starts again.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from fedrows.files.whole import make_private, write_briefly, write_private
from fedrows.privacy.messages import pack, unpack
from fedrows.privacy.protocol import ClientHalf, ProtocolError
from fedrows.privacy.randomness import replaying

C = TypeVar("C")
SEED = 32
MOST = 8  # requests to a half: more than any protocol has
BOOT = Path("/proc/sys/kernel/random/boot_id")  # of Linux: another one whenever the machine starts


@dataclass(frozen=True)
class Done(Generic[C]):
    """A client half has returned."""

    result: C


@dataclass(frozen=True)
class SavedHalf:
    """The file of one client's half in one sum."""

    path: Path

    def begin(self) -> None:
        """A new half; one that was begun before is not begun again, for its masks would repeat."""
        if self.path.exists():
            raise ProtocolError(f"{self.path.name} was begun before: a sum is never begun twice.")
        make_private(self.path.parent)
        self._write([_boot(), os.urandom(SEED)])

    def advance(self, make: Callable[[], ClientHalf[C]], request: bytes) -> bytes | Done[C]:
        """The reply to the next request; the first request only wakes the half up."""
        try:
            boot, seed, *before = unpack(self.path.read_bytes())
        except (OSError, ValueError):
            raise ProtocolError(f"What {self.path.name} was about is lost: it drops out.") from None
        if boot != _boot():
            raise ProtocolError(f"The machine has started since {self.path.name} was begun.")
        if len(before) >= MOST:
            raise ProtocolError(f"{self.path.name} got more requests than a sum has: it drops out.")
        requests = [*before, request if before else b""]  # the first one says nothing
        self._write([boot, seed, *requests])
        with replaying(seed):
            half = make()
            try:
                reply = next(half)
                for sent in requests[1:]:
                    reply = half.send(sent)
            except StopIteration as stop:
                return Done(stop.value)
        return reply

    def _write(self, parts: list[bytes]) -> None:
        write = write_briefly if parts[0] else write_private
        write(self.path, pack(*parts))


def _boot() -> bytes:
    """What tells one start of this machine from another; nothing if the system does not say."""
    try:
        return BOOT.read_bytes().strip()
    except OSError:
        return b""
