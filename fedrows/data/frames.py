"""Columns in memory, as people have them, made into what `FederatedData.build` takes.

They come from a pandas or polars frame, or from pieces, one per client.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedrows.data.column_checks import (
    as_labels,
    as_numbers,
    as_target,
    as_weights,
    no_nulls,
    nulls,
    number_clients,
)
from fedrows.data.column_layout import Layout
from fedrows.data.encoder import Encoder, encoder_of, kind_of_table
from fedrows.data.frame_sources import columns_in, objects_of
from fedrows.data.splits import mark_validation
from fedrows.data.values import hashed
from fedrows.data.vocabulary import Hashed, Vocabulary, number_columns
from fedrows.errors import DataError
from fedrows.rows.ragged import Ragged, lists_of


@dataclass(frozen=True, eq=False)
class Lists:
    """A column of lists whose values, numbers or text, have no rows yet."""

    values: np.ndarray  # (T,), list after list
    sizes: np.ndarray  # (n,)

    def __len__(self) -> int:
        return len(self.sizes)

    def last(self, most: int) -> Lists:
        """The same lists, each cut to its last `most` values."""
        positions = lists_of(np.arange(len(self.values)), self.sizes).last(most)
        return Lists(self.values[positions.values.numpy()], positions.sizes.numpy())


Raw = np.ndarray | Lists


def from_frame(frame: Any, layout: Layout) -> dict[str, Any]:
    """What `build` takes, from whatever holds a row per example (see `frame_sources`)."""
    columns = columns_in(frame, layout.columns)
    layout.require(columns)
    raw = {column: as_raw(column, columns[column]) for column in layout.columns}
    count = len(raw[layout.client])
    for column, values in raw.items():
        if len(values) != count:
            raise DataError(
                f"Column {column!r} has {len(values)} values, but column {layout.client!r} has "
                f"{count}: give each example one."
            )
    return assemble(raw, layout)


def from_clients(
    clients: Mapping[Any, Any] | Iterable[tuple[Any, Any]], layout: Layout
) -> dict[str, Any]:
    """What `build` takes, from one piece per client: columns, a list of examples, or a frame."""
    pieces: dict[str, list[Raw]] = {c: [] for c in layout.columns if c != layout.client}
    names, sizes, empty = [], [], 0
    for name, piece in _pairs(clients):
        size = _add(pieces, name, piece)
        empty += not size
        names.append(name)
        sizes.append(size)
    if not sum(sizes):
        raise DataError("There is not a single example: check where the clients come from.")
    who = as_raw(layout.client, as_objects(names))
    assert isinstance(who, np.ndarray)
    _, seen = number_clients(layout.client, who)
    if len(set(seen.tolist())) < len(names):
        twice = names[int(np.argmax(np.bincount(seen)[seen] > 1))]
        raise DataError(f"Client {twice!r} comes twice: give all its examples in one piece.")
    columns: dict[str, Raw] = {c: _join(c, parts) for c, parts in pieces.items()}
    arguments = assemble({layout.client: np.repeat(who, sizes), **columns}, layout)
    if empty:
        note = f"{empty} of {len(names)} clients have no example: left out."
        arguments["notes"] = (*arguments["notes"], note)
    return arguments


def _pairs(clients: Any) -> Iterator[tuple[Any, Any]]:
    """The clients' names and pieces; a DataError if they are not given as such."""
    if isinstance(clients, Mapping):
        clients = clients.items()
    elif (
        not isinstance(clients, Iterable) or isinstance(clients, str) or hasattr(clients, "columns")
    ):
        raise DataError(
            f"The clients are a {type(clients).__name__}: give a mapping from client to examples, "
            "or pairs of both; FederatedData.from_frame takes a frame."
        )
    for number, pair in enumerate(clients):
        if not isinstance(pair, Sequence) or isinstance(pair, str) or len(pair) != 2:
            raise DataError(
                f"Item {number} of the clients is no pair of a client and its examples."
            )
        yield pair[0], pair[1]


def assemble(columns: Mapping[str, Raw], layout: Layout) -> dict[str, Any]:
    """What `build` takes, from raw columns."""
    flat = {c: _plain(c, columns[c]) for c in columns if c not in layout.fields}
    by, by_validation = layout.test_split.column, layout.validation_split.column
    for column in (layout.client, layout.label, layout.weight, by, by_validation):
        if column is not None:
            flat[column] = _plain(column, columns[column])
    names, owner = number_clients(layout.client, flat[layout.client])
    count = len(owner)
    if not count:
        raise DataError("There is not a single example: check the file or the filter before it.")
    test = layout.test_split.mark(owner, None if by is None else flat[by], layout.seed)
    time = None if by_validation is None else flat[by_validation]
    validation = mark_validation(layout.validation_split, test, owner, time, layout.seed)
    notes: list[str] = []
    if not test.any() and not layout.test_split.takes_nothing:
        notes.append("The split holds no test example out: every test metric will be missing.")
    raw = {c: _cut(c, columns[c], layout.longest(c), notes) for c in layout.fields}
    ids, sizes, vocabulary, more = _number(raw, layout, test | validation)
    numbers = {
        c: as_numbers(c, flat[c], count, scaled=layout.scaled.get(c)) for c in layout.numbers
    }
    return {
        "client": names[owner],
        "ids": ids,
        "label": as_labels(layout.label, flat[layout.label], layout.labels),
        "labels": layout.labels,
        "test": test,
        "validation": validation,
        "tables": sizes,
        "fields": dict(layout.fields),
        "numbers": numbers,
        "weight": None if layout.weight is None
        else as_weights(layout.weight, flat[layout.weight], count),
        "local": layout.local,
        "target": layout.target,
        "name": layout.name,
        "vocabulary": vocabulary,
        "encoder": _encoder(layout, raw, ids, sizes, numbers),
        "notes": (*notes, *more),
    }  # fmt: skip


def as_raw(column: str, values: Any) -> Raw:
    """A column as an array, or as lists if that is what it holds."""
    values = np.asarray(values)
    if values.dtype.kind != "O" or values.ndim > 1:
        return values
    nested = [isinstance(value, list | tuple | np.ndarray) for value in values]
    if not any(nested):
        return values
    if not all(nested):
        raise DataError(
            f"Column {column!r} has no list in example {nested.index(False)}, but lists elsewhere: "
            "use an empty list where there is nothing."
        )
    lists = [np.asarray(value) for value in values]
    within = (one[0] for one in lists if one.dtype.kind == "O" and len(one))
    if any(one.ndim != 1 for one in lists) or any(isinstance(x, list | np.ndarray) for x in within):
        raise DataError(f"Column {column!r} holds lists of lists: flatten them.")
    sizes = np.array([len(one) for one in lists])
    # An empty list has a dtype of its own, which says nothing.
    some = [one for one in lists if len(one)] or [np.empty(0, dtype=np.int64)]
    kinds = {one.dtype.kind for one in some}
    if len(kinds & set("OUST")) and len(kinds) > 1:  # else numbers would become text
        some = [one.astype(object) for one in some]
    column_of_lists = Lists(np.concatenate(some), sizes)
    _no_nulls_within(column, column_of_lists)
    return column_of_lists


def _no_nulls_within(column: str, lists: Lists) -> None:
    """Raises a DataError that names the example if a list has a null in it."""
    bad = nulls(lists.values)
    if bad.any():
        example = int(np.searchsorted(np.cumsum(lists.sizes), np.argmax(bad), "right"))
        raise DataError(
            f"Column {column!r} has a null within the list of example {example} "
            f"({int(bad.sum())} in all): leave it out."
        )


def cut_note(column: str, cut: int, count: int, most: int) -> str:
    """What is said about lists that were too long."""
    return f"Column {column!r}: of {cut} of {count} lists only the last {most} entries are kept."


def zero_note(table: str, zeros: int) -> str:
    """What is said about zeros in a table of given size that lists read."""
    return (
        f"Table {table!r} is read by lists, in which id 0 means nothing: {zeros} entries are 0 "
        "and have no row."
    )


def _number(
    raw: Mapping[str, Raw], layout: Layout, held: np.ndarray
) -> tuple[dict[str, np.ndarray | Ragged], dict[str, int], dict[str, np.ndarray], list[str]]:
    """Every feature's values as rows; the tables' sizes and vocabularies; what is to be said."""
    rows_of: dict[str, np.ndarray] = {}
    sizes: dict[str, int] = {}
    vocabulary: dict[str, np.ndarray] = {}
    notes: list[str] = []
    for table in layout.table_names:
        columns = layout.columns_of(table)
        padded = any(isinstance(raw[c], Lists) for c in columns)
        values = {c: _values(raw[c]) for c in columns}
        how = layout.rows(table)
        if not isinstance(how, int):
            for column in columns:
                no_nulls(column, values[column])
        if isinstance(how, Vocabulary):
            marks = {c: _marks(raw[c], held) for c in columns}
            numbering, rows = number_columns(table, how, values, marks, padded)
            rows_of |= rows
            sizes[table], vocabulary[table] = numbering.rows, numbering.vocabulary
            notes += numbering.notes
        elif isinstance(how, Hashed):
            rows_of |= {c: hashed(c, values[c], how.rows, padded) for c in columns}
            sizes[table] = how.rows
        else:
            rows_of |= values
            sizes[table] = how
            zeros = sum(int((values[c] == 0).sum()) for c in columns) if padded else 0
            if zeros:
                notes.append(zero_note(table, zeros))
    ids: dict[str, np.ndarray | Ragged] = {}
    for column, rows_ in rows_of.items():
        source = raw[column]
        ids[column] = _ragged(column, rows_, source.sizes) if isinstance(source, Lists) else rows_
    return {c: ids[c] for c in layout.fields}, sizes, vocabulary, notes


def _encoder(
    layout: Layout,
    raw: Mapping[str, Raw],
    ids: Mapping[str, np.ndarray | Ragged],
    sizes: Mapping[str, int],
    numbers: Mapping[str, np.ndarray],
) -> Encoder:
    """What remembers how these columns were encoded."""
    lengths = {c: x.length for c, x in ids.items() if isinstance(x, Ragged)}
    shapes = {c: x.shape for c, x in ids.items() if isinstance(x, np.ndarray)}
    return encoder_of(
        layout,
        sizes,
        {layout.fields[c] for c in lengths},
        {t: kind_of_table([_values(raw[c]) for c in layout.columns_of(t)]) for t in sizes},
        shapes,
        lengths,
        {c: None if x.ndim < 2 else x.shape[1] for c, x in numbers.items()},
        as_target(layout.target, shapes),
    )


def _ragged(column: str, values: np.ndarray, sizes: np.ndarray) -> Ragged:
    if values.dtype.kind not in "iu":
        raise DataError(
            f"Column {column!r} holds lists of {values.dtype} values, but ids of a table of given "
            "size are whole numbers: leave the table out of `tables` to get a vocabulary."
        )
    return lists_of(np.ascontiguousarray(values, dtype=np.int64), sizes)


def _values(raw: Raw) -> np.ndarray:
    return raw.values if isinstance(raw, Lists) else raw


def _marks(raw: Raw, held: np.ndarray) -> np.ndarray:
    """Which values belong to held-out examples, in the shape of the values."""
    if isinstance(raw, Lists):
        return np.repeat(held, raw.sizes)
    return np.broadcast_to(held.reshape(-1, *[1] * (raw.ndim - 1)), raw.shape)


def _cut(column: str, raw: Raw, most: int | None, notes: list[str]) -> Raw:
    if most is None or not isinstance(raw, Lists):
        return raw
    cut = int((raw.sizes > most).sum())
    if not cut:
        return raw
    notes.append(cut_note(column, cut, len(raw), most))
    return raw.last(most)


def _plain(column: str, raw: Raw) -> np.ndarray:
    """A column that is no feature: an array; lists of one length become (n, D)."""
    if isinstance(raw, np.ndarray):
        return raw
    if len(raw) and (raw.sizes == raw.sizes[0]).all():
        return raw.values.reshape(len(raw), -1)
    raise DataError(f"Column {column!r} holds lists of different lengths: only features may.")


def _add(pieces: dict[str, list[Raw]], name: Any, piece: Any) -> int:
    """Adds a client's columns to the pieces; gives how many examples it has."""
    if isinstance(piece, Sequence) and not isinstance(piece, str):
        if not all(isinstance(example, Mapping) for example in piece):
            raise DataError(f"Client {name!r} has examples that are not mappings.")
        if not piece:
            return 0
        columns: Any = {c: as_objects([e.get(c) for e in piece]) for c in piece[0]}
    else:
        try:
            columns = columns_in(piece)
        except DataError as error:
            raise DataError(f"The examples of client {name!r} cannot be read. {error}") from None
    known = list(columns)
    size: int | None = None
    for column, parts in pieces.items():
        if column not in known:
            raise DataError(
                f"Client {name!r} has no column {column!r}; it has {', '.join(map(str, known))}."
            )
        raw = as_raw(column, columns[column])
        if size is not None and len(raw) != size:
            raise DataError(
                f"Client {name!r} has {len(raw)} values in column {column!r}, but {size} in others."
            )
        size = len(raw)
        parts.append(raw)
    if not size:
        for parts in pieces.values():
            parts.pop()
    return size or 0


def as_objects(values: Iterable[Any]) -> np.ndarray:
    """Python values as an array: of numbers or text if they are, else of objects, never nested."""
    values = list(values)
    kinds = {type(value) for value in values}
    alike = kinds <= {int, bool} or kinds <= {int, float}
    if alike or all(issubclass(kind, np.number) for kind in kinds):
        return np.array(values)
    return objects_of(values)


def _join(column: str, parts: list[Raw]) -> Raw:
    """One column from the pieces of all clients."""
    lists = [part for part in parts if isinstance(part, Lists)]
    if lists and len(lists) < len(parts):
        raise DataError(f"Column {column!r} holds lists at some clients, but not at others.")
    arrays = [_values(part) for part in parts]
    kinds = {array.dtype.kind for array in arrays if len(array)}
    if kinds & set("OUST") and len(kinds) > 1:
        arrays = [array.astype(object) for array in arrays]
    # An empty list has a dtype of its own, which says nothing.
    values = np.concatenate([a for a in arrays if len(a)] or arrays[:1])
    if not lists:
        return values
    return Lists(values, np.concatenate([part.sizes for part in lists]))
