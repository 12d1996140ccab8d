"""Processes of this machine: started in groups, logged to files, taken down whole.

Everything that is started here carries a mark in its environment, so that what got away from its
group (flwr detaches one of its processes) is found again and ended too.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedrows.errors import FedrowsError
from fedrows.files.whole import make_private

MARK = "FEDROWS_FEDERATION"
PARENT = "FEDROWS_PARENT"
PORT_IN_USE = 98  # the exit code of our SuperLink and SuperNode when their port is taken
GRACE = 6.0  # seconds that a process gets to end by itself


class LaunchError(FedrowsError):
    """A process that did not start, or ended before its time."""


def environment(home: Path, mark: str, **more: str) -> dict[str, str]:
    """The environment of a Flower process: no telemetry, no update check, a home of its own."""
    beside = str(Path(sys.executable).parent)
    package = str(Path(__file__).parents[3])  # a source tree need not be installed
    fixed = {
        "FLWR_HOME": str(home),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "1",  # a bell is rung for those that are urgent
        "NO_COLOR": "1",  # logs are files
        "PYTHONUNBUFFERED": "1",  # a killed process leaves a whole log
        "PYTHONPATH": os.pathsep.join(filter(None, [package, os.environ.get("PYTHONPATH")])),
        "PATH": os.pathsep.join([beside, os.environ.get("PATH", "")]),
        PARENT: str(os.getpid()),
    }
    named = {MARK: mark} if mark else {}
    return {"OMP_NUM_THREADS": "1", **os.environ, **fixed, **named, **more}


def module(name: str, *words: str) -> list[str]:
    """The command that runs a module with this very Python."""
    return [sys.executable, "-m", name, *words]


def value_of(words: Sequence[str], flag: str, usual: str = "") -> str:
    """The value of an option in a command line."""
    return words[words.index(flag) + 1] if flag in words else usual


def free_port(host: str = "127.0.0.1") -> int:
    """A port that nobody listens on at this moment."""
    with socket.socket() as listener:
        listener.bind((host, 0))
        return int(listener.getsockname()[1])


def check_port(host: str, port: int) -> None:
    """Raises a LaunchError if somebody listens on the port already."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, port))
        except OSError as error:
            raise LaunchError(
                f"Port {port} of {host} cannot be listened on ({error.strerror}): stop whoever "
                "has it, or choose another with --port."
            ) from None


class ProcessGroup:
    """Processes that live and die together; each writes its own log file."""

    def __init__(self, logs: Path, environment: Mapping[str, str]) -> None:
        self.logs = logs
        self.environment = environment
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str, command: Sequence[str]) -> subprocess.Popen[bytes]:
        """A process of this group; the first is its leader. The log is appended to.

        Files of the process are its user's alone, the log included.
        """
        leader = next(iter(self.processes.values()), None)
        make_private(self.logs)
        handle = os.open(self.log(name), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        with os.fdopen(handle, "ab") as log:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=dict(self.environment),
                umask=0o077,
                process_group=leader.pid if leader else 0,  # so Ctrl-C reaches us alone
            )
        self.processes[name] = process
        return process

    def log(self, name: str) -> Path:
        """The log file of a process."""
        return self.logs / f"{name}.log"

    @property
    def ended(self) -> str | None:
        """The name of a process that has ended, if one has."""
        return next((n for n, p in [*self.processes.items()] if p.poll() is not None), None)

    def signal(self, number: int) -> None:
        """Sends a signal to every process of the group, children included."""
        if self.processes:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(next(iter(self.processes.values())).pid, number)

    def kill(self) -> None:
        """Ends the group at once."""
        self.signal(signal.SIGKILL)
        self.forget()

    def stop(self, grace: float = GRACE) -> None:
        """Asks the group to end, then ends it."""
        self.signal(signal.SIGCONT)
        self.signal(signal.SIGTERM)
        until = time.monotonic() + grace
        for process in self.processes.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(until - time.monotonic(), 0))
        self.kill()

    def forget(self) -> None:
        """Waits for processes that were killed."""
        for process in self.processes.values():
            process.wait()
        self.processes.clear()

    def tail(self, name: str) -> str:
        """What a process said last that sounds like a reason."""
        with contextlib.suppress(OSError):
            texts = self.log(name).read_text("utf-8", "replace").splitlines()
            lines = [re.sub(r"\x1b\[\d+m", "", text).strip() for text in texts]
            telling = [line for line in lines if re.search(r"(?i)error|fail|fedrows:", line)]
            return "".join(([line for line in lines if line] + telling)[-1:]).rstrip(".")
        return ""


def marked(mark: str) -> Iterator[int]:
    """The processes that carry a mark, as far as this system shows them (Linux does)."""
    wanted = f"{MARK}={mark}".encode()
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if wanted in (entry / "environ").read_bytes().split(b"\0"):
                yield int(entry.name)


def end_marked(mark: str) -> None:
    """Ends whatever still carries a mark, but for this process."""
    if not mark:
        raise ValueError("An empty mark is on processes that are not ours.")
    for _ in range(50):
        left = [pid for pid in marked(mark) if pid != os.getpid()]
        if not left:
            return
        for pid in left:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.1)


def end_with_parent() -> None:
    """Ends this process's whole group when the process that started it is gone.

    For a group whose leader calls this. A parent that was killed cannot take anything down.
    """
    parent = int(os.environ.get(PARENT, "0"))
    if not parent or os.getpgrp() != os.getpid():
        return

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        os.killpg(os.getpgrp(), signal.SIGKILL)

    threading.Thread(target=watch, daemon=True).start()


@contextlib.contextmanager
def undisturbed() -> Iterator[list[int]]:
    """Holds Ctrl-C and SIGTERM back until the block is done; gives the list of those that came."""
    heard: list[int] = []
    before: dict[int, Any] = {}
    with contextlib.suppress(ValueError):  # not the main thread: nobody presses keys there
        for number in (signal.SIGINT, signal.SIGTERM):
            before[number] = signal.signal(number, lambda got, _: heard.append(got))
    try:
        yield heard
    finally:
        for known, handler in before.items():
            signal.signal(known, handler)
        for got in heard:
            signal.raise_signal(got)
