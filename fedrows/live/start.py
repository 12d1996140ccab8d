"""Starts the live page: a socket on loopback, a token, and a process of its own beside a run.

A run that is followed does no work for it: the process reads the run's files, at a lower priority.
It ends when the run's process does, however that ends.
"""

from __future__ import annotations

import json
import os
import secrets
import shlex
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path

from fedrows.errors import FedrowsError
from fedrows.files.whole import reason

NEEDED = ("starlette", "uvicorn")


def check_installed(what: str) -> None:
    """Raises a FedrowsError unless the packages of the live page are there."""
    if any(find_spec(name) is None for name in NEEDED):
        raise FedrowsError(
            f"{what} needs the packages {' and '.join(NEEDED)}: pip install fedrows[live]."
        )


def listen(port: int) -> tuple[socket.socket, str, str]:
    """A socket on loopback, a new token, and the address of the page; port 0 is a free one."""
    listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        if os.name == "posix":
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(("127.0.0.1", port))
        listening.listen(128)
    except OSError as error:
        listening.close()
        raise FedrowsError(
            f"Port {port} cannot be opened ({reason(error)}): name another one, or 0 for a free "
            "one."
        ) from error
    token = secrets.token_urlsafe(24)
    return listening, token, f"http://127.0.0.1:{listening.getsockname()[1]}/?token={token}"


@contextmanager
def beside(paths: Sequence[Path], port: int = 0) -> Iterator[str]:
    """Serves the page in a process of its own meanwhile; gives its address."""
    check_installed("--live")
    if os.name != "posix":
        raise FedrowsError(
            "--live is not made for this system: use `fedrows watch FOLDER` in another terminal."
        )
    listening, token, address = listen(port)
    with listening:
        path = os.pathsep.join(folder or os.getcwd() for folder in sys.path)
        process = subprocess.Popen(
            [sys.executable, "-m", "fedrows.live", str(listening.fileno())],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            pass_fds=[listening.fileno()],
            env={**os.environ, "PYTHONPATH": path},
            start_new_session=True,  # Ctrl-C is for the run, which may still save
        )
    assert process.stdin is not None
    folders = [str(one.absolute()) for one in paths]
    again = shlex.join(["fedrows", "watch", *map(str, paths)])
    sentence = f"The command has ended. To see the page again: {again}"
    settings = {"token": token, "folders": folders, "said": sentence}
    with suppress(OSError):
        process.stdin.write(json.dumps(settings).encode() + b"\n")
        process.stdin.flush()
    try:
        yield address
    finally:
        with suppress(OSError):
            process.stdin.close()  # it ends now
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
