"""Where a run stands, in one file: every tensor that it depends on, its round in the header.

The file is plain safetensors, so reading one never runs code. It is written beside its place and
moved into it in one step: a checkpoint that is there is whole. A digest of its tensors, in the
header, tells a file that was damaged later. A checkpoint of an older fedrows has none.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedrows.errors import FedrowsError, RunFolderError
from fedrows.files.whole import placing, reason
from fedrows.runs.run import TrainingRun
from fedrows.tables import SavePoint

FORMAT = 1
DIGEST = "digest"  # in the header
# What goes before the names of tensors whose shapes a run decides as it goes.
PRIVATE, SCHEDULE = "private/", "schedule/"


@dataclass(frozen=True)
class Standing:
    """What a checkpoint says beside its tensors."""

    round: int
    seconds: float
    bytes_down: float
    bytes_up: float
    format: int = FORMAT
    private: dict[str, Any] | None = None  # the accounts of a private run
    chunks: tuple[int, int] | None = None  # how its cohorts are cut, once that was measured
    tables: SavePoint | None = None  # where mapped tables stand
    schedule: dict[str, Any] | None = None  # who is under way in virtual time


def check_installed() -> None:
    """Raises a FedrowsError if no checkpoint could be written."""
    _safetensors()


def save(path: Path, run: TrainingRun) -> None:
    """Writes where the run stands, or raises an OSError and leaves an older file alone."""
    safetensors = _safetensors()
    progress, private, table_folder = run.progress, run.private, run.progress.table_folder
    mark = None if table_folder is None else table_folder.sync()
    standing = Standing(
        progress.round,
        run.seconds,
        progress.bytes_down,
        progress.bytes_up,
        private=None if private is None else private.state(),
        chunks=run.chunks,
        tables=mark,
        schedule=None if run.schedule is None else run.schedule.state(),
    )
    tensors = {name: x.detach().contiguous() for name, x in run.tensors().items()}
    if private is not None:
        tensors |= {f"{PRIVATE}{name}": x.contiguous() for name, x in private.tensors().items()}
    if run.schedule is not None:
        waiting = run.schedule.tensors()
        tensors |= {f"{SCHEDULE}{name}": x.detach().contiguous() for name, x in waiting.items()}
    text = json.dumps(asdict(standing))
    header = {"fedrows": text, DIGEST: _digest(tensors.items(), text)}
    with placing(path) as part:
        try:
            safetensors.torch.save_file(tensors, part, header)
        except safetensors.SafetensorError as error:
            # The disk's own errors arrive as text: "… No space left on device (os error 28)".
            number = re.search(r"os error (\d+)", str(error))
            if number is None:
                raise
            raise OSError(int(number[1]), os.strerror(int(number[1])), str(path)) from error
        # The library makes it for its owner alone, which is right if it says who was drawn. Else
        # those may read it who may read the folder: nobody else, in a deployment.
        part.chmod(0o600 if private is not None else 0o600 | path.parent.stat().st_mode & 0o044)
        with part.open("rb") as file:
            os.fsync(file.fileno())
    if table_folder is not None and mark is not None:
        table_folder.saved(mark)


def standing(path: Path) -> Standing:
    """What a checkpoint says beside its tensors; only the header is read."""
    with _opened(path) as file:
        return _standing(path, file)


def restore_(run: TrainingRun, path: Path) -> None:
    """Brings a new run to where the checkpoint stands."""
    check_digest(path)
    with _opened(path) as file:
        at = _standing(path, file)
        if (at.tables is None) != (run.progress.table_folder is None):
            kind = "in memory" if at.tables is None else "mapped"
            raise RunFolderError(f"{path} does not belong to this run: its tables are {kind}.")
        tensors = _fitting(path, file, run.tensors())
        loose, waiting = _loose(file, PRIVATE), _loose(file, SCHEDULE)
    private, table_folder = run.private, run.progress.table_folder
    if (private is None) != (at.private is None):
        raise RunFolderError(f"{path} does not belong to this run: its privacy is another.")
    if table_folder is not None and at.tables is not None:
        table_folder.restore(at.tables)
    run.restore_(tensors, at.round, at.seconds)
    if private is not None and at.private is not None:
        private.restore_(loose, at.private, at.round)
    if (run.schedule is None) != (at.schedule is None):
        raise RunFolderError(f"{path} does not belong to this run: its clock or mode is another.")
    if run.schedule is not None and at.schedule is not None:
        run.schedule.restore_(waiting, at.schedule)
    run.progress.bytes_down, run.progress.bytes_up = at.bytes_down, at.bytes_up
    if at.chunks is not None:
        run.cut_(*at.chunks)


def read_tensors(path: Path, wanted: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of a checkpoint by name, shaped like those that are wanted."""
    check_digest(path)
    with _opened(path) as file:
        return _fitting(path, file, wanted)


def _fitting(path: Path, file: Any, wanted: Mapping[str, Tensor]) -> dict[str, Tensor]:
    tensors = {}
    for name, tensor in wanted.items():
        stored = file.get_tensor(name) if name in file.keys() else None  # noqa: SIM118 - not a dict
        if stored is None or (stored.shape, stored.dtype) != (tensor.shape, tensor.dtype):
            kind = "missing" if stored is None else _kind(stored)
            raise RunFolderError(
                f"{path} does not fit its run, in which {name!r} is {_kind(tensor)}; here it is "
                f"{kind}: the data, the model or the algorithm have changed since."
            )
        tensors[name] = stored
    return tensors


def check_digest(path: Path) -> None:
    """Raises a RunFolderError if a tensor of the file is not the one that was written."""
    with _opened(path) as file:
        header = file.metadata() or {}
        if DIGEST not in header:
            return
        tensors = ((name, file.get_tensor(name)) for name in file.keys())  # noqa: SIM118
        if _digest(tensors, header.get("fedrows", "")) != header[DIGEST]:
            raise RunFolderError(
                f"{path} was damaged after it was written: restore it from a copy, or start the "
                "run again with --overwrite."
            )


def _digest(tensors: Iterable[tuple[str, Tensor]], text: str) -> str:
    """A hash of what a checkpoint holds, whatever the order of its tensors."""
    parts = []
    for name, x in tensors:
        part = hashlib.blake2b(f"{name} {x.dtype} {tuple(x.shape)} ".encode(), digest_size=16)
        flat = x.detach().cpu().contiguous().reshape(-1)
        # One number may have any stride and count as contiguous, but cannot be seen as bytes then.
        flat = flat.as_strided(flat.shape, (1,))
        part.update(flat.view(torch.uint8).numpy().data)
        parts.append(part.hexdigest())
    return hashlib.blake2b(" ".join([text, *sorted(parts)]).encode(), digest_size=16).hexdigest()


def _opened(path: Path) -> Any:
    safetensors = _safetensors()
    if not path.is_file():
        raise RunFolderError(
            f"There is no checkpoint {path}: start the run again with --overwrite."
        )
    try:
        return safetensors.safe_open(path, framework="pt", device="cpu")
    except safetensors.SafetensorError as error:
        raise RunFolderError(
            f"{path} is cut short or not a checkpoint: start the run again with --overwrite."
        ) from error
    except OSError as error:
        raise RunFolderError(f"{path} cannot be read ({reason(error)}).") from error


def _standing(path: Path, file: Any) -> Standing:
    try:
        header = json.loads((file.metadata() or {})["fedrows"])
        if header["format"] != FORMAT:
            raise RunFolderError(
                f"{path} has format {header['format']!r}, but this fedrows reads format {FORMAT}: "
                "start the run again with --overwrite."
            )
        if header.get("tables"):
            header["tables"] = SavePoint(**header["tables"])
        return Standing(**header)
    except (KeyError, ValueError, TypeError):
        raise RunFolderError(
            f"{path} is not a checkpoint of fedrows: start the run again with --overwrite."
        ) from None


def _loose(file: Any, prefix: str) -> dict[str, Any]:
    """The tensors of a checkpoint whose names begin so, without that."""
    names = [name for name in file.keys() if name.startswith(prefix)]  # noqa: SIM118 - not a dict
    return {name.removeprefix(prefix): file.get_tensor(name) for name in names}


def _kind(x: Any) -> str:
    return f"{x.dtype} of shape {tuple(x.shape)}".removeprefix("torch.")


def _safetensors() -> Any:
    try:
        import safetensors
        import safetensors.torch
    except ImportError:
        raise FedrowsError(
            "Checkpoints need the package safetensors: pip install safetensors."
        ) from None
    return safetensors
