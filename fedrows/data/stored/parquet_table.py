"""Parquet files as one table that is read batch by batch; arrow's columns as NumPy's.

Rows are numbered through all files. Arrow is imported only when something is read.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from fedrows.data.column_checks import no_nulls
from fedrows.data.column_layout import Layout
from fedrows.data.values import NUMBER, TEXT, TIME
from fedrows.errors import DataError
from fedrows.files.whole import reason

BATCH = 2**25  # bytes in a batch, as Parquet counts them
PART = 2**27  # bytes in a part


class ParquetTable:
    """The columns of some Parquet files; an error of arrow becomes a DataError."""

    def __init__(self, files: list[Path], layout: Layout) -> None:
        self.files = files
        self.rows, size = 0, 0
        self._kinds: dict[str, str] = {}
        for file in files:
            with _reading(file) as source:
                schema, about = source.schema_arrow, source.metadata
                layout.require(schema.names, str(file))
                for column in layout.columns:
                    self._check_kind(column, _kind(schema.field(column).type), file)
                self.rows += about.num_rows
                size += _size(about, set(layout.columns))
        if not self.rows:
            raise DataError(f"There is not a single example in {files[0].parent}: check the files.")
        each = max(size / self.rows, 1.0) + 8 * len(layout.columns)  # codes are 8 bytes each
        self.batch = int(np.clip(BATCH / each, 1, 2**18))
        self.part = max(int(PART / each), self.batch, self.rows // 256)

    def is_list(self, column: str) -> bool:
        """Whether a column holds lists of different lengths."""
        return self._kinds[column].startswith("lists")

    def is_whole(self, column: str) -> bool:
        """Whether a column holds whole numbers, or lists of them."""
        return self._kinds[column].endswith("whole numbers")

    def kind(self, column: str) -> str:
        """Whether a column holds numbers, text or times."""
        word = self._kinds[column].removeprefix("lists of ").rpartition(" times ")[2]
        if word.startswith(("date", "timestamp")):
            return TIME
        return TEXT if word == "text" else NUMBER

    def batches(self, columns: list[str]) -> Iterator[tuple[int, dict[str, Any]]]:
        """The number of each batch's first row, and its columns as arrow arrays without nulls."""
        first = 0
        for file in self.files:
            with _reading(file) as source:
                # A column of a name with a dot would be taken for a field of another.
                for batch in source.iter_batches(self.batch, columns=columns):
                    arrays = {column: decoded(batch.column(column)) for column in columns}
                    for column, array in arrays.items():
                        _no_nulls(column, array, first)
                    yield first, arrays
                    first += len(batch)

    def _check_kind(self, column: str, kind: str, file: Path) -> None:
        before = self._kinds.setdefault(column, kind)
        if before != kind:
            raise DataError(
                f"Column {column!r} holds {kind} in {file}, but {before} in {self.files[0]}: "
                "write the files with one schema."
            )


def as_numpy(array: Any) -> np.ndarray:
    """An arrow array as NumPy's; text as objects, arrays of one length as (n, L)."""
    import pyarrow as pa

    if pa.types.is_fixed_size_list(array.type):
        return as_numpy(array.flatten()).reshape(len(array), -1)
    return array.to_numpy(zero_copy_only=False)


def as_lists(array: Any) -> tuple[Any, np.ndarray]:
    """The values of an arrow array of lists, as an arrow array, and each list's size: (n,)."""
    sizes = array.value_lengths().to_numpy(zero_copy_only=False)
    return array.flatten(), sizes.astype(np.int64)


class Words:
    """The different values of a table that are no whole numbers, in the order they came in."""

    def __init__(self) -> None:
        self._words: Any = None

    def codes(self, values: Any) -> np.ndarray:
        """The number of each value of an arrow array; new values get new numbers: (n,) int64."""
        import pyarrow as pa
        import pyarrow.compute as pc

        different = values.dictionary_encode()
        if self._words is None:
            self._words = different.dictionary
        else:
            new = pc.invert(pc.is_in(different.dictionary, value_set=self._words))
            self._words = pa.concat_arrays([self._words, different.dictionary.filter(new)])
        number = pc.index_in(different.dictionary, value_set=self._words).to_numpy()
        return number.astype(np.int64)[different.indices.to_numpy(zero_copy_only=False)]

    def take(self, codes: np.ndarray) -> np.ndarray:
        """The values behind some numbers."""
        if self._words is None:
            return np.empty(0, dtype=np.str_)
        return as_numpy(self._words.take(codes))


class Clients:
    """The different clients, counted batch by batch; sorted when all are known."""

    def __init__(self) -> None:
        self._pending: list[Any] = []
        self._waiting = self._known = 0

    def add(self, column: Any) -> None:
        """Counts the clients of a batch."""
        import pyarrow as pa

        counts = column.value_counts()
        table = pa.table({"name": counts.field("values"), "rows": counts.field("counts")})
        self._pending.append(table)
        self._waiting += len(table)
        if self._waiting > max(2**21, 2 * self._known):
            self._merge()

    def finish(self) -> tuple[Any, np.ndarray, np.ndarray]:
        """The names in order, as an arrow array and as NumPy's, and the examples of each."""
        self._merge()
        (table,) = self._pending
        table = table.sort_by("name")
        names = table.column("name").combine_chunks()
        return names, as_numpy(names), table.column("rows").to_numpy()

    def _merge(self) -> None:
        import pyarrow as pa

        table = pa.concat_tables(self._pending).group_by("name").aggregate([("rows", "sum")])
        self._pending = [table.rename_columns({"rows_sum": "rows"})]
        self._known, self._waiting = len(table), 0


def numbers_of(values: Any, names: Any) -> np.ndarray:
    """The place of each value of an arrow array among the names: (n,) int64."""
    import pyarrow.compute as pc

    positions: np.ndarray = pc.index_in(values, value_set=names).to_numpy(zero_copy_only=False)
    return positions.astype(np.int64)


@contextmanager
def _reading(file: Path) -> Iterator[Any]:
    """An open Parquet file; a DataError if it is not whole."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(file) as source:
            yield source
    except DataError:
        raise
    except (pa.ArrowException, OSError) as error:
        what = reason(error) if isinstance(error, OSError) else str(error)
        message = " ".join(what.split()).rstrip(".")
        raise DataError(
            f"{file} is not a whole Parquet file ({message}): write or fetch it again."
        ) from error


def _size(about: Any, columns: set[str]) -> int:
    """The bytes of some columns, before compression."""
    size = 0
    for group in range(about.num_row_groups):
        row_group = about.row_group(group)
        for number in range(row_group.num_columns):
            column = row_group.column(number)
            if column.path_in_schema.split(".")[0] in columns:
                size += column.total_uncompressed_size
    return size


def _kind(type_: Any) -> str:
    """What a column holds, in words; types of one kind go together."""
    from pyarrow import types

    if types.is_dictionary(type_):
        return _kind(type_.value_type)
    if types.is_fixed_size_list(type_):
        return f"{type_.list_size} times {_kind(type_.value_type)}"
    if types.is_list(type_) or types.is_large_list(type_):
        return f"lists of {_kind(type_.value_type)}"
    if types.is_string(type_) or types.is_large_string(type_) or types.is_string_view(type_):
        return "text"
    if types.is_uint64(type_):  # may be beyond int64
        return str(type_)
    return "whole numbers" if types.is_integer(type_) else str(type_)


def decoded(array: Any) -> Any:
    """An array in the one type of its kind: int64 for whole numbers, no dictionaries."""
    import pyarrow as pa
    from pyarrow import types

    if types.is_dictionary(array.type):
        array = array.dictionary_decode()
    if types.is_integer(array.type) and not types.is_uint64(array.type):
        return array.cast(pa.int64())
    if types.is_large_string(array.type) or types.is_string_view(array.type):
        return array.cast(pa.string())
    return array


def _no_nulls(column: str, array: Any, first: int) -> None:
    """Raises a DataError that names the row if a batch has a null, in a list or instead of one."""
    import pyarrow.compute as pc
    from pyarrow import types

    nested = types.is_list(array.type) or types.is_large_list(array.type)
    if array.null_count:
        at = first + pc.index(pc.is_null(array), True).as_py()
        raise DataError(
            f"Column {column!r} has no value in example {at}: drop or fill such rows."
        )  # fmt: skip
    if nested:
        values, sizes = as_lists(array)
        if values.null_count:
            position = pc.index(pc.is_null(values), True).as_py()
            at = first + int(np.searchsorted(np.cumsum(sizes), position, "right"))
            raise DataError(
                f"Column {column!r} has a null within the list of example {at}: leave it out."
            )
    elif types.is_fixed_size_list(array.type):
        _no_nulls(column, array.flatten(), first)
    elif types.is_floating(array.type):
        no_nulls(column, array.to_numpy(zero_copy_only=False), first)
