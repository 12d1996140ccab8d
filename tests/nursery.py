"""Starts the processes of federations from one that has imported torch and flwr already.

A SuperLink or a node imports for several seconds of processor time before it does anything, and a
federation has ten such processes. Here they are forked from one process that did so once. What they
run is the same: `main` of the module that the command names. A command that needs an interpreter of
its own, or another path than this process, is started as ever; so are those of tests that are about
starting.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

MODULES = (
    "fedrows.flower.launch.superlink",
    "fedrows.flower.launch.supernode",
    "fedrows.flower.launch.warm_executor",
)
COMMANDS = ("flower-superlink", "flower-supernode", "flwr-clientapp", "flwr-serverapp")


def patience() -> float:
    """Seconds for which a server waits for a node that is gone: more on a machine with more to do.

    What is too short loses nodes that are there, and what is too long is waited for in vain.
    """
    return 2.0 + 3.0 * max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))


class Nursery:
    """A process that forks others; `start` is like `subprocess.Popen` for what a group starts."""

    def __init__(self, home: Path) -> None:
        from fedrows.flower.launch.processes import environment

        self._lock = threading.Lock()
        self._environment = environment(home, "")
        self._socket, far = socket.socketpair()
        with far:
            self._process = subprocess.Popen(
                [sys.executable, __file__, str(far.fileno())],
                pass_fds=[far.fileno()],
                stdin=subprocess.DEVNULL,
                env=self._environment,
            )

    def start(
        self,
        command: Sequence[str],
        *,
        env: Mapping[str, str],
        stdout: Any,
        umask: int,
        process_group: int,
        **more: Any,
    ) -> Any:
        """A process that runs a command."""
        own = command[:2] == [sys.executable, "-m"] and command[2] in MODULES
        if not own or env["PYTHONPATH"] != self._environment["PYTHONPATH"]:
            more |= {"env": env, "stdout": stdout, "umask": umask, "process_group": process_group}
            return subprocess.Popen(command, **more)
        wanted = {"words": command[2:], "env": env, "umask": umask, "group": process_group}
        return Child(self, self.ask(wanted, [stdout.fileno()]))

    def ask(self, request: Mapping[str, Any], files: Sequence[int] = ()) -> Any:
        """The process's answer."""
        text = json.dumps(request).encode()
        with self._lock:
            socket.send_fds(self._socket, [len(text).to_bytes(4, "big")], files)
            self._socket.sendall(text)
            return json.loads(self._socket.recv(64))

    def close(self) -> None:
        """Ends the process; what it has forked ends with it."""
        self._socket.close()
        self._process.wait()


class Child:
    """A forked process, as far as a group needs one."""

    def __init__(self, nursery: Nursery, pid: int) -> None:
        self.nursery, self.pid = nursery, pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """The exit code, if the process has ended."""
        if self.returncode is None:
            self.returncode = self.nursery.ask({"poll": self.pid})
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """The exit code, when the process has ended."""
        until = None if timeout is None else time.monotonic() + timeout
        while (code := self.poll()) is None:
            if until is not None and time.monotonic() > until:
                raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0.0)
            time.sleep(0.01)
        return code


def serve(asked: socket.socket) -> tuple[dict[str, Any], int] | None:
    """Forks what is asked for until nobody asks any more; in a fork, what it is to be."""
    from fedrows.flower.launch.flwr_calls import load_command
    from fedrows.flower.launch.warm_executor import _preload

    for name in MODULES:
        importlib.import_module(name)
    for name in COMMANDS:
        load_command(name)
    _preload()
    gc.freeze()
    codes: dict[int, int] = {}  # of children that have ended
    while True:
        head, files, _, _ = socket.recv_fds(asked, 4, 1)
        if not head:
            return None
        request = json.loads(asked.recv(int.from_bytes(head, "big"), socket.MSG_WAITALL))
        answer: int | None
        if "poll" in request:
            child = request["poll"]
            if child not in codes:  # several threads may ask for one process
                pid, status = os.waitpid(child, os.WNOHANG)
                codes |= {child: os.waitstatus_to_exitcode(status)} if pid else {}
            answer = codes.get(child)
        else:
            codes.pop(answer := os.fork(), None)  # a number that is used again
            if not answer:
                asked.close()
                return request, files[0]
            with suppress(OSError):  # the fork may have done so
                os.setpgid(answer, request["group"])
            os.close(files[0])
        asked.sendall(json.dumps(answer).encode())


def become(request: Mapping[str, Any], log: int) -> int:
    """Runs a command in this process; its exit code."""
    from fedrows.flower.launch.processes import PARENT
    from fedrows.flower.launch.warm_executor import _reseed

    with suppress(OSError):
        os.setpgid(0, request["group"])
    os.umask(request["umask"])
    for stream in (1, 2):
        os.dup2(log, stream)
    os.close(log)
    os.environ.clear()
    os.environ.update(request["env"])
    os.environ[PARENT] = str(os.getppid())
    signal.signal(signal.SIGINT, signal.default_int_handler)
    _reseed()
    name, *words = request["words"]
    sys.argv = [name, *words]
    code: int = importlib.import_module(name).main()
    return code


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # it ends with who has started it
    wanted = serve(socket.socket(fileno=int(sys.argv[1])))
    sys.exit(wanted and become(*wanted))
