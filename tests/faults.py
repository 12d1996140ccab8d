"""Faults for real federations: a relay that counts, resets or slows connections, clocks to set."""

from __future__ import annotations

import contextlib
import math
import random
import socket
import struct
import threading
import time
from pathlib import Path

from fedrows.flower.launch.federation import LocalFederation

# Processes of a federation ask for the time here. What is added to it is in the file `clock` of
# their own home; only these tests put this file on the path.
CLOCK = """
import os

home = os.environ.get("FLWR_HOME")
if home and os.environ.get("FEDROWS_FEDERATION"):
    import datetime

    import flwr.supercore.date as date

    def now():
        try:
            with open(os.path.join(home, "clock")) as file:
                offset = float(file.read() or 0)
        except OSError:
            offset = 0.0
        return datetime.datetime.now(tz=datetime.UTC) + datetime.timedelta(seconds=offset)

    date.now = now
"""


class FaultyRelay:
    """Passes connections on to a port; `rate` is the share of them that is reset.

    While there is a rate, no connection is kept for long, so that there are many. What is passed
    on waits `delay` seconds, and then takes its time at `speed` bytes a second.
    """

    def __init__(self, port: int, seed: int = 0) -> None:
        self.to, self.rate, self.resets = port, 0.0, 0
        self.delay, self.speed, self.up, self.down = 0.0, math.inf, 0, 0  # the last two: bytes
        self._draw = random.Random(seed)
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._socket.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            near, _ = self._socket.accept()
            try:
                far = socket.create_connection(("127.0.0.1", self.to))
            except OSError:
                near.close()
                continue
            doomed = self._draw.random() < self.rate
            left = [self._draw.randint(1, 12) if doomed else 60]
            for way in ((near, far, "up"), (far, near, "down")):
                threading.Thread(target=self._pass, args=(*way, left, doomed), daemon=True).start()

    def _pass(
        self, one: socket.socket, other: socket.socket, way: str, left: list[int], doomed: bool
    ) -> None:
        with contextlib.suppress(OSError):
            while data := one.recv(65536):
                left[0] -= 1
                if doomed and left[0] == 0:
                    self.resets += 1
                    for end in (one, other):
                        end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                    break
                time.sleep(self.delay + len(data) / self.speed)
                other.sendall(data)
                setattr(self, way, getattr(self, way) + len(data))
                if self.rate and left[0] < 0:
                    break
        for end in (one, other):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()


class FaultyFederation(LocalFederation):
    """A federation whose nodes reach the SuperLink through a relay, and whose clocks can be set."""

    relay: FaultyRelay | None = None

    def begin_node(self, index: int) -> None:
        own = self.port
        self.relay = self.relay or FaultyRelay(own)
        self.port = self.relay.port
        try:
            super().begin_node(index)
        finally:
            self.port = own

    def set_clock(self, name: str, seconds: float) -> None:
        """Sets the clock of a process forward by some seconds."""
        (self.folder / "home" / name / "clock").write_text(str(seconds))

    def limit_files(self, size: int) -> None:
        """Lets no file of the SuperLink grow beyond a size, as on a full disk; -1 undoes it."""
        import resource

        assert self.link is not None
        pid = self.link.processes["superlink"].pid
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))

    def ended(self) -> list[str | None]:
        """The processes of nodes and of the SuperLink that have ended."""
        groups = [*self.groups.values(), *([self.link] if self.link else [])]
        return [group.ended for group in groups if group.ended]


def install_clock(folder: Path) -> Path:
    """A folder for PYTHONPATH, with clocks that can be set."""
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(CLOCK)
    return folder
