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
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from fedrows.data.columns import as_labels, as_marks, as_numbers, as_target, as_weights
from fedrows.data.examples import shared_row, untrained_note
from fedrows.data.frames import Lists, Raw
from fedrows.data.layout import Layout
from fedrows.data.splits import as_times
from fedrows.data.stored.arrow import Clients, ParquetTable, as_numpy, numbers_of
from fedrows.data.stored.coder import Coder
from fedrows.data.stored.spill import OWNER, Spill
from fedrows.data.stored.store import Growing, Writer, as_plain, making, map_array
from fedrows.data.vocabulary import Hashed, Numbering, Vocabulary, number_values, value_of
from fedrows.errors import DataError
from fedrows.rows.index import index_and_slots

PIECE = 2**22  # entries of an index that are looked up at once


def write(table: ParquetTable, layout: Layout, place: Path, key: dict[str, Any]) -> None:
    """Puts the store of a table in its place."""
    with making(place) as folder, Writer(folder) as writer:
        clients = Clients()
        for _, batch in table.batches([layout.client]):
            clients.add(batch[layout.client])
        names, who, sizes = clients.finish()
        begin = np.cumsum(sizes) - sizes
        _, part = np.unique(begin // table.part, return_inverse=True)
        spill = Spill(folder / "spill", part)
        coder = Coder(table, layout)
        _sort_into_parts(table, layout, names, coder, spill)
        numbering = _count_values(layout, coder, spill)
        facts = _Columns(layout, coder, spill, numbering, who, writer).write()
        shutil.rmtree(spill.folder)
        writer.finish(facts, key)


def _sort_into_parts(
    table: ParquetTable, layout: Layout, names: Any, coder: Coder, spill: Spill
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
        columns: dict[str, Raw] = {OWNER: owner, "label": label}
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


def _held(layout: Layout, spill: Spill, part: int, columns: Mapping[str, Raw]) -> np.ndarray:
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
        new, place = np.unique(codes, return_inverse=True)
        test = np.bincount(place[held], minlength=len(new))
        train = np.bincount(place, minlength=len(new)) - test
        both, place = np.unique(np.concatenate([self.codes, new]), return_inverse=True)
        for name, more in (("train", train), ("test", test)):
            counts = np.bincount(place, np.concatenate([getattr(self, name), more]), len(both))
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


def _count_values(layout: Layout, coder: Coder, spill: Spill) -> dict[str, _Rows]:
    """Step 3: the rows of every vocabulary's values."""
    counts = {
        table: _Counts()
        for table in dict.fromkeys(layout.fields.values())
        if isinstance(layout.rows(table), Vocabulary)
    }
    for part in range(spill.parts if counts else 0):
        columns = spill.load(part)
        held = _held(layout, spill, part, columns)
        for column, table in layout.fields.items():
            if table in counts:
                values, marks = _flat(columns[f"ids {column}"], held)
                counts[table].add(values, marks)
    found = {}
    for table, its in counts.items():
        how = layout.rows(table)
        assert isinstance(how, Vocabulary)
        words = coder.words[table].take(its.codes) if table in coder.words else its.codes
        order = np.argsort(words, kind="stable")
        numbering = number_values(
            table, how, words[order], its.train[order], its.test[order], table in coder.padded
        )
        row = np.empty_like(its.codes)
        row[order] = numbering.row
        found[table] = _Rows(its.codes, row, numbering)
    return found


class _Columns:
    """Step 4: the columns of the store, part after part."""

    def __init__(
        self,
        layout: Layout,
        coder: Coder,
        spill: Spill,
        rows: Mapping[str, _Rows],
        names: np.ndarray,
        writer: Writer,
    ) -> None:
        self.layout, self.coder, self.spill, self.rows = layout, coder, spill, rows
        self.names, self.writer = names, writer
        self.tables = list(dict.fromkeys(layout.fields.values()))
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
        for table, its in self.rows.items():
            writer.array(("vocabulary", table), as_plain(its.numbering.vocabulary))
        writer.array(("client_names",), as_plain(self.names[order]))
        notes = self.coder.notes(int(self.train_sizes.sum() + self.test_sizes.sum()))
        notes += [note for its in self.rows.values() for note in its.numbering.notes]
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

    def _load(self, part: int) -> tuple[dict[str, Raw], np.ndarray, np.ndarray]:
        """A part's columns with ids as rows, each example's client, and which are held out."""
        columns = self.spill.load(part)
        for column, table in self.layout.fields.items():
            if table in self.rows:
                codes = columns[f"ids {column}"]
                columns[f"ids {column}"] = (
                    Lists(self.rows[table](codes.values), codes.offsets)
                    if isinstance(codes, Lists)
                    else self.rows[table](codes)
                )
        held = _held(self.layout, self.spill, part, columns)
        return columns, _array(columns[OWNER]), held

    def _part(self, part: int) -> None:
        """Appends a part's training examples, and the test examples of clients that train."""
        columns, owner, held = self._load(part)
        low, high = self.spill.clients(part)
        train = np.bincount(owner[~held] - low, minlength=high - low)
        self.train_sizes[low:high] = train
        self.test_sizes[low:high] = np.bincount(owner[held] - low, minlength=high - low)
        self._append("train", columns, np.flatnonzero(~held))
        self._append("test", columns, np.flatnonzero(held & (train > 0)[owner - low]))
        client = np.cumsum(train > 0) - 1  # its place among the part's clients that train
        for table in self.tables:
            mine = [c for c, its in self.layout.fields.items() if its == table]
            owners, ids, real = [], [], []
            for column in mine:
                its = _pick(columns[f"ids {column}"], np.flatnonzero(~held))
                values, who = _flat(its, client[owner[~held] - low])
                keep = values != 0 if table in self.coder.padded else np.ones(len(values), bool)
                owners.append(who[keep])
                ids.append(values[keep])
                real.append(keep)
            index, found = index_and_slots(int((train > 0).sum()), owners, ids)
            assert index.held is not None
            self._grow(("index", table, "ids"), index.ids.numpy())
            self.index_sizes[table].append(index.lengths.numpy())
            self.held[table] = np.union1d(self.held[table], index.held.numpy())
            for column, slots, keep in zip(mine, found, real, strict=True):
                places = np.full(len(keep), -1)
                places[keep] = slots
                if column in self.coder.lists:
                    self._grow(("slots", column, "values"), places)
                else:
                    shape = _array(columns[f"ids {column}"]).shape[1:]
                    self._grow(("slots", column), places.reshape(-1, *shape))
            if table in self.local:
                self._remember(table, mine, columns, owner)

    def _part_untrained(self, part: int, untrained: np.ndarray) -> None:
        """Appends the test examples of a part's clients that do not train."""
        columns, owner, _ = self._load(part)
        self._append("test", columns, np.flatnonzero(untrained[owner]))

    def _append(self, where: str, columns: Mapping[str, Raw], chosen: np.ndarray) -> None:
        self._grow((where, "label"), _array(columns["label"])[chosen])
        if "weight" in columns:
            self._grow((where, "weight"), _array(columns["weight"])[chosen])
        for column in self.layout.numbers:
            self._grow((where, "numbers", column), _array(columns[f"numbers {column}"])[chosen])
        for column in self.layout.fields:
            its = _pick(columns[f"ids {column}"], chosen)
            at = (where, "ids", column)
            if isinstance(its, Lists):
                self._grow((*at, "values"), its.values)
                offsets = (*at, "offsets")
                if offsets not in self.growing:
                    self._grow(offsets, np.zeros(1, dtype=np.int64))
                before = self.growing[*at, "values"].length - len(its.values)
                self._grow(offsets, its.offsets[1:] + before)
                longest = int(np.diff(its.offsets).max(initial=1))
                self.longest[column] = max(self.longest[column], longest)
            else:
                self.shapes.setdefault(column, its.shape)
                self._grow(at, its)

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

    def _remember(
        self, table: str, mine: list[str], columns: Mapping[str, Raw], owner: np.ndarray
    ) -> None:
        """Notes who holds which rows of a local table, in training or test."""
        found = [_flat(columns[f"ids {column}"], owner) for column in mine]
        pairs = np.concatenate([np.stack(pair, 1) for pair in found])
        if table in self.coder.padded:
            pairs = pairs[pairs[:, 0] != 0]
        pairs = np.unique(pairs, axis=0)
        self.local[table].append((pairs[:, 0], pairs[:, 1]))

    def _check_local(self) -> None:
        for table, found in self.local.items():
            ids, owner = (np.concatenate(part) for part in zip(*found, strict=True))
            order = np.argsort(ids, kind="stable")
            twice = np.flatnonzero(np.diff(ids[order]) == 0)
            if len(twice):
                first, second = owner[order[twice[0] : twice[0] + 2]].tolist()
                words = {t: its.numbering.vocabulary for t, its in self.rows.items()}
                row = int(ids[order[twice[0]]])
                value = value_of(words, table, table in self.coder.padded, row)
                raise shared_row(table, value, self.names, first, second)

    def _size(self, table: str) -> int:
        how = self.layout.rows(table)
        if isinstance(how, int):
            return how
        return how.rows if isinstance(how, Hashed) else self.rows[table].numbering.rows


def _array(raw: Raw) -> np.ndarray:
    assert isinstance(raw, np.ndarray)
    return raw


def _pick(raw: Raw, chosen: np.ndarray) -> Raw:
    return raw.pick(chosen) if isinstance(raw, Lists) else raw[chosen]


def _flat(raw: Raw, of: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Every entry of a column, and what its example has of something else."""
    if isinstance(raw, Lists):
        return raw.values, np.repeat(of, np.diff(raw.offsets))
    return raw.ravel(), np.repeat(of, raw.size // max(len(raw), 1))


def _splits(sizes: np.ndarray) -> np.ndarray:
    return np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
