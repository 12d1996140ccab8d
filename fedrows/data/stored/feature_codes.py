"""Features of a streamed table as whole numbers, before all of their values are known."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedrows.data.column_checks import check_ids
from fedrows.data.column_layout import Layout
from fedrows.data.frames import cut_note, zero_note
from fedrows.data.stored.parquet_table import ParquetTable, Words, as_lists, as_numpy, decoded
from fedrows.data.values import TEXT, hashed
from fedrows.data.vocabulary import Hashed, Vocabulary, no_order
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
            ends = len(flat) // max(len(array), 1) * np.arange(1, len(array) + 1)
            codes = self._codes(column, decoded(flat), first, ends)
            return codes.reshape(len(array), -1) if array.type.num_fields else codes
        values, sizes = as_lists(array)
        most = self.layout.longest(column)
        if most is not None and (too_long := int((sizes > most).sum())):
            self.cut[column] += too_long
            positions = lists_of(np.arange(len(values)), sizes).last(most)
            values, sizes = values.take(positions.values.numpy()), positions.sizes.numpy()
        codes = self._codes(column, decoded(values), first, np.cumsum(sizes))
        return lists_of(np.require(codes, requirements="W"), sizes)  # arrow's own is read-only

    def _codes(self, column: str, values: Any, first: int, ends: np.ndarray) -> np.ndarray:
        table = self.layout.fields[column]
        how, padded = self.layout.rows(table), table in self.padded
        if table in self.words:
            return self.words[table].codes(values)
        if isinstance(how, Hashed):
            different = values.dictionary_encode()
            rows = hashed(column, as_numpy(different.dictionary), how.rows, padded)
            return rows[different.indices.to_numpy(zero_copy_only=False)]
        numbers = as_numpy(values)
        if isinstance(how, int):
            check_ids(f"Column {column!r}", numbers, table, how, ends, first)
            if padded:
                self.zeros[table] += int((numbers == 0).sum())
        return numbers.astype(np.int64, copy=False)

    def notes(self, rows: int) -> list[str]:
        """What is to be said about lists."""
        notes = [
            cut_note(c, cut, rows, self.layout.longest(c) or 0)
            for c, cut in self.cut.items()
            if cut
        ]
        return notes + [zero_note(table, zeros) for table, zeros in self.zeros.items() if zeros]
