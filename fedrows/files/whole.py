"""Files that are written whole or not at all, and JSON as they hold it.

A file is written in a folder beside its place, .NAME.WRITER.part, and moved out of it in one step.
A process that is killed leaves that folder behind, with whatever a library has put there. Whoever
writes beside it next removes it.
"""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from fedrows.errors import RunFolderError

Json = dict[str, Any]


def write_whole(path: Path, data: bytes) -> None:
    """Puts a file in its place in one step, on the disk when it returns."""
    with placing(path) as part:
        write_through(part, data)


def write_private(path: Path, data: bytes) -> None:
    """Puts a file that only the user may read in its place in one step, on the disk at once."""
    with placing(path) as part, _opened_privately(part) as file:
        _put_through(file, data)


def write_briefly(path: Path, data: bytes) -> None:
    """Puts a file that only the user may read in its place in one step, not on the disk at once.

    No killed process loses it. A machine that loses its power may, so it is for what may get lost.
    """
    part = path.with_name(f".{path.name}.{threading.get_native_id()}.part")
    try:
        with _opened_privately(part) as file:
            file.write(data)
        os.replace(part, path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def _opened_privately(path: Path) -> IO[bytes]:
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb")


def make_private(folder: Path) -> None:
    """Makes a folder, and those above it that are missing, which only the user may read."""
    for part in (*reversed(folder.parents), folder):
        if not part.exists():
            part.mkdir(mode=0o700, exist_ok=True)


def write_through(path: Path, data: bytes) -> None:
    """Writes a file, on the disk when it returns."""
    with path.open("wb") as file:
        _put_through(file, data)


def _put_through(file: IO[bytes], data: bytes) -> None:
    file.write(data)
    file.flush()
    os.fsync(file.fileno())


@contextmanager
def placing(path: Path) -> Iterator[Path]:
    """A name to write to; what was written there then takes the place of `path`."""
    with part_beside(path) as part:
        yield part / path.name
        os.replace(part / path.name, path)
        sync_folder(path.parent)


def sync_folder(path: Path) -> None:
    """Waits until the names of new files in a folder are on the disk."""
    with suppress(OSError):  # not every system lets a folder be synced
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def wait_for_lock(handle: int) -> bool:
    """Waits until no other process has locked an open file, and locks it; closing it lets go.

    False: the system or the file system has no locks.
    """
    try:
        import fcntl

        fcntl.flock(handle, fcntl.LOCK_EX)
    except (ImportError, OSError):
        return False
    return True


@contextmanager
def part_beside(path: Path) -> Iterator[Path]:
    """A folder beside `path` to write in, which goes in the end.

    It is locked: a process on another machine, or in another container, sees that it is in use.
    """
    remove_leftovers(path.parent)
    writer = threading.get_native_id()  # of the main thread: the number of its process
    part = path.with_name(f".{path.name}.{writer}.part")
    part.mkdir(mode=0o700, exist_ok=True)
    try:
        with _locked(part):
            yield part
    finally:
        shutil.rmtree(part, ignore_errors=True)


@contextmanager
def _locked(part: Path) -> Iterator[None]:
    """Holds a lock on a folder, where the system and the file system have locks."""
    try:
        import fcntl
    except ImportError:  # Windows
        yield
        return
    handle = os.open(part, os.O_RDONLY)
    try:
        with suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
        yield
    finally:
        os.close(handle)


def remove_leftovers(folder: Path) -> None:
    """Removes what processes that were killed have left of files that they were writing.

    It stays if a process or thread of that number runs here, or if somebody holds its lock.
    """
    try:
        import fcntl

        names = [name for name in os.listdir(folder) if name.endswith((".part", ".part.old"))]
    except (ImportError, OSError):
        return
    for part in (folder / name for name in names):
        writer = re.fullmatch(r"\..+\.(\d+)\.part(\.old)?", part.name)
        if writer is None or is_running(int(writer[1])):
            continue
        with suppress(OSError):  # somebody else has removed it, or holds its lock
            handle = os.open(part, os.O_RDONLY)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                remove(part)
            finally:
                os.close(handle)


def remove(path: Path) -> None:
    """Removes a file, or a folder and all that is in it."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def is_running(number: int) -> bool:
    """Whether a process or a thread of this number runs here."""
    try:
        os.kill(number, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:  # somebody else's
        pass
    return True


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


def unwritable(path: Path, error: OSError) -> RunFolderError:
    """The error of a folder or a file that cannot be written."""
    return RunFolderError(
        f"{path} cannot be written ({reason(error)}): make room for it, or choose another folder."
    )
