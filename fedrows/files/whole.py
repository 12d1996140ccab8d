"""Files that are written whole or not at all, and JSON as they hold it."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any


def write_whole(path: Path, data: bytes) -> None:
    """Puts a file in its place in one step, on the disk when it returns."""
    with placing(path) as part:
        write_through(part, data)


def write_private(path: Path, data: bytes) -> None:
    """Puts a file that only the user may read in its place in one step, on the disk at once."""
    with placing(path) as part:
        handle = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())


def make_private(folder: Path) -> None:
    """Makes a folder, and those above it that are missing, which only the user may read."""
    for part in (*reversed(folder.parents), folder):
        if not part.exists():
            part.mkdir(mode=0o700, exist_ok=True)


def write_through(path: Path, data: bytes) -> None:
    """Writes a file, on the disk when it returns."""
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


@contextmanager
def placing(path: Path) -> Iterator[Path]:
    """A name beside `path` to write to; what was written there then takes its place."""
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        yield part
        os.replace(part, path)
        with suppress(OSError):  # not every system lets a folder be synced
            handle = os.open(path.parent, os.O_RDONLY)
            try:
                os.fsync(handle)
            finally:
                os.close(handle)
    finally:
        with suppress(OSError):
            part.unlink(missing_ok=True)


def as_json(value: Any, indent: int | None = None) -> bytes:
    """A value as JSON and a line break; NaN and infinity as null."""
    text = json.dumps(finite(value), indent=indent, ensure_ascii=False, allow_nan=False)
    return text.encode() + b"\n"


def finite(value: Any) -> Any:
    """The same value with None for every NaN and infinity in it: JSON knows neither."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(key): finite(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [finite(part) for part in value]
    return value


def reason(error: OSError) -> str:
    """An OSError in a few words."""
    return error.strerror or str(error)
