"""Raw data files: where they lie, and how to get them from whoever publishes them.

Nothing is fetched unless asked for. A file arrives beside its place, is checked there, and is moved
into it in one step, so a file that is there is whole, whatever went wrong on the way.
"""

from __future__ import annotations

import hashlib
import http.client
import os
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from fedrows.errors import DataError
from fedrows.files.cache import cache_folder
from fedrows.files.whole import placing

PIECE = 1 << 16  # bytes read at a time
TIMEOUT = 30.0  # seconds without a byte

ReportBytes = Callable[[int, int | None], None]  # (bytes so far, bytes in all if known)


@dataclass(frozen=True)
class Source:
    """A file that somebody publishes, and where it lies here once it was fetched."""

    name: str  # what `fedrows data fetch` calls it
    url: str
    file: str
    folder: str  # its place below the data folder
    licence: str  # what its owner allows, in a sentence
    size: int | None = None  # in bytes, if published
    checksum: str | None = None  # its SHA-256 in hexadecimal, if known


@dataclass(frozen=True)
class Fetched:
    """A file that is in its place; `note` says what is odd about it, if anything."""

    path: Path
    note: str | None = None


def data_folder() -> Path:
    """The folder of raw data: $FEDROWS_DATA, or fedrows in the user's cache."""
    if chosen := os.environ.get("FEDROWS_DATA"):
        return Path(chosen).expanduser()
    return cache_folder()


def path(source: Source) -> Path:
    """Where the file lies, or would."""
    return data_folder() / source.folder / source.file


def require(source: Source) -> Path:
    """Where the file lies; a DataError that says how to get it if it does not."""
    target = path(source)
    if not target.is_file():
        raise DataError(
            f"There is no file {target}: run `fedrows data fetch {source.name}`, "
            f"or put {source.url} there by hand."
        )
    return target


def fetch(
    source: Source,
    progress: ReportBytes | None = None,
    *,
    force: bool = False,
    timeout: float = TIMEOUT,
) -> Fetched:
    """The file in its place, fetched if it is not there; `force` fetches and replaces it anyway.

    A file that is there already is never replaced unasked, even if its checksum is another.
    """
    target = path(source)
    if not force and target.is_file():
        return Fetched(target, _oddity(source, target))
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with placing(target) as part, part.open("wb") as out:
            _download(source, target, out, progress, timeout)
    except OSError as error:  # the disk: what the network does wrong is a DataError by now
        raise DataError(
            f"{target} could not be written ({_reason(error)}): make room there, "
            "or choose another folder with FEDROWS_DATA, and fetch again."
        ) from error
    return Fetched(target)


def _oddity(source: Source, target: Path) -> str | None:
    """What is odd about a file that was there already."""
    if source.checksum is None:
        return None
    try:
        with target.open("rb") as file:
            checksum = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise DataError(f"{target} could not be read ({_reason(error)}).") from error
    if checksum == source.checksum.lower():
        return None
    return (
        f"{target} was there already and is kept, although its SHA-256 is {checksum}, "
        f"not the published {source.checksum}: fetch with --force to replace it."
    )


def _download(
    source: Source, target: Path, out: IO[bytes], progress: ReportBytes | None, timeout: float
) -> None:
    """Writes what the address gives; a DataError unless that is the file that was meant."""

    def failed(what: str) -> DataError:
        return DataError(
            f"{source.file} could not be fetched from {source.url} ({what}): "
            f"try again, or put the file at {target} by hand."
        )

    digest, done = hashlib.sha256(), 0
    try:
        answer = urllib.request.urlopen(source.url, timeout=timeout)
    except urllib.error.HTTPError as error:
        error.close()
        raise failed(f"the server answered {error.code} {error.reason}") from error
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise failed(_reason(error)) from error
    with answer:
        announced = answer.headers.get("Content-Length", "")
        total = int(announced) if announced.isdecimal() else source.size
        while True:
            try:
                piece = answer.read(PIECE)
            except (OSError, http.client.HTTPException) as error:
                raise failed(f"{_reason(error)} after {done} bytes") from error
            if not piece:
                break
            out.write(piece)
            digest.update(piece)
            done += len(piece)
            if progress is not None:
                progress(done, total)
    if total is not None and done < total:
        raise failed(f"it ended after {done} of {total} bytes")
    checksum = digest.hexdigest()
    if source.checksum is not None and checksum != source.checksum.lower():
        raise failed(f"its SHA-256 is {checksum}, not the published {source.checksum}")


def _reason(error: Exception) -> str:
    """An error in a few words."""
    cause = error.reason if isinstance(error, urllib.error.URLError) else error
    if isinstance(cause, TimeoutError):
        return "no answer in time"
    if isinstance(cause, OSError) and cause.strerror:
        return cause.strerror.lower()
    return str(cause).rstrip(".") or type(cause).__name__
