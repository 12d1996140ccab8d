"""One table's touched rows, and beside them everything that has its shape: moments, controls.

All files of a table share its positions: a row that is touched in one exists in all of them, and
starts from its initial value.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fedrows.tables.id_map import IdMap
from fedrows.tables.initial_rows import InitialRows
from fedrows.tables.row_file import RowFile
from fedrows.tables.undo_log import UndoLog

_TOGETHER = 2**16  # rows whose start values are made at once


class TouchedRows:
    """The rows of one table that were touched; the first one creates the files."""

    def __init__(self, rows: int, stem: Path, create: Callable[[], None]) -> None:
        self.rows = rows  # that the table has, touched or not
        self.stem = stem  # what the names of its files begin with
        self.create = create  # makes the files if they are not there
        self.values: list[MappedRows] = []
        self.id_map = IdMap(RowFile(stem.with_suffix(".ids"), (), torch.int64))
        self.safe = 0  # positions that the last checkpoint knows
        self.undo: UndoLog | None = None
        self._logged = np.zeros(0, dtype=bool)  # by position: changed since the checkpoint

    def value_files(self) -> list[RowFile]:
        """Every file of values."""
        return [rows.file for rows in self.values]

    def files(self) -> list[RowFile]:
        """The same, and before them the file of ids."""
        return [self.id_map.file, *self.value_files()]

    @property
    def nbytes(self) -> int:
        """What the touched rows weigh in all files."""
        return self.id_map.count * sum(file.row_bytes for file in self.files())

    def sync(self) -> None:
        """Waits until all of it is on the disk."""
        for file in self.files():
            file.sync()

    def before_change(self, positions: Tensor) -> None:
        """Writes down what rows that the checkpoint knows are, the first time they change."""
        if not self.safe or self.undo is None:
            return
        known = positions.numpy()
        known = known[known < self.safe]
        known = np.unique(known[~self._logged[known]])
        if len(known):
            self.undo.write(torch.from_numpy(known), self.value_files())
            self._logged[known] = True

    def finite(self) -> bool:
        """Whether no row that has changed since the checkpoint is infinite or NaN."""
        changed = np.flatnonzero(self._logged)
        new = np.arange(self.safe, self.id_map.count)
        positions = torch.from_numpy(np.concatenate([changed, new]))
        return all(
            bool(values.file.rows[some[some < values.filled]].isfinite().all())
            for values in self.values
            for some in positions.split(_TOGETHER)
        )

    def fill(self) -> None:
        """Gives every position its start value in every file."""
        for rows in self.values:
            rows.fill()

    def saved(self, undo: UndoLog) -> None:
        """The rows as they are now are what to go back to."""
        self.safe = self.id_map.count
        self.undo = undo
        self._logged = np.zeros(self.safe, dtype=bool)

    def restore(self, count: int, undo: UndoLog) -> None:
        """Puts the rows back to where a checkpoint with so many of them has them."""
        for positions, old in undo.records(self.value_files()):
            for rows, before in zip(self.values, old, strict=True):
                rows.file.rows[positions] = before
        self.id_map.set_count(count)
        for rows in self.values:
            rows.filled = count


class MappedRows:
    """One file of values of a table; its rows are read and written by id."""

    def __init__(
        self, table: TouchedRows, start: InitialRows, tail: tuple[int, ...], dtype: torch.dtype
    ) -> None:
        self.table, self.start = table, start
        number = len(table.values)
        self.file = RowFile(table.stem.with_suffix(f".{number}.rows"), tail, dtype)
        self.filled = 0  # positions that have a value here
        self._last: tuple[Tensor, Tensor] | None = None  # start values that were drawn last
        table.values.append(self)

    def read(self, ids: Tensor) -> Tensor:
        """The rows of some ids; one that was never touched is as it starts."""
        positions = self.table.id_map.find(ids)
        missing = (positions < 0).nonzero().view(-1)
        if not len(missing):
            self.fill()
            return self.file.rows.index_select(0, positions)
        once, which = torch.unique(ids[missing], return_inverse=True)
        started = self._started(once).index_select(0, which)
        if len(missing) == len(ids):
            return started
        self.fill()
        rows = self.file.rows.index_select(0, positions.clamp(min=0))
        rows[missing] = started
        return rows

    def touched(self) -> Tensor:
        """The ids of the rows that exist, sorted."""
        return self.table.id_map.ids.sort().values

    def write(self, ids: Tensor, values: Tensor) -> None:
        """Replaces some rows by values."""
        positions = self._to_change(ids)  # which may move the file
        self.file.rows[positions] = values

    def add(self, ids: Tensor, values: Tensor) -> None:
        """Adds to some rows, duplicates in order."""
        positions = self._to_change(ids)
        rows = self.file.rows
        if self.file.tail == (1,):  # as a vector, which PyTorch does four times as fast
            rows, values = rows.view(-1), values.view(-1)
        rows.index_add_(0, positions, values)

    def fill(self) -> None:
        """Gives the positions that have no value yet their start values."""
        count, ids = self.table.id_map.count, self.table.id_map.ids
        if self.filled < count:
            self.file.reserve(count)
            for low in range(self.filled, count, _TOGETHER):
                high = min(low + _TOGETHER, count)
                self.file.rows[low:high] = self._started(ids[low:high])
            self.filled = count

    def _started(self, ids: Tensor) -> Tensor:
        """The start values of some ids; what is drawn for reading is soon written."""
        if self._last is None or not torch.equal(self._last[0], ids):
            self._last = (ids.clone(), self.start(ids).to(self.file.dtype))
        return self._last[1]

    def _to_change(self, ids: Tensor) -> Tensor:
        """The positions of rows that are about to change."""
        self.table.create()
        positions = self.table.id_map.find_or_add(ids)
        self.table.fill()
        self.table.before_change(positions)
        return positions
