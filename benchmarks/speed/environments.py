"""An environment of its own for each peer, made once and kept in the user's cache.

$FEDROWS_BENCH_ENVS, or fedrows/bench in the user's cache
  pfl/             a virtual environment
    installed.txt  the requirements it was made for: when they change, it is made anew
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from fedrows.errors import FedrowsError
from fedrows.files.cache import cache_folder

_STAMP = "installed.txt"


class PeerError(FedrowsError):
    """A peer that cannot be installed, started or spoken to."""


def folder() -> Path:
    """Where the environments are."""
    if chosen := os.environ.get("FEDROWS_BENCH_ENVS"):
        return Path(chosen)
    return cache_folder() / "bench"


def python_of(name: str, requirements: Path) -> Path:
    """The interpreter of a peer's environment, which is made if it is not there."""
    home, wanted = folder() / name, requirements.read_text("utf-8")
    python, stamp = home / "bin" / "python", home / _STAMP
    if python.exists() and stamp.exists() and stamp.read_text("utf-8") == wanted:
        return python
    print(f"  Making an environment for {name} in {home}, which takes minutes …", flush=True)
    shutil.rmtree(home, ignore_errors=True)
    _do(name, [sys.executable, "-m", "venv", str(home)])
    quiet = ["--quiet", "--disable-pip-version-check"]
    _do(name, [str(python), "-m", "pip", "install", *quiet, "-r", str(requirements)])
    stamp.write_text(wanted, "utf-8")
    return python


def _do(name: str, command: list[str]) -> None:
    """Runs a command, or says why it failed."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        raise _failed(name, str(error)) from error
    if done.returncode:
        lines = [x for x in (done.stdout + done.stderr).splitlines() if x.strip()]
        errors = [line for line in lines if line.startswith("ERROR")]
        raise _failed(name, (errors or lines or ["no reason given"])[-1])


def _failed(name: str, why: str) -> PeerError:
    why = why.removeprefix("ERROR:").strip().rstrip(".:")
    return PeerError(
        f"The environment of {name} cannot be made ({why}): see that pip reaches a package index, "
        "or leave it out with --only."
    )
