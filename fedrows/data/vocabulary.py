"""How the values of a column become rows of a table: by a vocabulary, or by hashing.

    row 0          nothing here, if lists read the table
    then           the values of the vocabulary, in order
    the last row   every value that is not in it, if the vocabulary is not of all values

Value number i of `FederatedData.vocabulary[table]` has row i, or i + 1 in a padded table.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedrows.data.column_checks import distinct
from fedrows.data.values import text_of
from fedrows.errors import DataError


@dataclass(frozen=True)
class Vocabulary:
    """A row for each value that training has at least `min_count` times, and one for the others.

    Without that last row (oov=False) every value that occurs anywhere has a row of its own.
    """

    min_count: int = 1
    oov: bool = True

    def __post_init__(self) -> None:
        if not isinstance(self.min_count, int) or self.min_count < 1:
            raise DataError(f"min_count is {self.min_count!r}, but must be a whole number above 0.")
        if self.min_count > 1 and not self.oov:
            raise DataError(
                f"With min_count {self.min_count}, rare values need the row of a vocabulary with "
                "oov=True."
            )


@dataclass(frozen=True)
class Hashed:
    """So many rows, among which a hash of each value chooses; the same on every machine.

    The hash depends on the value, not on the type of its column; see `values`.
    """

    rows: int

    def __post_init__(self) -> None:
        if not isinstance(self.rows, int) or self.rows < 2:
            raise DataError(f"A hashed table has {self.rows!r} rows: give a whole number above 1.")


TableRows = int | Vocabulary | Hashed  # of a table: its given size, or how values choose them
USUAL = Vocabulary()  # unless a table is given another
EVERY = Vocabulary(oov=False)


@dataclass(frozen=True, eq=False)
class Numbering:
    """What came of a table: where each different value goes."""

    rows: int
    row: np.ndarray  # (V,), of each of the different values
    vocabulary: np.ndarray  # those with a row of their own
    notes: tuple[str, ...]


def number_values(
    table: str,
    how: Vocabulary,
    words: np.ndarray,
    train: np.ndarray,
    held: np.ndarray,
    padded: bool,
) -> Numbering:
    """The rows of the different values (V,): from how often training has each, and the others."""
    _check_kinds(table, words)
    kept = train >= how.min_count if how.oov else np.ones(len(words), dtype=bool)
    first, own = int(padded), int(kept.sum())
    last = first + own
    row = np.where(kept, np.cumsum(kept) - 1 + first, last)
    notes = []
    rare = int(((train > 0) & ~kept).sum())
    if rare:
        notes.append(
            f"Table {table!r}: {rare} of {own + rare} values occur fewer than {how.min_count} "
            f"times in training and share row {last}, out of vocabulary."
        )
    unseen = int(held[train == 0].sum())
    if how.oov and unseen:
        notes.append(
            f"Table {table!r}: {unseen} of {int(held.sum())} ids of held-out examples never occur "
            f"in training and read row {last}, out of vocabulary."
        )
    return Numbering(last + how.oov, row, words[kept], tuple(notes))


def number_columns(
    table: str, how: Vocabulary, columns: Mapping[str, np.ndarray], held: Mapping[str, np.ndarray],
    padded: bool,
) -> tuple[Numbering, dict[str, np.ndarray]]:  # fmt: skip
    """A table's numbering, and the rows of its columns; `held` marks values outside training."""
    flat = np.concatenate([values.ravel() for values in columns.values()])
    marks = np.concatenate([held[name].ravel() for name in columns])
    try:
        words, codes = distinct(flat)
    except TypeError:
        raise no_order(table, columns) from None
    out = np.bincount(codes[marks], minlength=len(words))
    train = np.bincount(codes, minlength=len(words)) - out
    numbering = number_values(table, how, words, train, out, padded)
    ends = np.cumsum([values.size for values in columns.values()])[:-1]
    rows = np.split(numbering.row[codes], ends)
    return numbering, {
        name: own.reshape(values.shape)
        for (name, values), own in zip(columns.items(), rows, strict=True)
    }


def _check_kinds(table: str, words: np.ndarray) -> None:
    """Raises a DataError if values are no numbers, text or times, which alone can be served."""
    if words.dtype.kind in "iufbUTM":
        return
    for word in words.tolist():
        try:
            if words.dtype.kind != "O":
                raise ValueError
            text_of(word)
        except ValueError:
            raise DataError(
                f"Table {table!r} holds {word!r} ({type(word).__name__}), but an id is a number, "
                "text or a time: convert the column, for instance to text."
            ) from None


def value_of(vocabulary: Mapping[str, np.ndarray], table: str, padded: bool, row: int) -> Any:
    """What a row stands for: its value, or its number if it has none."""
    position = row - int(padded)
    words = vocabulary.get(table, ())
    return words[position] if 0 <= position < len(words) else row


def no_order(table: str, columns: Mapping[str, Any]) -> DataError:
    """The error of a table whose columns hold text and numbers."""
    return DataError(
        f"The values of table {table!r} (column {', '.join(columns)}) cannot be put in "
        "order: make all of them text, or all numbers."
    )
