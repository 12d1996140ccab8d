"""A run folder: what a run was told, and what it measured, written whole or not at all.

    config.json             what was run, with what, by which version
    data.json               what the data are like
    metrics.jsonl           a line per evaluated round
    summary.json            what it came to
    anchors.json            with --anchors: what centralised models come to
    status.json             how it stands while it goes (see `status_file`)
    checkpoint.safetensors  where it stands (see `checkpoint`)
    best.safetensors        with patience: where it stood when it was best
    ledger.jsonl            of a private run: what it has spent (see `privacy.ledger_file`)
    tables/                 the rows of mapped tables (see `tables`)
    report.html             all of it, to look at
    release/, README.md     of a run under privacy full: what may leave it (see `release`)
    runs/NAME/              of a comparison: the run folders of its runs

A JSON file is written beside its place and moved into it in one step. A metrics line that cannot be
written whole, as on a full disk, is taken back.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from fedrows.errors import RunFolderError
from fedrows.files.whole import (
    Json,
    as_json,
    placing,
    reason,
    remove,
    unwritable,
    write_private,
    write_through,
    write_whole,
)
from fedrows.runs.checkpoint import check_installed
from fedrows.runs.status_file import STATUS
from fedrows.version import __version__

FORMAT = 1  # grows when a folder of an older fedrows can no longer be read
CONFIG, DATA, METRICS, SUMMARY = "config.json", "data.json", "metrics.jsonl", "summary.json"
CHECKPOINT, REPORT, RUNS = "checkpoint.safetensors", "report.html", "runs"
BEST, ANCHORS = "best.safetensors", "anchors.json"
TABLES, LEDGER = "tables", "ledger.jsonl"
README = "README.md"  # of a run under privacy full
RELEASE, RELEASED = "release", ("model.safetensors", "heat.safetensors", "privacy.json")
FILES = (
    METRICS,
    DATA,
    SUMMARY,
    ANCHORS,
    STATUS,
    CHECKPOINT,
    BEST,
    LEDGER,
    README,
    REPORT,
    CONFIG,
)  # the config goes last: it marks us


class RunFolder:
    """The folder of one run, or of one comparison; `config` is what its config.json says."""

    def __init__(self, path: Path, config: Json) -> None:
        self.path = path
        self.config = config

    @classmethod
    def create(cls, path: Path, kind: str, config: Json, *, overwrite: bool = False) -> RunFolder:
        """A new folder with its config.json; an existing run folder gives way if `overwrite`."""
        check_free(path, overwrite=overwrite)
        check_installed()  # before there is half a folder
        folder = cls(path, {"format": FORMAT, "fedrows": __version__, "kind": kind, **config})
        try:
            path.mkdir(parents=True, exist_ok=True)
            if folder.private:
                path.chmod(0o700)
            with folder.locked(), placing(path / CONFIG) as part:
                write_through(part, as_json(folder.config, indent=1))  # before anything is lost
                clear(path, but=part.parent)
            folder.keep_lines([])
        except RunFolderError:
            raise
        except OSError as error:
            raise unwritable(path, error) from error
        return folder

    @classmethod
    def open(cls, path: Path, kind: str | None = None) -> RunFolder:
        """An existing folder, of one kind (run or compare) if that is given."""
        config = read_config(path)
        if config["format"] != FORMAT:
            raise RunFolderError(
                f"{path} has format {config['format']!r} of fedrows {config['fedrows']}, but this "
                f"is fedrows {__version__} with format {FORMAT}: use that version, or run anew."
            )
        if kind is not None and config["kind"] != kind:
            raise RunFolderError(
                f"{path} is the folder of a {config['kind']}, not of a {kind}: "
                f"use `fedrows {config['kind']}` with it."
            )
        return cls(path, config)

    @property
    def private(self) -> bool:
        """Whether only its owner may read what is in the folder."""
        return bool(self.config.get("privacy"))

    def write_json(self, name: str, value: Any) -> None:
        """Puts a JSON file in its place; NaN and infinity become null."""
        self._write(name, as_json(value, indent=1))

    def _write(self, name: str, data: bytes) -> None:
        (write_private if self.private else write_whole)(self.path / name, data)

    def append(self, line: Json) -> None:
        """Adds a line to the metrics, or raises an OSError and leaves them as they were."""
        data = as_json(line)
        with (self.path / METRICS).open("ab", buffering=0) as file:
            before = file.seek(0, os.SEEK_END)
            try:
                written = 0
                while written < len(data):
                    written += file.write(data[written:]) or 0
            except OSError:
                file.truncate(before)
                raise

    def lines(self) -> list[Json]:
        """The metrics, without a last line that was cut short."""
        return read_lines(self.path / METRICS)

    def keep_lines(self, lines: Iterable[Json]) -> None:
        """Makes these lines the metrics, instead of whatever they were."""
        self._write(METRICS, b"".join(map(as_json, lines)))

    def sync(self) -> None:
        """Waits until the metrics are on the disk."""
        with (self.path / METRICS).open("ab") as file:
            os.fsync(file.fileno())

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keeps other processes from working in the folder at the same time."""
        try:
            import fcntl
        except ImportError:  # Windows has no such lock
            yield
            return
        handle = os.open(self.path, os.O_RDONLY)
        try:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise RunFolderError(
                    f"Another fedrows is at work in {self.path}: wait for it, or stop it first."
                ) from None
            except OSError:
                pass  # a file system without locks
            yield
        finally:
            os.close(handle)


def read_config(path: Path) -> Json:
    """The config.json of a folder that some version of fedrows has written."""
    file = path / CONFIG
    if not path.is_dir():
        raise RunFolderError(f"There is no folder {path}: name one that a run has written.")
    try:
        config = json.loads(file.read_bytes())
    except FileNotFoundError:
        raise RunFolderError(
            f"{path} is not a run folder, for it has no {CONFIG}: name one that a run has written."
        ) from None
    except (ValueError, RecursionError):
        raise RunFolderError(
            f"{file} is cut short or not JSON: restore it, or run into a new folder."
        ) from None
    except OSError as error:
        raise RunFolderError(f"{file} cannot be read ({reason(error)}).") from error
    wanted = {"format", "fedrows", "kind"}
    if not isinstance(config, dict) or wanted - config.keys():
        raise RunFolderError(
            f"{path} is not a run folder, for its {CONFIG} is not one of fedrows: "
            "name one that a run has written."
        )
    return config


def read_lines(path: Path) -> list[Json]:
    """The lines of a metrics.jsonl but for a last one that was cut short; none without a file."""
    try:
        texts = path.read_bytes().split(b"\n")
    except FileNotFoundError:
        return []
    except OSError as error:
        raise RunFolderError(f"{path} cannot be read ({reason(error)}).") from error
    lines: list[Json] = []
    for number, text in enumerate(texts[:-1], start=1):  # what follows the last \n is no line
        try:
            line = json.loads(text)
            right = isinstance(line["algorithm"], str)
            right &= all(type(line[key]) is int for key in ("seed", "round"))
        except (ValueError, TypeError, KeyError):
            right = False
        if not right:
            raise RunFolderError(
                f"Line {number} of {path} is no metrics line (JSON with an algorithm, a seed and a "
                "round): delete it, or run again with --overwrite."
            )
        lines.append(line)
    return lines


def check_free(path: Path, *, overwrite: bool = False) -> None:
    """Raises a RunFolderError unless a run may be written to `path`."""
    try:
        exists = path.exists()
        empty = not path.is_dir() or all(map(_is_leftover, path.iterdir()))
    except OSError as error:
        raise unwritable(path, error) from error
    if not exists:
        above = next(folder for folder in path.absolute().parents if folder.exists())
        if not above.is_dir() or not os.access(above, os.W_OK):
            raise RunFolderError(
                f"{path} cannot be made, because {above} is not a folder that may be written: "
                "choose another with --out."
            )
        return
    if not path.is_dir():
        raise RunFolderError(f"{path} is not a folder: choose another with --out.")
    if empty:
        return
    if not overwrite:
        raise RunFolderError(
            f"{path} exists already: choose another folder with --out, replace it with "
            "--overwrite, or go on with --resume."
        )
    try:
        read_config(path)
    except RunFolderError as error:
        raise RunFolderError(
            f"{path} is not overwritten, because it is not recognisably a run folder: "
            "choose another with --out."
        ) from error


def clear(path: Path, but: Path | None = None) -> None:
    """Removes what fedrows has written into a folder, its runs included, and nothing else."""
    runs = path / RUNS
    for run in sorted(runs.iterdir()) if runs.is_dir() else ():
        with suppress(RunFolderError):
            read_config(run)
            clear(run)
            with suppress(OSError):  # something else is in it
                run.rmdir()
    with suppress(OSError):
        runs.rmdir()
    for name in FILES:
        (path / name).unlink(missing_ok=True)
    for name in RELEASED:
        (path / RELEASE / name).unlink(missing_ok=True)
    with suppress(OSError):
        (path / RELEASE).rmdir()
    for pattern in ("*.ids", "*.rows", "*.undo"):
        for file in (path / TABLES).glob(pattern):
            file.unlink(missing_ok=True)
    with suppress(OSError):
        (path / TABLES).rmdir()
    for part in filter(_is_leftover, path.iterdir()):
        if part != but:
            remove(part)


def _is_leftover(path: Path) -> bool:
    """Whether this is what `placing` leaves behind when its process is killed."""
    return re.fullmatch(rf"\.({'|'.join(map(re.escape, FILES))})\.\d+\.part", path.name) is not None
