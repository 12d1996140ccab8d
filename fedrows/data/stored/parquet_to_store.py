"""A store made from a table that does not fit into memory, a batch and then a part at a time.

    1. count the clients; ranges of them make parts that fit into memory
    2. sort the rows into the parts, values as whole numbers
    3. count the values of every vocabulary, part by part
    4. give values their rows, work out index sets and slots, and append to the store's columns

In memory are one batch or part, the clients' names and sizes, the vocabularies, the held ids, and a
byte per row where examples are held out over all clients at once.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedrows.data.column_checks import as_labels, as_marks, as_numbers, as_target, as_weights
from fedrows.data.examples import (
    Examples,
    index_of,
    shared_row,
    sort_by_client,
    untrained_note,
)
from fedrows.data.layout import Layout
from fedrows.data.splits import as_times
from fedrows.data.stored.feature_codes import FeatureCoder
from fedrows.data.stored.parquet_table import Clients, ParquetTable, as_numpy, numbers_of
from fedrows.data.stored.spill import OWNER, Spill, Spilled
from fedrows.data.stored.store import Growing, Writer, as_plain, making, map_array
from fedrows.data.vocabulary import Hashed, Numbering, Vocabulary, number_values, value_of
from fedrows.errors import DataError
from fedrows.rows.ragged import Column, Ragged

PIECE = 2**22  # entries of an index that are looked up at once


def write(table: ParquetTable, layout: Layout, to: Path, key: dict[str, Any]) -> None:
    """Writes the store of a table into a folder."""
    with making(to) as folder, Writer(folder) as writer:
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
        facts = _Columns(layout, coder, spill, numbering, who, writer).write()
        shutil.rmtree(spill.folder)
        writer.finish(facts, key)


def _sort_into_parts(
    table: ParquetTable, layout: Layout, names: Any, coder: FeatureCoder, spill: Spill
) -> None:
    """Step 2; also marks the test examples, unless that is left to the clients' own parts."""
    split = layout.split
    marks: np.ndarray | None = None
    if split.kind == "random":
        marks = split.mark(np.empty(table.rows, dtype=bool), None, layout.seed)
    elif split.kind == "latest":
        assert split.column is not None
        times = [as_numpy(batch[split.column]) for _, batch in table.batches([split.column])]
        marks = split.mark(np.empty(table.rows, dtype=bool), np.concatenate(times), layout.seed)
        del times
    for first, batch in table.batches(layout.columns):
        owner = numbers_of(batch[layout.client], names)
        count = len(owner)
        label = as_labels(layout.label, as_numpy(batch[layout.label]), layout.labels, first)
        columns: dict[str, Spilled] = {OWNER: owner, "label": label}
        if layout.weight is not None:
            weight = as_numpy(batch[layout.weight])
            columns["weight"] = as_weights(layout.weight, weight, count, first)
        for column in layout.numbers:
            numbers = as_numpy(batch[column])
            columns[f"numbers {column}"] = as_numbers(column, numbers, count, first)
        by = None if split.column is None else as_numpy(batch[split.column])
        if split.by_client:
            if by is not None:
                columns["time"] = as_times(split.column or "", by)
        elif marks is not None:
            columns["held"] = marks[first : first + count]
        elif split.kind == "given":
            assert by is not None
            columns["held"] = as_marks(split.column or "", by, first)
        else:
            columns["held"] = split.mark(owner, by, layout.seed)
        for column in layout.fields:
            columns[f"ids {column}"] = coder.code(column, batch[column], first)
        spill.add(columns)


def _held(layout: Layout, spill: Spill, part: int, columns: Mapping[str, Spilled]) -> np.ndarray:
    """Which examples of a part are held out."""
    if "held" in columns:
        return _array(columns["held"])
    time = _array(columns["time"]) if "time" in columns else None
    owner = _array(columns[OWNER]) - spill.clients(part)[0]
    return layout.split.mark(owner, time, layout.seed)


@dataclass
class _Counts:
    """How often training and test have each code."""

    codes: np.ndarray = field(default_factory=lambda: np.empty(0, dtype=np.int64))  # sorted
    train: np.ndarray = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    test: np.ndarray = field(default_factory=lambda: np.empty(0, dtype=np.int64))

    def add(self, codes: np.ndarray, held: np.ndarray) -> None:
        new, which = np.unique(codes, return_inverse=True)
        test = np.bincount(which[held], minlength=len(new))
        train = np.bincount(which, minlength=len(new)) - test
        both, which = np.unique(np.concatenate([self.codes, new]), return_inverse=True)
        for name, more in (("train", train), ("test", test)):
            counts = np.bincount(which, np.concatenate([getattr(self, name), more]), len(both))
            setattr(self, name, counts.astype(np.int64))
        self.codes = both


@dataclass(frozen=True)
class _Rows:
    """Where the codes of a table go."""

    codes: np.ndarray  # (V,), sorted
    row: np.ndarray  # (V,)
    numbering: Numbering

    def __call__(self, codes: np.ndarray) -> np.ndarray:
        return self.row[np.searchsorted(self.codes, codes)]


def _count_values(layout: Layout, coder: FeatureCoder, spill: Spill) -> dict[str, _Rows]:
    """Step 3: the rows of every vocabulary's values."""
    counts = {
        table: _Counts()
        for table in layout.table_names
        if isinstance(layout.rows(table), Vocabulary)
    }
    for part in range(spill.parts if counts else 0):
        columns = spill.load(part)
        held = _held(layout, spill, part, columns)
        for column, table in layout.fields.items():
            if table in counts:
                values, marks = _flat(columns[f"ids {column}"], held)
                counts[table].add(values, marks)
    rows = {}
    for table, count in counts.items():
        how = layout.rows(table)
        assert isinstance(how, Vocabulary)
        words = coder.words[table].take(count.codes) if table in coder.words else count.codes
        order = np.argsort(words, kind="stable")
        numbering = number_values(
            table, how, words[order], count.train[order], count.test[order], table in coder.padded
        )
        row = np.empty_like(count.codes)
        row[order] = numbering.row
        rows[table] = _Rows(count.codes, row, numbering)
    return rows


class _Columns:
    """Step 4: the columns of the store, part after part."""

    def __init__(
        self,
        layout: Layout,
        coder: FeatureCoder,
        spill: Spill,
        rows: Mapping[str, _Rows],
        names: np.ndarray,
        writer: Writer,
    ) -> None:
        self.layout, self.coder, self.spill, self.rows = layout, coder, spill, rows
        self.names, self.writer = names, writer
        self.tables = layout.table_names
        self.growing: dict[tuple[str, ...], Growing] = {}
        self.longest = dict.fromkeys(coder.lists, 1)
        self.held = {table: np.empty(0, dtype=np.int64) for table in self.tables}
        self.local: dict[str, list[tuple[np.ndarray, np.ndarray]]] = {t: [] for t in layout.local}
        self.index_sizes: dict[str, list[np.ndarray]] = {table: [] for table in self.tables}
        self.train_sizes = np.zeros(len(names), dtype=np.int64)
        self.test_sizes = np.zeros(len(names), dtype=np.int64)
        self.shapes: dict[str, tuple[int, ...]] = {}

    def write(self) -> dict[str, Any]:
        """Writes all columns; gives the facts that go with them."""
        layout, writer = self.layout, self.writer
        for table in layout.local:
            if table not in self.tables:
                raise DataError(
                    f"Table {table!r} is to be local, but the tables are {', '.join(self.tables)}."
                )
        for part in range(self.spill.parts):
            self._part(part)
        trains = self.train_sizes > 0
        if not trains.any():
            raise DataError(f"{layout.name} has no training example: hold out fewer of them.")
        for part in range(self.spill.parts):  # clients without training data come last
            low, high = self.spill.clients(part)
            if not trains[low:high].all():
                self._part_untrained(part, ~trains)
        self._check_local()
        order = np.argsort(~trains, kind="stable")
        writer.array(("train", "splits"), _splits(self.train_sizes[trains]))
        writer.array(("test", "splits"), _splits(self.test_sizes[order]))
        for at, column in self.growing.items():
            column.close()
            if at[-1] == "values":
                writer.say(at, length=self.longest[at[-2]])
            if at[:2] == ("train", "ids") and at[-1] == "offsets":
                writer.point(("slots", *at[2:]), writer.file(at))
        self._index()
        for table, rows in self.rows.items():
            writer.array(("vocabulary", table), as_plain(rows.numbering.vocabulary))
        writer.array(("client_names",), as_plain(self.names[order]))
        notes = self.coder.notes(int(self.train_sizes.sum() + self.test_sizes.sum()))
        notes += [note for rows in self.rows.values() for note in rows.numbering.notes]
        if not trains.all():
            notes.append(untrained_note(int((~trains).sum()), len(trains)))
        target = as_target(layout.target, self.shapes)
        return {
            "name": layout.name,
            "tables": {table: self._size(table) for table in self.tables},
            "fields": dict(layout.fields),
            "target": None if target is None else list(target),
            "padded": sorted(self.coder.padded),
            "local": sorted(layout.local),
            "groups": {},
            "labels": layout.labels,
            "best_loss": None,
            "notes": notes,
        }

    def _load(self, part: int) -> tuple[dict[str, Spilled], np.ndarray, np.ndarray]:
        """A part's columns with ids as rows, each example's client, and which are held out."""
        columns = self.spill.load(part)
        for column, table in self.layout.fields.items():
            if table in self.rows:
                codes, row_of = columns[f"ids {column}"], self.rows[table]
                columns[f"ids {column}"] = (
                    replace(codes, values=torch.from_numpy(row_of(codes.values.numpy())))
                    if isinstance(codes, Ragged)
                    else row_of(codes)
                )
        held = _held(self.layout, self.spill, part, columns)
        return columns, _array(columns[OWNER]), held

    def _part(self, part: int) -> None:
        """Appends a part's training examples, and the test examples of clients that train."""
        columns, owner, held = self._load(part)
        low, high = self.spill.clients(part)
        within = owner - low  # the client's number in the part
        self.train_sizes[low:high] = np.bincount(within[~held], minlength=high - low)
        self.test_sizes[low:high] = np.bincount(within[held], minlength=high - low)
        trains = self.train_sizes[low:high] > 0
        count = int(trains.sum())
        train = self._examples(columns, (np.cumsum(trains) - 1)[within], ~held, count)
        self._append("train", train)
        self._append("test", self._examples(columns, within, held & trains[within], high - low))
        index, slots = index_of(self.tables, self.layout.fields, self.coder.padded, count, [train])
        for table in self.tables:
            sets = index[table]
            assert sets.held is not None
            self._grow(("index", table, "ids"), sets.ids.numpy())
            self.index_sizes[table].append(sets.lengths.numpy())
            self.held[table] = np.union1d(self.held[table], sets.held.numpy())
            if table in self.local:
                self._remember(table, columns, owner)
        for name, column in slots.items():
            if isinstance(column, Ragged):
                self._grow(("slots", name, "values"), column.values.numpy())
            else:
                self._grow(("slots", name), column.numpy())

    def _part_untrained(self, part: int, untrained: np.ndarray) -> None:
        """Appends the test examples of a part's clients that do not train."""
        columns, owner, _ = self._load(part)
        self._append("test", self._examples(columns, owner, untrained[owner], len(self.names)))

    def _examples(
        self, columns: Mapping[str, Spilled], owner: np.ndarray, chosen: np.ndarray, clients: int
    ) -> Examples:
        """The chosen examples of a part, client after client."""
        return sort_by_client(
            owner,
            {name: columns[f"ids {name}"] for name in self.layout.fields},
            _array(columns["label"]),
            {name: _array(columns[f"numbers {name}"]) for name in self.layout.numbers},
            _array(columns["weight"]) if "weight" in columns else None,
            chosen,
            clients,
        )

    def _append(self, where: str, examples: Examples) -> None:
        self._grow((where, "label"), examples.label.numpy())
        if examples.weight is not None:
            self._grow((where, "weight"), examples.weight.numpy())
        for name, numbers in examples.numbers.items():
            self._grow((where, "numbers", name), numbers.numpy())
        for name, column in examples.ids.items():
            self._append_ids((where, "ids", name), column)

    def _append_ids(self, at: tuple[str, ...], column: Column) -> None:
        name = at[-1]
        if not isinstance(column, Ragged):
            self.shapes.setdefault(name, tuple(column.shape))
            self._grow(at, column.numpy())
            return
        self._grow((*at, "values"), column.values.numpy())
        offsets = (*at, "offsets")
        if offsets not in self.growing:
            self._grow(offsets, np.zeros(1, dtype=np.int64))
        before = self.growing[*at, "values"].length - len(column.values)
        self._grow(offsets, column.offsets.numpy()[1:] + before)
        self.longest[name] = max(self.longest[name], int(column.sizes.numpy().max(initial=1)))

    def _grow(self, at: tuple[str, ...], array: np.ndarray) -> None:
        if at not in self.growing:
            width = array.shape[1] if array.ndim == 2 else None
            self.growing[at] = self.writer.growing(at, array.dtype, width)
        self.growing[at].append(array)

    def _index(self) -> None:
        """Writes what is left of the index sets once the held ids are known."""
        for table in self.tables:
            held = self.held[table]
            ids = map_array(self.writer.folder / self.writer.file(("index", table, "ids")))
            place = self.writer.growing(("index", table, "place"), np.int64)
            for low in range(0, len(ids), PIECE):
                place.append(np.searchsorted(held, ids[low : low + PIECE]))
            place.close()
            self.writer.array(("index", table, "held"), held)
            sizes = np.concatenate(self.index_sizes[table])
            self.writer.array(("index", table, "splits"), _splits(sizes))

    def _remember(self, table: str, columns: Mapping[str, Spilled], owner: np.ndarray) -> None:
        """Notes who holds which rows of a local table, in training or test."""
        names = self.layout.columns_of(table)
        pairs = np.concatenate([np.stack(_flat(columns[f"ids {n}"], owner), 1) for n in names])
        if table in self.coder.padded:
            pairs = pairs[pairs[:, 0] != 0]
        pairs = np.unique(pairs, axis=0)
        self.local[table].append((pairs[:, 0], pairs[:, 1]))

    def _check_local(self) -> None:
        for table, holders in self.local.items():
            ids, owner = (np.concatenate(part) for part in zip(*holders, strict=True))
            order = np.argsort(ids, kind="stable")
            twice = np.flatnonzero(np.diff(ids[order]) == 0)
            if len(twice):
                first, second = owner[order[twice[0] : twice[0] + 2]].tolist()
                words = {t: rows.numbering.vocabulary for t, rows in self.rows.items()}
                row = int(ids[order[twice[0]]])
                value = value_of(words, table, table in self.coder.padded, row)
                raise shared_row(table, value, self.names, first, second)

    def _size(self, table: str) -> int:
        how = self.layout.rows(table)
        if isinstance(how, int):
            return how
        return how.rows if isinstance(how, Hashed) else self.rows[table].numbering.rows


def _array(raw: Spilled) -> np.ndarray:
    assert isinstance(raw, np.ndarray)
    return raw


def _flat(raw: Spilled, of: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Every entry of a column, and what its example has of something else."""
    if isinstance(raw, Ragged):
        return raw.values.numpy(), np.repeat(of, raw.sizes.numpy())
    return raw.ravel(), np.repeat(of, raw.size // max(len(raw), 1))


def _splits(sizes: np.ndarray) -> np.ndarray:
    return np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
