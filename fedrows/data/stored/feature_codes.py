"""Features of a streamed table as whole numbers, before all of their values are known."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedrows.data.column_layout import Layout
from fedrows.data.frames import cut_note, zero_note
from fedrows.data.stored.parquet_table import ParquetTable, Words, as_lists, as_numpy, decoded
from fedrows.data.values import TEXT, hashed
from fedrows.data.vocabulary import Hashed, Vocabulary, no_order
from fedrows.errors import DataError
from fedrows.rows.ragged import Ragged, lists_of


class FeatureCoder:
    """Features as whole numbers: rows where a table has them at once, else codes of values."""

    def __init__(self, table: ParquetTable, layout: Layout) -> None:
        self.layout = layout
        self.lists = {c for c in layout.fields if table.is_list(c)}
        self.padded = {layout.fields[c] for c in self.lists}
        self.words: dict[str, Words] = {}  # of the tables whose values are no whole numbers
        self.cut = dict.fromkeys(layout.fields, 0)
        self.zeros = dict.fromkeys(layout.fields.values(), 0)
        self.kinds: dict[str, str] = {}  # of each table's values
        for name in layout.table_names:
            columns = layout.columns_of(name)
            kinds = {table.kind(c) for c in columns}
            self.kinds[name] = kinds.pop() if len(kinds) == 1 else TEXT
            whole = {table.is_whole(c) for c in columns}
            if isinstance(layout.rows(name), Vocabulary):
                if len(whole) > 1:
                    raise no_order(name, dict.fromkeys(columns))
                if whole == {False}:
                    self.words[name] = Words()

    def code(self, column: str, array: Any, first: int) -> np.ndarray | Ragged:
        """A batch of a feature, as codes."""
        if column not in self.lists:
            flat = array.flatten() if array.type.num_fields else array
            width = (len(flat) // len(array),) if array.type.num_fields else ()
            return self._codes(column, decoded(flat), first, None).reshape(len(array), *width)
        values, sizes = as_lists(array)
        most = self.layout.longest(column)
        if most is not None and (too_long := int((sizes > most).sum())):
            self.cut[column] += too_long
            positions = lists_of(np.arange(len(values)), sizes).last(most)
            values, sizes = values.take(positions.values.numpy()), positions.sizes.numpy()
        codes = self._codes(column, decoded(values), first, np.cumsum(sizes))
        return lists_of(np.require(codes, requirements="W"), sizes)  # arrow's own is read-only

    def _codes(
        self, column: str, values: Any, first: int, ends: np.ndarray | None
    ) -> np.ndarray:  # fmt: skip
        table = self.layout.fields[column]
        how, padded = self.layout.rows(table), table in self.padded
        if table in self.words:
            return self.words[table].codes(values)
        if isinstance(how, Hashed):
            different = values.dictionary_encode()
            rows = hashed(column, as_numpy(different.dictionary), how.rows, padded)
            return rows[different.indices.to_numpy(zero_copy_only=False)]
        whole = as_numpy(values)
        if isinstance(how, int):
            self._check(column, whole, how, first, ends)
            if padded:
                self.zeros[table] += int((whole == 0).sum())
        return whole.astype(np.int64, copy=False)

    def _check(
        self, column: str, ids: np.ndarray, rows: int, first: int, ends: np.ndarray | None
    ) -> None:  # fmt: skip
        table = self.layout.fields[column]
        if ids.dtype.kind not in "iu":
            kind = "text" if ids.dtype.kind == "O" else f"{ids.dtype} values"
            raise DataError(
                f"Column {column!r} holds {kind}, but ids of a table of given size are whole "
                f"numbers: leave table {table!r} out of `tables` to get a vocabulary."
            )
        bad = (ids < 0) | (ids >= rows)
        if bad.any():
            at = int(np.argmax(bad))
            example = at if ends is None else int(np.searchsorted(ends, at, "right"))
            raise DataError(
                f"Column {column!r} of example {first + example} has id {ids[at]}, outside "
                f"table {table!r} of {rows} rows: ids go from 0 to {rows - 1}."
            )

    def notes(self, rows: int) -> list[str]:
        """What is to be said about lists."""
        notes = [
            cut_note(c, cut, rows, self.layout.longest(c) or 0)
            for c, cut in self.cut.items()
            if cut
        ]
        return notes + [zero_note(table, zeros) for table, zeros in self.zeros.items() if zeros]
