"""One table's touched rows, and beside them everything that has its shape: moments, controls.

All columns of a table share its places: a row that is touched in one exists in all of them, from
its start value on.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fedrows.tables.column import Column
from fedrows.tables.places import Places
from fedrows.tables.starts import Start
from fedrows.tables.undo import Undo

_TOGETHER = 2**16  # rows whose start values are made at once


class Kept:
    """The rows of one table that were touched; files come to be with the first of them."""

    def __init__(self, rows: int, stem: Path, create: Callable[[], None]) -> None:
        self.rows = rows  # that the table has, touched or not
        self.stem = stem  # what the names of its files begin with
        self.create = create  # makes the files if they are not there
        self.parts: list[Part] = []
        self.places = Places(Column(stem.with_suffix(".ids"), (), torch.int64))
        self.safe = 0  # places that the last checkpoint knows
        self.undo: Undo | None = None
        self._logged = np.zeros(0, dtype=bool)  # by place: changed since the checkpoint

    def columns(self) -> list[Column]:
        """Every column of values."""
        return [part.column for part in self.parts]

    @property
    def nbytes(self) -> int:
        """What the touched rows weigh in all columns, their ids included."""
        columns = (self.places.column, *self.columns())
        return self.places.count * sum(column.row_bytes for column in columns)

    def sync(self) -> None:
        """Waits until all of it is on the disk."""
        for column in (self.places.column, *self.columns()):
            column.sync()

    def before_change(self, places: Tensor) -> None:
        """Writes down what rows that the checkpoint knows are, the first time they change."""
        if not self.safe or self.undo is None:
            return
        known = places.numpy()
        known = known[known < self.safe]
        known = np.unique(known[~self._logged[known]])
        if len(known):
            self.undo.write(torch.from_numpy(known), self.columns())
            self._logged[known] = True

    def fill(self) -> None:
        """Gives every place its start value in every column."""
        for part in self.parts:
            part.fill()

    def saved(self, undo: Undo) -> None:
        """The rows as they are now are what to go back to."""
        self.safe = self.places.count
        self.undo = undo
        self._logged = np.zeros(self.safe, dtype=bool)

    def go_back(self, count: int, undo: Undo) -> None:
        """Puts the rows back to where a checkpoint with so many of them has them."""
        for places, rows in undo.records(self.columns()):
            for part, old in zip(self.parts, rows, strict=True):
                part.column.rows[places] = old
        self.places.set_count(count)
        for part in self.parts:
            part.filled = count


class Part:
    """One column of a table: rows that are read and written by id."""

    def __init__(self, kept: Kept, start: Start, tail: tuple[int, ...], dtype: torch.dtype) -> None:
        self.kept, self.start = kept, start
        number = len(kept.parts)
        self.column = Column(kept.stem.with_suffix(f".{number}.rows"), tail, dtype)
        self.filled = 0  # places that have a value here
        self._last: tuple[Tensor, Tensor] | None = None  # start values that were drawn last
        kept.parts.append(self)

    def read(self, ids: Tensor) -> Tensor:
        """The rows of some ids; one that was never touched is as it starts."""
        place = self.kept.places.find(ids)
        missing = (place < 0).nonzero().view(-1)
        if not len(missing):
            self.fill()
            return self.column.rows.index_select(0, place)
        once, which = torch.unique(ids[missing], return_inverse=True)
        started = self._started(once).index_select(0, which)
        if len(missing) == len(ids):
            return started
        self.fill()
        rows = self.column.rows.index_select(0, place.clamp(min=0))
        rows[missing] = started
        return rows

    def touched(self) -> Tensor:
        """The ids of the rows that exist, sorted."""
        return self.kept.places.ids.sort().values

    def write(self, ids: Tensor, values: Tensor) -> None:
        """Puts values in the place of some rows."""
        place = self._to_change(ids)  # which may move the column
        self.column.rows[place] = values

    def add(self, ids: Tensor, values: Tensor) -> None:
        """Adds to some rows, duplicates in order."""
        place = self._to_change(ids)
        rows = self.column.rows
        if self.column.tail == (1,):  # as a vector, which PyTorch does four times as fast
            rows, values = rows.view(-1), values.view(-1)
        rows.index_add_(0, place, values)

    def fill(self) -> None:
        """Gives the places that have no value yet their start values."""
        count, ids = self.kept.places.count, self.kept.places.ids
        if self.filled < count:
            self.column.reserve(count)
            for low in range(self.filled, count, _TOGETHER):
                high = min(low + _TOGETHER, count)
                self.column.rows[low:high] = self._started(ids[low:high])
            self.filled = count

    def _started(self, ids: Tensor) -> Tensor:
        """The start values of some ids; what is drawn to be read is soon wanted to be kept."""
        if self._last is None or not torch.equal(self._last[0], ids):
            self._last = (ids.clone(), self.start(ids).to(self.column.dtype))
        return self._last[1]

    def _to_change(self, ids: Tensor) -> Tensor:
        """The places of rows that are about to change."""
        self.kept.create()
        place = self.kept.places.find_or_add(ids)
        self.kept.fill()
        self.kept.before_change(place)
        return place
