"""Kernels for a CPU, a `.cpp` file each, compiled by the machine's own compiler when first needed.

A library is kept in the user's cache, by what went into it: the source, the compiler and what the
processor can do. Two processes that compile at the same time leave one whole file.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

from fedrows.files.cache import cache_folder

_FOLDER = Path(__file__).parent
_FLAGS = ("-O3", "-march=native", "-std=c++17", "-pthread")
_PATIENCE = 120  # seconds; it takes two or three


class Missing(Exception):
    """Why there is no kernel, in a few words."""


@cache
def library(name: str) -> ctypes.CDLL:
    """The functions of name.cpp, or a Missing error."""
    if os.name != "posix":
        raise Missing(f"{platform.system()} has no compiler that is known here")
    paths = [_FOLDER / f"{name}.cpp", *sorted(_FOLDER.glob("*.h"))]  # and what it may include
    source = b"\0".join(path.read_bytes() for path in paths)
    compiler = _compiler()
    # What the compiler has defined beforehand names its version and all that the processor has.
    known = _run([compiler, *_FLAGS, "-x", "c++", "-dM", "-E", os.devnull])
    key = hashlib.sha256(b"\0".join([source, known, " ".join(_FLAGS).encode()])).hexdigest()
    kept = _cache() / f"{name}-{key[:20]}.so"
    try:
        return ctypes.CDLL(str(kept))
    except OSError:  # it is not there yet, or broken
        _compile(compiler, _FOLDER / f"{name}.cpp", kept)
    try:
        return ctypes.CDLL(str(kept))
    except OSError as error:
        raise Missing(f"{kept} cannot be loaded: {error}") from error


def why_missing(name: str, right: Callable[[], bool]) -> str | None:
    """Why name.cpp cannot be used here, or None; `right` tries it out before it is trusted."""
    try:
        library(name)
    except Missing as error:
        return str(error)
    return None if right() else "the compiled kernel's results are wrong"


def call(name: str, function: str, sizes: Sequence[int], places: Sequence[int]) -> None:
    """Runs a function of name.cpp on its sizes and on arrays at these places in memory."""
    numbers = (ctypes.c_int64 * len(sizes))(*sizes)
    arrays = (ctypes.c_void_p * len(places))(*places)
    getattr(library(name), function)(numbers, arrays)


def _compiler() -> str:
    asked = os.environ.get("CXX")
    for each in [asked] if asked else ["c++", "g++", "clang++"]:
        if path := shutil.which(each):
            return path
    if asked:
        raise Missing(f"there is no {asked}, which $CXX names")
    raise Missing("there is no C++ compiler (g++ or clang++)")


def _cache() -> Path:
    """A folder that nobody else can put a library into."""
    try:
        folder = cache_folder() / "kernels"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        about = folder.stat()
    except (OSError, RuntimeError) as error:  # or there is no home
        raise Missing(
            f"there is no folder for kernels, name one by XDG_CACHE_HOME: {error}"
        ) from error
    if about.st_uid != os.getuid() or about.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise Missing(f"others can write into {folder}: make it yours alone (chmod 700)")
    return folder


def _compile(compiler: str, source: Path, to: Path) -> None:
    try:
        number, made = tempfile.mkstemp(suffix=".so", dir=to.parent)
        os.close(number)
    except OSError as error:
        raise Missing(f"{to.parent} cannot be written: {error.strerror}") from error
    try:
        _run([compiler, *_FLAGS, "-shared", "-fPIC", "-o", made, str(source)])
        os.replace(made, to)
    finally:
        Path(made).unlink(missing_ok=True)


def _run(command: list[str]) -> bytes:
    try:
        done = subprocess.run(command, capture_output=True, timeout=_PATIENCE, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Missing(f"{command[0]} did not run: {error}") from error
    if done.returncode:
        lines = done.stderr.decode(errors="replace").strip().splitlines() or [""]
        raise Missing(f"{command[0]} failed: {lines[0]}")
    return done.stdout
