"""Data written once into flat columns that are mapped into memory: a second start is instant.

    facts.json   the format, what the data are called, and every column's file and size
    000.npy …    the columns, as NumPy writes them

A store is made beside its place and moved into it in one step: one that is there is whole. Columns
are mapped copy-on-write: what is never used is never read, and the files never change.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedrows.data.encoder import Encoder
from fedrows.data.examples import Examples
from fedrows.data.federation import FederatedData
from fedrows.data.stored.store_writer import FACTS, FORMAT, StoreWriter, as_plain, making
from fedrows.errors import DataError
from fedrows.files.whole import Json, reason
from fedrows.rows.index import Index
from fedrows.rows.ragged import Column, Ragged
from fedrows.version import __version__


def save_data(data: FederatedData, folder: str | Path) -> None:
    """Writes data into a folder, from which `open_data` maps them into memory.

    A store that is there is replaced; a folder of anything else is an error.
    """
    folder = Path(folder)
    check_free(folder)
    with making(folder) as part, StoreWriter(part) as writer:
        writer.examples("train", data.train)
        if len(data.validation):
            writer.examples("validation", data.validation)
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
        "encoder": None if data.encoder is None else data.encoder.as_facts(),
    }


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

    target, test = facts["target"], examples("test")
    return FederatedData(
        name=facts["name"],
        tables=facts["tables"],
        fields=facts["fields"],
        train=examples("train"),
        validation=examples("validation") if ("validation", "splits") in tensors else test.none(),
        test=test,
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
        encoder=None if facts["encoder"] is None else Encoder.from_facts(facts["encoder"]),
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
