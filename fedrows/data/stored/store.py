"""Data written once into flat columns that are mapped into memory: a second start is instant.

    facts.json   the format, what the data are called, and every column's file and size
    000.npy …    the columns, as NumPy writes them

A store is made beside its place and moved into it in one step: one that is there is whole. Columns
are mapped copy-on-write: what is never used is never read, and the files never change.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedrows.data.examples import Examples
from fedrows.data.federation import FederatedData
from fedrows.errors import DataError
from fedrows.files.whole import as_json, reason, write_whole
from fedrows.rows.index import Index
from fedrows.rows.ragged import Column, Ragged
from fedrows.version import __version__

FORMAT = 1  # grows when a store of an older fedrows can no longer be read
FACTS = "facts.json"

Json = dict[str, Any]


def save_data(data: FederatedData, folder: str | Path) -> None:
    """Writes data into a folder, from which `open_data` maps them into memory.

    A store that is there is replaced; a folder of anything else is an error.
    """
    folder = Path(folder)
    check_free(folder)
    with making(folder) as part, Writer(part) as writer:
        writer.examples("train", data.train)
        writer.examples("test", data.test)
        for table, index in data.index.items():
            writer.tensor(("index", table, "ids"), index.ids)
            writer.tensor(("index", table, "splits"), index.splits)
            if index.place is not None and index.held is not None:
                writer.tensor(("index", table, "place"), index.place)
                writer.tensor(("index", table, "held"), index.held)
        for name, column in data.slots.items():
            writer.column(("slots", name), column)
        for table, words in data.vocabulary.items():
            writer.array(("vocabulary", table), as_plain(words))
        if data.client_names is not None:
            writer.array(("client_names",), as_plain(data.client_names))
        writer.finish(about(data), None)


def open_data(folder: str | Path, key: Json | None = None) -> FederatedData:
    """The data that `save_data` has written; nothing is read before it is used.

    A DataError if the store is not whole, or was not made from the key that is asked for.
    """
    folder = Path(folder)
    facts = _read(folder)
    if key is not None and facts["key"] != json.loads(json.dumps(key)):
        raise DataError(f"{folder} holds data made from other files or options: make it anew.")
    try:
        return _mapped(folder, facts)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(
            f"{folder} is no longer a whole store of data ({error}): delete it and make it anew."
        ) from error


def open_or_write(folder: Path, key: Json, write: Callable[[Path], None]) -> FederatedData:
    """The data of the store in `folder`, which `write` makes unless it is there already."""
    with suppress(DataError):
        return open_data(folder, key)
    check_free(folder)
    write(folder)
    return open_data(folder, key)


def folder_of(folder: Path, key: Json) -> Path:
    """Where below a folder the store of a key lies."""
    text = json.dumps(key, sort_keys=True).encode()
    return folder / hashlib.blake2b(text, digest_size=10).hexdigest()


def sources(paths: Iterable[Path]) -> list[list[Any]]:
    """What says whether files are still the same: path, size and time of the last change."""
    stamps = []
    for path in paths:
        about = path.stat()
        stamps.append([str(path.absolute()), about.st_size, about.st_mtime_ns])
    return stamps


def check_free(folder: Path) -> None:
    """Raises a DataError if something other than a store, whole or not, is in a place."""
    if not folder.exists():
        return
    names = [path.name for path in folder.iterdir()] if folder.is_dir() else [""]
    if not all(re.fullmatch(rf"\d+\.npy|{re.escape(FACTS)}", name) for name in names):
        raise DataError(f"{folder} is there and is not a store of data: choose another folder.")


@contextmanager
def making(folder: Path) -> Iterator[Path]:
    """A new folder beside `folder`, which takes its place in the end, or goes."""
    part: Path | None = None
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        part = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", suffix=".part", dir=folder.parent))
        part.chmod(0o755)  # mkdtemp's own mode keeps everybody else out
        yield part
        _replace(part, folder)
    except OSError as error:
        raise DataError(
            f"{folder} cannot be written ({reason(error)}): make room for it, or choose another "
            "folder."
        ) from error
    finally:
        if part is not None:
            shutil.rmtree(part, ignore_errors=True)


class Writer:
    """The files of a store that is being made."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._columns: list[Json] = []
        self._seen: dict[int, tuple[Tensor, str]] = {}  # by identity: lists share their offsets
        self._open: list[Growing] = []

    def __enter__(self) -> Writer:
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

    def growing(self, at: tuple[str, ...], dtype: Any, width: int | None = None) -> Growing:
        """An array that is written piece by piece; close it before `finish`."""
        name = f"{len(self._columns):03}.npy"
        self.point(at, name)
        self._open.append(Growing(self.folder / name, np.dtype(dtype), width))
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
        whole = {"format": FORMAT, "fedrows": __version__, "key": key, **about}
        write_whole(self.folder / FACTS, as_json({**whole, "columns": self._columns}, indent=1))


class Growing:
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


def about(data: FederatedData) -> Json:
    """What is to be kept of data beside their columns."""
    return {
        "name": data.name,
        "tables": {table: int(rows) for table, rows in data.tables.items()},
        "fields": dict(data.fields),
        "target": None if data.target is None else list(data.target),
        "padded": sorted(data.padded),
        "local": sorted(data.local),
        "groups": {
            t: {g: list(span) for g, span in groups.items()} for t, groups in data.groups.items()
        },
        "labels": data.labels,
        "best_loss": data.best_loss,
        "notes": list(data.notes),
    }


def as_plain(words: np.ndarray) -> np.ndarray:
    """Names in an array that can be mapped: numbers and moments as they are, others as text."""
    return words.astype(np.str_) if words.dtype.kind not in "iufbMU" else words


def map_array(path: Path) -> np.ndarray:
    """An array of a store, mapped copy-on-write."""
    array: np.ndarray
    try:
        array = np.load(path, mmap_mode="c", allow_pickle=False)
    except ValueError:  # there is nothing to map
        array = np.load(path, allow_pickle=False)
        if array.size:
            raise
    return np.asarray(array)


def _mapped(folder: Path, facts: Json) -> FederatedData:
    """The data behind a store's facts."""
    arrays: dict[str, np.ndarray] = {}
    columns: dict[tuple[str, ...], np.ndarray] = {}
    lengths: dict[tuple[str, ...], int] = {}
    for column in facts["columns"]:
        name, at = column["file"], tuple(column["at"])
        if name not in arrays:
            size = (folder / name).stat().st_size
            if size != column["bytes"]:
                raise ValueError(f"{name} has {size} bytes instead of {column['bytes']}")
            arrays[name] = map_array(folder / name)
        columns[at] = arrays[name]
        if "length" in column:
            lengths[at[:-1]] = column["length"]
    tensors = {at: torch.from_numpy(x) for at, x in columns.items() if x.dtype.kind in "iuf"}
    names = list(facts["fields"])

    def column_at(*at: str) -> Column:
        if at in lengths:
            return Ragged(tensors[*at, "values"], tensors[*at, "offsets"], lengths[at])
        return tensors[at]

    def examples(part: str) -> Examples:
        numbers = {at[2]: x for at, x in tensors.items() if at[:2] == (part, "numbers")}
        return Examples(
            tensors[part, "splits"],
            {name: column_at(part, "ids", name) for name in names},
            tensors[part, "label"],
            numbers,
            tensors.get((part, "weight")),
        )

    target = facts["target"]
    return FederatedData(
        name=facts["name"],
        tables=facts["tables"],
        fields=facts["fields"],
        train=examples("train"),
        test=examples("test"),
        index={
            table: Index(
                tensors["index", table, "ids"],
                tensors["index", table, "splits"],
                tensors.get(("index", table, "place")),
                tensors.get(("index", table, "held")),
            )
            for table in facts["tables"]
        },
        slots={name: column_at("slots", name) for name in names},
        target=None if target is None else (target[0], target[1]),
        padded=frozenset(facts["padded"]),
        local=frozenset(facts["local"]),
        groups={t: {g: (a, b) for g, (a, b) in of.items()} for t, of in facts["groups"].items()},
        vocabulary={at[1]: words for at, words in columns.items() if at[0] == "vocabulary"},
        client_names=columns.get(("client_names",)),
        labels=facts["labels"],
        best_loss=facts["best_loss"],
        notes=tuple(facts["notes"]),
    )


def _read(folder: Path) -> Json:
    """The facts of a store that this version can read."""
    try:
        facts = json.loads((folder / FACTS).read_bytes())
        format_, version = facts["format"], facts["fedrows"]
    except (FileNotFoundError, NotADirectoryError):
        raise DataError(
            f"{folder} is not a store of data, for it has no {FACTS}: name one that was saved."
        ) from None
    except OSError as error:
        raise DataError(f"{folder} cannot be read ({reason(error)}).") from error
    except (ValueError, KeyError, TypeError):
        raise DataError(
            f"{folder / FACTS} is cut short or not of fedrows: delete {folder} and make it anew."
        ) from None
    if format_ != FORMAT:
        raise DataError(
            f"{folder} has format {format_!r} of fedrows {version}, but this is fedrows "
            f"{__version__} with format {FORMAT}: make it anew."
        )
    return dict(facts)


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
