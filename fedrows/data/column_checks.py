"""Columns as people have them, made into numbers, or refused with the place that is wrong.

Every error names the column, the example and the value; nothing is guessed.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import numpy as np

from fedrows.data.scaled import Scaled
from fedrows.data.values import different
from fedrows.errors import DataError
from fedrows.rows.ragged import Ragged

LABELS = {
    "binary": "0 or 1",
    "classes": "0, 1, 2 and so on",
    "numbers": "any number",
    "ranking": "1, because every example is a positive",
}


def distinct(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The different values (V,), in order, and the place of each value among them, as its shape.

    A TypeError if the values have no order. Text is hashed, because sorting it all is slow.
    """
    if values.dtype.kind != "O":
        return np.unique(values, return_inverse=True)
    seen, codes = different(values)
    words = np.empty(len(seen), dtype=object)
    words[:] = seen
    order = np.argsort(words, kind="stable")
    rank = np.empty(len(seen), dtype=np.int64)
    rank[order] = np.arange(len(seen))
    return words[order], rank[codes]


def nulls(values: np.ndarray) -> np.ndarray:
    """Which values are missing, None, NaN, NaT or the NA of pandas: (n,) bool."""
    if values.dtype.kind != "O":
        missing: np.ndarray = values != values
        return missing
    try:
        return np.array([value is None or value != value for value in values], dtype=bool)
    except TypeError:  # pandas' NA is neither equal to itself nor different: it answers with NA
        same = [value is not None and value == value for value in values]
        return np.array([not isinstance(x, bool | np.bool_) or not x for x in same])


def no_nulls(column: str, values: np.ndarray, first: int = 0) -> None:
    """Raises a DataError if an example has no value; `first` is the number of the first one."""
    if values.dtype.kind == "O" and any(isinstance(x, list | tuple | np.ndarray) for x in values):
        raise DataError(
            f"Column {column!r} holds lists, but only features do: one value an example."
        )
    bad = nulls(values)
    if bad.any():
        raise DataError(
            f"Column {column!r} has no value in example {first + int(np.argmax(bad))} "
            f"({int(bad.sum())} in all): drop or fill such rows."
        )


def number_clients(column: str, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The clients' names, sorted, and the place of each example's client among them."""
    values = np.asarray(values)
    no_nulls(column, values)
    try:
        return distinct(values)
    except TypeError:
        raise DataError(
            f"The clients in column {column!r} cannot be put in order: make all of them text, "
            "or all numbers."
        ) from None


def as_labels(
    column: str, values: np.ndarray, labels: str = "binary", first: int = 0
) -> np.ndarray:
    """The labels as float32, or as int64 if they are classes: (n,)."""
    if labels not in LABELS:
        raise DataError(f"labels is {labels!r}, but must be one of {', '.join(LABELS)}.")
    values = np.asarray(values)
    if values.ndim != 1:
        raise DataError(f"Column {column!r} has shape {values.shape}: an example has one label.")
    label = as_numbers(column, values, len(values), first)
    wanted = {
        "binary": (label == 0) | (label == 1),
        "classes": (label >= 0) & (label == np.floor(label)),
        "numbers": np.ones(len(label), dtype=bool),
        "ranking": label == 1,
    }[labels]
    if not wanted.all():
        at = int(np.argmin(wanted))
        raise DataError(
            f"Column {column!r} is {label[at]:g} in example {first + at}, but {labels} labels are "
            f"{LABELS[labels]}: say which they are with labels=."
        )
    return label.astype(np.int64) if labels == "classes" else label


def as_numbers(
    column: str, values: np.ndarray, count: int, first: int = 0, scaled: Scaled | None = None
) -> np.ndarray:
    """Finite numbers as float32, scaled if that is asked: (n,) or (n, D)."""
    values = np.asarray(values)
    if len(values) != count or values.ndim not in (1, 2):
        raise DataError(
            f"Column {column!r} has shape {values.shape}, but must be ({count},) or ({count}, D)."
        )
    no_nulls(column, values, first)
    if values.dtype.kind in "mM":
        raise DataError(
            f"Column {column!r} holds dates or times, not numbers: make numbers of them, such as "
            "days since one of them."
        )
    try:
        exact = values.astype(np.float64)
    except (TypeError, ValueError):
        number, value = _first_no_number(values)
        raise DataError(
            f"Column {column!r} is {value!r} in example {first + number}, but must hold numbers: "
            "convert the column."
        ) from None
    with np.errstate(over="ignore"):
        numbers: np.ndarray = (exact if scaled is None else scaled(exact)).astype(np.float32)
    bad = ~np.isfinite(numbers)
    if bad.any():
        where = tuple(np.argwhere(bad)[0])
        raise DataError(
            f"Column {column!r} is {exact[where]} in example {first + where[0]}: it must be finite "
            "in float32."
        )
    return numbers


def _first_no_number(values: np.ndarray) -> tuple[int, object]:
    """The example of the first value that is no number, and the value."""
    for at, value in enumerate(values.tolist()):
        try:
            np.asarray(value).astype(np.float64)
        except (TypeError, ValueError):
            return at, value
    return 0, values.tolist()[0]


def as_weights(column: str, values: np.ndarray, count: int, first: int = 0) -> np.ndarray:
    """What every example counts, not negative: (n,) float32."""
    weights = as_numbers(column, values, count, first)
    if weights.ndim != 1 or (weights < 0).any():
        at = int(np.argmax(weights < 0)) if weights.ndim == 1 else 0
        raise DataError(
            f"Column {column!r} is {weights[at]} in example {first + at}: weights are not negative."
        )
    return weights


def as_marks(column: str, values: np.ndarray, first: int = 0) -> np.ndarray:
    """Which examples are held out: (n,) bool, from true and false or 1 and 0."""
    values = np.asarray(values)
    if values.dtype.kind == "b":
        return values
    no_nulls(column, values, first)
    if values.dtype.kind in "iuf":
        bad = (values != 0) & (values != 1)
    else:
        bad = np.array([value not in (0, 1) for value in values.tolist()], dtype=bool)
    if bad.any():
        at = int(np.argmax(bad))
        raise DataError(
            f"Column {column!r} is {values.tolist()[at]!r} in example {first + at}: held-out "
            "examples are marked by true or 1, others by false or 0."
        )
    return values.astype(bool)


def as_target(
    target: tuple[str, int | None] | None, shapes: Mapping[str, tuple[int, ...]]
) -> tuple[str, int | None] | None:
    """What examples are about: as given, or the first field; None if there are lists only.

    A DataError unless it is a field, and a column of it exactly if that has several.
    """
    if target is None:
        name = next(iter(shapes), None)
        return None if name is None else (name, None if len(shapes[name]) == 1 else 0)
    if isinstance(target, str) or not isinstance(target, Sequence) or len(target) != 2:
        raise DataError(
            f"target is {target!r}, but must be a field and a column of it, or None where the "
            'field has one: ("item", None).'
        )
    name, column = target
    if name not in shapes:
        raise DataError(
            f"The target is field {name!r}, but must be one that is no list: "
            f"{' or '.join(shapes) or 'there is none'}."
        )
    shape = shapes[name]
    if (column is None) != (len(shape) == 1) or not 0 <= (column or 0) < max(shape[1:], default=1):
        raise DataError(
            f"The target is column {column} of field {name!r}, whose shape is {shape}: give a "
            "column if the field has several, or else None."
        )
    return target


def check_ranked(
    target: tuple[str, int | None] | None, fields: Mapping[str, str], local: Collection[str]
) -> None:
    """Raises a DataError unless it is said which field holds the items that are to be ranked."""
    if target is None or target[1] is not None:
        raise DataError(
            f"The labels are ranking, but the target is {target}: name the field that holds the "
            "item of each example, as in target=('item', None)."
        )
    if fields.get(target[0]) in local:
        raise DataError(
            f"Field {target[0]!r} is to be ranked, but its table {fields[target[0]]!r} is local: "
            "items are what clients have in common."
        )


def check(
    count: int,
    ids: Mapping[str, np.ndarray | Ragged],
    label: np.ndarray,
    test: np.ndarray,
    tables: Mapping[str, int],
    fields: Mapping[str, str],
) -> None:
    """Raises a DataError that names the first column, example and value that cannot be right."""
    if not count:
        raise DataError("There is not a single example: check the file or the filter before it.")
    if not ids:
        raise DataError("There is no field: an example needs at least one feature id.")
    for name in fields:
        if name not in ids:
            raise DataError(f"Field {name!r} has no ids; those given are {', '.join(ids)}.")
    for table, rows in tables.items():
        if not isinstance(rows, int | np.integer) or rows < 1:
            raise DataError(f"Table {table!r} has {rows!r} rows: give a whole number above 0.")
    for name, column in {"label": label, "test": test, **ids}.items():
        if len(column) != count:
            raise DataError(f"{name} has {len(column)} examples, the client column {count}.")
    for name, column in ids.items():
        if fields.get(name) not in tables:
            raise DataError(
                f"Field {name!r} reads table {fields.get(name)!r}, but the tables are "
                f"{', '.join(tables)}."
            )
        if isinstance(column, Ragged):
            values, ends = column.values.numpy(), column.offsets.numpy()[1:]
        elif column.ndim in (1, 2):
            values, ends = column.ravel(), column.size // count * np.arange(1, count + 1)
        else:
            raise DataError(f"Field {name!r} has shape {column.shape}, but must be (n,) or (n, L).")
        no_nulls(name, values)
        check_ids(f"Field {name!r}", values, fields[name], tables[fields[name]], ends)


def check_ids(
    what: str, ids: np.ndarray, table: str, rows: int, ends: np.ndarray, first: int = 0
) -> None:  # fmt: skip
    """Raises a DataError unless ids (T,) are rows of a table of given size.

    ends: where the ids of each example end (n,). first: the number of the first example.
    """
    if ids.dtype.kind not in "iu":
        kind = "text" if ids.dtype.kind in "OUST" else f"{ids.dtype} values"
        raise DataError(
            f"{what} holds {kind}, but ids of a table of given size are whole numbers: leave table "
            f"{table!r} out of `tables` to get a vocabulary."
        )
    bad = (ids < 0) | (ids >= rows)
    if bad.any():
        at = int(np.argmax(bad))
        example = first + int(np.searchsorted(ends, at, "right"))
        raise DataError(
            f"{what} of example {example} has id {ids[at]}, outside table {table!r} of {rows} "
            f"rows: ids go from 0 to {rows - 1}."
        )
