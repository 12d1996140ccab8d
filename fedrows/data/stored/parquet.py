"""Federations from Parquet files that need not fit into memory, by way of a store.

    1. count the clients; ranges of them make parts that fit into memory
    2. sort the rows into the parts, values as whole numbers
    3. count the values of every vocabulary, part by part
    4. give values their rows, work out index sets and slots, and append to the store's columns

In memory are one batch or part, the clients' names and sizes, the vocabularies, the held ids, and a
byte per row where examples are held out over all clients at once.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from fedrows.data.column_checks import as_labels, as_numbers, as_weights
from fedrows.data.column_layout import Layout
from fedrows.data.federation import FederatedData
from fedrows.data.stored.feature_codes import FeatureCoder
from fedrows.data.stored.held_out import HeldOutRows, held_out
from fedrows.data.stored.parquet_table import Clients, ParquetTable, as_numpy, numbers_of
from fedrows.data.stored.spill import OWNER, Spill, Spilled
from fedrows.data.stored.store import folder_of, open_or_write, sources
from fedrows.data.stored.store_columns import CodedRows, StoreColumns, flat
from fedrows.data.stored.store_writer import StoreWriter, making
from fedrows.data.vocabulary import Vocabulary, number_values
from fedrows.errors import DataError, UnknownKeywordError
from fedrows.files.fetch import data_folder
from fedrows.options import keywords


def read_parquet(
    paths: str | Path | Iterable[str | Path],
    *,
    client: str,
    label: str,
    features: Sequence[str] | Mapping[str, str],
    store: str | Path | None = None,
    **options: Any,
) -> FederatedData:
    """A federation from Parquet files, or a folder of them, that need not fit into memory.

    They are read once into a store of memory-mapped columns, by default below the data folder. As
    long as the files and the options stay the same, the store is opened again at once. The rows
    are those of all files in order. Options are those of `FederatedData.from_frame`.
    """
    _check_keywords(options)
    columns = Layout(client=client, label=label, features=features, **options)
    files = _files(paths)
    key = {"from": sources(files), "layout": columns.as_facts()}
    folder = folder_of(data_folder() / "stores", key) if store is None else Path(store)

    def make(at: Path) -> None:
        _require_arrow()
        _write(ParquetTable(files, columns), columns, at, key)

    return open_or_write(folder, key, make)


def _check_keywords(names: Iterable[str]) -> None:
    """Raises an UnknownKeywordError for a keyword that neither function has."""
    known = {*keywords(read_parquet), *keywords(Layout)}
    for name in names:
        if name not in known:
            raise UnknownKeywordError("read_parquet", name, known)


def _require_arrow() -> None:
    try:
        import pyarrow.parquet  # noqa: F401
    except ImportError:
        raise DataError(
            "Reading Parquet needs pyarrow: install it with `pip install 'fedrows[data]'`."
        ) from None


def _files(paths: str | Path | Iterable[str | Path]) -> list[Path]:
    """The Parquet files that are meant, those of a folder in the order of their names."""
    named = [paths] if isinstance(paths, str | Path) else list(paths)
    files: list[Path] = []
    for path in map(Path, named):
        if path.is_dir():
            inside = sorted(path.rglob("*.parquet"))
            inside = [file for file in inside if not _hidden(file.relative_to(path))]
            if not inside:
                raise DataError(f"There is no Parquet file (*.parquet) in the folder {path}.")
            files += inside
        elif path.is_file():
            files.append(path)
        else:
            raise DataError(f"There is no file or folder {path}: check the path.")
    if not files:
        raise DataError("No Parquet file is named: give a file, several, or a folder.")
    return files


def _hidden(path: Path) -> bool:
    return any(part.startswith((".", "_")) for part in path.parts)


def _write(table: ParquetTable, layout: Layout, to: Path, key: dict[str, Any]) -> None:
    """Writes the store of a table into a folder."""
    with making(to) as folder, StoreWriter(folder) as writer:
        clients = Clients()
        for _, batch in table.batches([layout.client]):
            clients.add(batch[layout.client])
        names, who, sizes = clients.finish()
        begin = np.cumsum(sizes) - sizes
        _, part = np.unique(begin // table.part, return_inverse=True)
        spill = Spill(folder / "spill", part)
        coder = FeatureCoder(table, layout)
        _sort_into_parts(table, layout, names, coder, spill)
        numbering = _count_values(layout, coder, spill)
        facts = StoreColumns(layout, coder, spill, numbering, who, writer).write()
        shutil.rmtree(spill.folder)
        writer.finish(facts, key)


def _sort_into_parts(
    table: ParquetTable, layout: Layout, names: Any, coder: FeatureCoder, spill: Spill
) -> None:
    """Step 2; also marks the held-out examples, unless that is left to the clients' own parts."""
    marks = HeldOutRows(table, layout, names)
    for first, batch in table.batches(layout.columns):
        owner = numbers_of(batch[layout.client], names)
        count = len(owner)
        label = as_labels(layout.label, as_numpy(batch[layout.label]), layout.labels, first)
        columns: dict[str, Spilled] = {OWNER: owner, "label": label}
        if layout.weight is not None:
            weight = as_numpy(batch[layout.weight])
            columns["weight"] = as_weights(layout.weight, weight, count, first)
        for column in layout.numbers:
            numbers, scaled = as_numpy(batch[column]), layout.scaled.get(column)
            columns[f"numbers {column}"] = as_numbers(column, numbers, count, first, scaled)
        columns |= marks.columns(batch, first, owner)
        for column in layout.fields:
            columns[f"ids {column}"] = coder.code(column, batch[column], first)
        spill.add(columns)


@dataclass
class _Counts:
    """How often training and held-out examples have each code."""

    codes: np.ndarray = field(default_factory=lambda: np.empty(0, dtype=np.int64))  # sorted
    train: np.ndarray = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    held: np.ndarray = field(default_factory=lambda: np.empty(0, dtype=np.int64))

    def add(self, codes: np.ndarray, held: np.ndarray) -> None:
        new, which = np.unique(codes, return_inverse=True)
        out = np.bincount(which[held], minlength=len(new))
        train = np.bincount(which, minlength=len(new)) - out
        both, which = np.unique(np.concatenate([self.codes, new]), return_inverse=True)
        for name, more in (("train", train), ("held", out)):
            counts = np.bincount(which, np.concatenate([getattr(self, name), more]), len(both))
            setattr(self, name, counts.astype(np.int64))
        self.codes = both


def _count_values(layout: Layout, coder: FeatureCoder, spill: Spill) -> dict[str, CodedRows]:
    """Step 3: the rows of every vocabulary's values."""
    counts = {
        table: _Counts()
        for table in layout.table_names
        if isinstance(layout.rows(table), Vocabulary)
    }
    for part in range(spill.parts if counts else 0):
        columns = spill.load(part)
        test, validation = held_out(layout, spill, part, columns)
        for column, table in layout.fields.items():
            if table in counts:
                values, marks = flat(columns[f"ids {column}"], test | validation)
                counts[table].add(values, marks)
    rows = {}
    for table, count in counts.items():
        how = layout.rows(table)
        assert isinstance(how, Vocabulary)
        words = coder.words[table].take(count.codes) if table in coder.words else count.codes
        order = np.argsort(words, kind="stable")
        numbering = number_values(
            table, how, words[order], count.train[order], count.held[order], table in coder.padded
        )
        row = np.empty_like(count.codes)
        row[order] = numbering.row
        rows[table] = CodedRows(count.codes, row, numbering)
    return rows
