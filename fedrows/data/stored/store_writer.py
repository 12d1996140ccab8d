"""Writing a store: its files are made in a new folder, which then takes its place in one step."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from fedrows.data.examples import Examples
from fedrows.errors import DataError
from fedrows.files.whole import Json, as_json, part_beside, reason, write_whole
from fedrows.rows.ragged import Column, Ragged
from fedrows.version import __version__

FORMAT = 3  # grows when a store of an older fedrows can no longer be read
FACTS = "facts.json"


@contextmanager
def making(folder: Path) -> Iterator[Path]:
    """A new folder beside `folder`, which takes its place in the end, or goes."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with part_beside(folder) as part:
            part.chmod(0o755)  # or it would keep everybody else out
            yield part
            _replace(part, folder)
    except OSError as error:
        raise DataError(
            f"{folder} cannot be written ({reason(error)}): make room for it, or choose another "
            "folder."
        ) from error


class StoreWriter:
    """The files of a store that is being made."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._columns: list[Json] = []
        self._seen: dict[int, tuple[Tensor, str]] = {}  # by identity: lists share their offsets
        self._open: list[GrowingArray] = []

    def __enter__(self) -> StoreWriter:
        return self

    def __exit__(self, *_: object) -> None:
        for growing in self._open:
            growing.abandon()

    def examples(self, part: str, examples: Examples) -> None:
        """All columns of some examples."""
        self.tensor((part, "splits"), examples.splits)
        self.tensor((part, "label"), examples.label)
        if examples.weight is not None:
            self.tensor((part, "weight"), examples.weight)
        for name, column in examples.ids.items():
            self.column((part, "ids", name), column)
        for name, numbers in examples.numbers.items():
            self.tensor((part, "numbers", name), numbers)

    def column(self, at: tuple[str, ...], column: Column) -> None:
        """A column of ids or of lists."""
        if isinstance(column, Ragged):
            self.tensor((*at, "values"), column.values, length=column.length)
            self.tensor((*at, "offsets"), column.offsets)
        else:
            self.tensor(at, column)

    def tensor(self, at: tuple[str, ...], tensor: Tensor, **more: Any) -> None:
        """One tensor; the same tensor under two names is one file."""
        if id(tensor) not in self._seen:
            self.array(at, tensor.detach().cpu().numpy(), **more)
            self._seen[id(tensor)] = (tensor, self._columns[-1]["file"])
        else:
            self.point(at, self._seen[id(tensor)][1], **more)

    def array(self, at: tuple[str, ...], array: np.ndarray, **more: Any) -> None:
        """One array."""
        name = f"{len(self._columns):03}.npy"
        with (self.folder / name).open("wb") as file:
            np.save(file, np.ascontiguousarray(array), allow_pickle=False)
            file.flush()
            os.fsync(file.fileno())
        self.point(at, name, **more)

    def growing(self, at: tuple[str, ...], dtype: Any, width: int | None = None) -> GrowingArray:
        """An array that is written piece by piece; close it before `finish`."""
        name = f"{len(self._columns):03}.npy"
        self.point(at, name)
        self._open.append(GrowingArray(self.folder / name, np.dtype(dtype), width))
        return self._open[-1]

    def point(self, at: tuple[str, ...], name: str, **more: Any) -> None:
        """Says which file a column is in, and more about it."""
        self._columns.append({"at": list(at), "file": name, **more})

    def say(self, at: tuple[str, ...], **more: Any) -> None:
        """Says more about a column."""
        self._entry(at).update(more)

    def file(self, at: tuple[str, ...]) -> str:
        """The name of a column's file."""
        return str(self._entry(at)["file"])

    def _entry(self, at: tuple[str, ...]) -> Json:
        return next(column for column in self._columns if column["at"] == list(at))

    def finish(self, about: Json, key: Json | None) -> None:
        """Writes what makes the files a store."""
        for column in self._columns:
            column["bytes"] = (self.folder / column["file"]).stat().st_size
        facts = {"format": FORMAT, "fedrows": __version__, "key": key, **about}
        write_whole(self.folder / FACTS, as_json({**facts, "columns": self._columns}, indent=1))


class GrowingArray:
    """A .npy file that grows at its end; its header is written when it is closed."""

    _HEADER = 128

    def __init__(self, path: Path, dtype: np.dtype, width: int | None) -> None:
        self.dtype, self.width, self.length = dtype, width, 0
        self._file = path.open("wb")
        self._file.write(b" " * self._HEADER)

    def append(self, array: np.ndarray) -> None:
        """Adds rows."""
        assert array.shape[1:] == (() if self.width is None else (self.width,))
        self._file.write(np.ascontiguousarray(array, dtype=self.dtype).data)
        self.length += len(array)

    def close(self) -> None:
        """Writes the header; on the disk when it returns."""
        shape = (self.length,) if self.width is None else (self.length, self.width)
        header = {"descr": np.lib.format.dtype_to_descr(self.dtype), "fortran_order": False}
        text = repr({**header, "shape": shape}).encode("latin1")
        head = np.lib.format.magic(1, 0)
        room = self._HEADER - len(head) - 2
        self._file.seek(0)
        self._file.write(head + room.to_bytes(2, "little") + text.ljust(room - 1) + b"\n")
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()

    def abandon(self) -> None:
        """Lets go of the file, whatever is in it."""
        self._file.close()


def as_plain(words: np.ndarray) -> np.ndarray:
    """Names in an array that can be mapped: numbers and moments as they are, others as text."""
    return words.astype(np.str_) if words.dtype.kind not in "iufbMU" else words


def _replace(part: Path, folder: Path) -> None:
    """Moves a folder into its place; what was there goes."""
    old = part.with_name(part.name + ".old")
    with suppress(FileNotFoundError):
        os.rename(folder, old)
    try:
        os.rename(part, folder)
    except OSError:
        if not (folder / FACTS).is_file():  # else somebody else was faster, and wrote the same
            raise
    finally:
        shutil.rmtree(old, ignore_errors=True)
