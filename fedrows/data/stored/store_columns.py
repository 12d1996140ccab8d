"""The columns of a store, written part after part: rows for codes, index sets and slots."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from fedrows.data.column_checks import as_target
from fedrows.data.column_layout import Layout
from fedrows.data.encoder import Encoder, encoder_of
from fedrows.data.examples import (
    Examples,
    index_of,
    shared_row,
    sort_by_client,
    untrained_note,
)
from fedrows.data.stored.feature_codes import FeatureCoder
from fedrows.data.stored.held_out import as_array, held_out
from fedrows.data.stored.spill import OWNER, Spill, Spilled
from fedrows.data.stored.store import map_array
from fedrows.data.stored.store_writer import GrowingArray, StoreWriter, as_plain
from fedrows.data.vocabulary import Hashed, Numbering, Vocabulary, value_of
from fedrows.errors import DataError
from fedrows.rows.ragged import Column, Ragged

PIECE = 2**22  # entries of an index that are looked up at once


@dataclass(frozen=True)
class CodedRows:
    """The row of every code of a table."""

    codes: np.ndarray  # (V,), sorted
    row: np.ndarray  # (V,)
    numbering: Numbering

    def __call__(self, codes: np.ndarray) -> np.ndarray:
        return self.row[np.searchsorted(self.codes, codes)]


class StoreColumns:
    """Writes the columns of a store, a part of the clients after another."""

    def __init__(
        self,
        layout: Layout,
        coder: FeatureCoder,
        spill: Spill,
        rows: Mapping[str, CodedRows],
        names: np.ndarray,
        writer: StoreWriter,
    ) -> None:
        self.layout, self.coder, self.spill, self.rows = layout, coder, spill, rows
        self.names, self.writer = names, writer
        self.tables = layout.table_names
        self.growing: dict[tuple[str, ...], GrowingArray] = {}
        self.longest = dict.fromkeys(coder.lists, 1)
        self.held = {table: np.empty(0, dtype=np.int64) for table in self.tables}
        self.local: dict[str, list[tuple[np.ndarray, np.ndarray]]] = {t: [] for t in layout.local}
        self.index_sizes: dict[str, list[np.ndarray]] = {table: [] for table in self.tables}
        held = ["test"] if layout.validation_split.takes_nothing else ["validation", "test"]
        self.train_sizes = np.zeros(len(names), dtype=np.int64)
        self.held_sizes = {name: np.zeros(len(names), dtype=np.int64) for name in held}
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.widths: dict[str, int | None] = dict.fromkeys(layout.numbers)

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
        for name, sizes in self.held_sizes.items():
            writer.array((name, "splits"), _splits(sizes[order]))
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
        every = [self.train_sizes, *self.held_sizes.values()]
        notes = self.coder.notes(sum(int(sizes.sum()) for sizes in every))
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
            "encoder": self._encoder(target).as_facts(),
        }

    def _load(
        self, part: int
    ) -> tuple[dict[str, Spilled], np.ndarray, dict[str, np.ndarray]]:  # fmt: skip
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
        test, validation = held_out(self.layout, self.spill, part, columns)
        marks = {"validation": validation, "test": test}
        return columns, as_array(columns[OWNER]), {name: marks[name] for name in self.held_sizes}

    def _part(self, part: int) -> None:
        """Appends a part's training examples, and the held-out ones of clients that train."""
        columns, owner, held = self._load(part)
        low, high = self.spill.clients(part)
        within = owner - low  # the client's number in the part
        free = ~np.logical_or.reduce(list(held.values()))
        self.train_sizes[low:high] = np.bincount(within[free], minlength=high - low)
        trains = self.train_sizes[low:high] > 0
        count = int(trains.sum())
        train = self._examples(columns, (np.cumsum(trains) - 1)[within], free, count)
        self._append("train", train)
        for name, marks in held.items():
            self.held_sizes[name][low:high] = np.bincount(within[marks], minlength=high - low)
            chosen = marks & trains[within]
            self._append(name, self._examples(columns, within, chosen, high - low))
        index, slots = index_of(self.tables, self.layout.fields, self.coder.padded, count, [train])
        for table in self.tables:
            sets = index[table]
            assert sets.held is not None
            self._grow(("index", table, "ids"), sets.ids.numpy())
            self.index_sizes[table].append(sets.lengths.numpy())
            self.held[table] = np.union1d(self.held[table], sets.held.numpy())
            if table in self.local:
                self._remember(table, columns, owner, ~free)
        for name, column in slots.items():
            if isinstance(column, Ragged):
                self._grow(("slots", name, "values"), column.values.numpy())
            else:
                self._grow(("slots", name), column.numpy())

    def _part_untrained(self, part: int, untrained: np.ndarray) -> None:
        """Appends the held-out examples of a part's clients that do not train."""
        columns, owner, held = self._load(part)
        for name, marks in held.items():
            chosen = marks & untrained[owner]
            self._append(name, self._examples(columns, owner, chosen, len(self.names)))

    def _examples(
        self, columns: Mapping[str, Spilled], owner: np.ndarray, chosen: np.ndarray, clients: int
    ) -> Examples:
        """The chosen examples of a part, client after client."""
        return sort_by_client(
            owner,
            {name: columns[f"ids {name}"] for name in self.layout.fields},
            as_array(columns["label"]),
            {name: as_array(columns[f"numbers {name}"]) for name in self.layout.numbers},
            as_array(columns["weight"]) if "weight" in columns else None,
            chosen,
            clients,
        )

    def _append(self, where: str, examples: Examples) -> None:
        self._grow((where, "label"), examples.label.numpy())
        if examples.weight is not None:
            self._grow((where, "weight"), examples.weight.numpy())
        for name, numbers in examples.numbers.items():
            self.widths[name] = numbers.shape[1] if numbers.dim() == 2 else None
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
            positions = self.writer.growing(("index", table, "place"), np.int64)
            for low in range(0, len(ids), PIECE):
                positions.append(np.searchsorted(held, ids[low : low + PIECE]))
            positions.close()
            self.writer.array(("index", table, "held"), held)
            sizes = np.concatenate(self.index_sizes[table])
            self.writer.array(("index", table, "splits"), _splits(sizes))

    def _remember(
        self, table: str, columns: Mapping[str, Spilled], owner: np.ndarray, held: np.ndarray
    ) -> None:
        """Notes who holds which rows of a local table, in training or held out.

        Held out, the row of unknown values is nobody's.
        """
        names, how = self.layout.columns_of(table), self.layout.rows(table)
        pairs = np.concatenate([np.stack(flat(columns[f"ids {n}"], owner), 1) for n in names])
        if isinstance(how, Vocabulary) and how.oov:
            marks = np.concatenate([flat(columns[f"ids {n}"], held)[1] for n in names])
            pairs = pairs[~marks | (pairs[:, 0] != self._size(table) - 1)]
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

    def _encoder(self, target: tuple[str, int | None] | None) -> Encoder:
        """What remembers how the columns were encoded."""
        return encoder_of(
            self.layout,
            {table: self._size(table) for table in self.tables},
            self.coder.padded,
            self.coder.kinds,
            self.shapes,
            self.longest,
            self.widths,
            target,
        )

    def _size(self, table: str) -> int:
        how = self.layout.rows(table)
        if isinstance(how, int):
            return how
        return how.rows if isinstance(how, Hashed) else self.rows[table].numbering.rows


def flat(raw: Spilled, of: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Every entry of a column, and what its example has of something else."""
    if isinstance(raw, Ragged):
        return raw.values.numpy(), np.repeat(of, raw.sizes.numpy())
    return raw.ravel(), np.repeat(of, raw.size // max(len(raw), 1))


def _splits(sizes: np.ndarray) -> np.ndarray:
    return np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
