"""The control token: by it an operator proves to a SuperLink that they may control it.

It is a file that only the SuperLink's user can read. On the SuperLink's own machine the commands of
that user find it by themselves; on another machine, or as another user, it is named with --token.
"""

from __future__ import annotations

import contextlib
import os
import platform
import re
import secrets
import socket
from collections.abc import Iterator
from pathlib import Path

from fedrows.errors import FedrowsError
from fedrows.files.whole import make_private, reason, write_private

HEADER = b"fedrows-control-token"
FILE = "control.token"


class TokenError(FedrowsError):
    """A control token that is missing or cannot be read."""


def make_token(folder: Path) -> Path:
    """The file of a SuperLink's token in a folder; it is made if it is not there."""
    path = folder / FILE
    if not path.exists():
        make_private(folder)
        write_private(path, f"{secrets.token_hex(32)}\n".encode())
    return path


def read_token(path: Path) -> str:
    """The token in a file; raises a TokenError if there is none."""
    try:
        text = path.read_text("ascii").strip()
    except (OSError, UnicodeError) as error:
        why = reason(error) if isinstance(error, OSError) else "it is not text"
        raise TokenError(
            f"The control token {path} cannot be read ({why}): name the SuperLink's {FILE} with "
            "--token."
        ) from None
    if not re.fullmatch(r"[0-9a-f]{64}", text):
        raise TokenError(
            f"{path} is not a control token: name the SuperLink's {FILE} with --token."
        )
    return text


def publish(path: Path, port: int) -> None:
    """Leaves a copy where the same user's commands look for it, if there is such a folder."""
    with contextlib.suppress(OSError, RuntimeError):
        copy = _known(port)
        make_private(copy.parent)
        write_private(copy, path.read_bytes())


@contextlib.contextmanager
def published(path: Path, port: int) -> Iterator[None]:
    """Leaves such a copy for a while."""
    publish(path, port)
    try:
        yield
    finally:
        with contextlib.suppress(OSError, RuntimeError):
            _known(port).unlink(missing_ok=True)


def find_token(host: str, port: int) -> Path | None:
    """The token of this user's SuperLink on this machine; None if there is none."""
    with contextlib.suppress(OSError, RuntimeError):
        path = _known(port)
        if path.is_file() and is_here(host):
            return path
    return None


def _known(port: int) -> Path:
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(state) / "fedrows" / f"superlink-{platform.node()}-{port}.token"


def is_here(host: str) -> bool:
    """Whether a host is this machine: a token is never shown to another one unasked."""
    for family, _, _, _, address in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM):
        with socket.socket(family, socket.SOCK_STREAM) as trial:
            try:
                trial.bind((address[0], 0))
            except OSError:
                return False
    return True
