"""New rows, encoded as the data that a model was trained on: `FederatedData.encode`.

Columns that training did not use are ignored. A column that is missing, of another shape, or with a
value that it cannot have is a DataError. Nothing is guessed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedrows.data.column_checks import (
    as_labels,
    as_numbers,
    as_weights,
    no_nulls,
    number_clients,
)
from fedrows.data.encoder import GIVEN, HASHES, EncodedColumn, Encoder
from fedrows.data.examples import Examples, sort_by_client
from fedrows.data.frame_sources import columns_in
from fedrows.data.frames import Lists, Raw, as_raw
from fedrows.data.scaled import Scaled
from fedrows.data.values import NUMBER, hashed, text_of, texts
from fedrows.errors import DataError
from fedrows.rows.ragged import Ragged, lists_of


@dataclass(frozen=True, eq=False)
class EncodedRows:
    """Rows of a frame as examples, client after client."""

    examples: Examples
    row: Tensor  # (n,), the row of the frame that each example came from
    clients: np.ndarray | None  # the clients' names; None without a column for them
    labelled: bool  # whether the frame has labels; without them all labels are 0
    unknown: Mapping[str, int]  # column → how many of its values have no row of their own
    unused: tuple[str, ...]  # columns of the frame that mean nothing to the model

    def in_order(self, scores: Tensor) -> Tensor:
        """Something of every example (n, …), in the order of the frame."""
        ordered = torch.empty_like(scores)
        ordered[self.row] = scores
        return ordered


class KnownValues:
    """The row of every value of the vocabularies, looked up by its text; made when first asked."""

    def __init__(self, encoder: Encoder, vocabulary: Mapping[str, np.ndarray]) -> None:
        self._encoder, self._vocabulary = encoder, vocabulary
        self._rows: dict[str, dict[str, int]] = {}

    def of(self, column: str) -> dict[str, int]:
        """Text → row, for the table that a column reads."""
        feature = self._encoder.features[column]
        if feature.table not in self._rows:
            words = enumerate(
                self._vocabulary[feature.table], int(feature.table in self._encoder.padded)
            )
            self._rows[feature.table] = {text_of(word, feature.kind): row for row, word in words}
        return self._rows[feature.table]


def encode(
    frame: Any, encoder: Encoder, known_values: KnownValues, *, labels: bool = True
) -> EncodedRows:
    """The rows of whatever `FederatedData.from_frame` takes.

    The features and the numbers must be there. The client, and if wanted the label and the weight,
    are read if they are there; without a client all rows are one client's.
    """
    more = {encoder.client, *((encoder.label, encoder.weight) if labels else ())}
    read = {*encoder.features, *encoder.numbers, *(column for column in more if column)}
    frame = columns_in(frame, read)
    known = list(frame)
    for column in (*encoder.features, *encoder.numbers):
        if column not in known:
            raise DataError(
                f"The frame has no column {column!r}, which the model reads; it has "
                f"{', '.join(known) or 'none'}."
            )
    values = {column: frame[column] for column in known if column in read}
    count = len(next(iter(values.values())))
    if not count:
        raise DataError("The frame has no row: give at least one.")
    if odd := [column for column, x in values.items() if len(x) != count]:
        raise DataError(
            f"Column {odd[0]!r} has {len(values[odd[0]])} values, but others have {count}."
        )
    ids: dict[str, np.ndarray | Ragged] = {}
    unknown: dict[str, int] = {}
    for column, feature in encoder.features.items():
        raw = _shaped(column, as_raw(column, values[column]), feature)
        entries = raw.values if isinstance(raw, Lists) else raw
        rows, strange = rows_of(column, entries, encoder, known_values)
        if strange:
            unknown[column] = strange
        if isinstance(raw, Lists):
            sizes = raw.sizes
            if strange and encoder.tables[feature.table].unknown is None:  # id 0 is nothing
                owner = np.repeat(np.arange(len(raw)), sizes)[rows > 0]
                rows, sizes = rows[rows > 0], np.bincount(owner, minlength=len(raw))
            lists = lists_of(np.ascontiguousarray(rows), sizes)
            ids[column] = replace(lists, length=max(lists.length, feature.length or 1))
        else:
            ids[column] = rows
    names, owner = None, np.zeros(count, dtype=np.int64)
    if encoder.client in values:
        names, owner = number_clients(encoder.client, values[encoder.client])
    labelled = encoder.label in values
    label = np.zeros(count, dtype=np.int64 if encoder.labels == "classes" else np.float32)
    if labelled:
        label = as_labels(encoder.label, values[encoder.label], encoder.labels)
    weight = None
    if encoder.weight is not None and encoder.weight in values:
        weight = as_weights(encoder.weight, values[encoder.weight], count)
    numbers = {
        column: _numbers(column, values[column], width, count, encoder.scaled.get(column))
        for column, width in encoder.numbers.items()
    }
    clients = 1 if names is None else len(names)
    every = np.ones(count, dtype=bool)
    examples = sort_by_client(owner, ids, label, numbers, weight, every, clients)
    row = torch.from_numpy(np.argsort(owner, kind="stable"))
    unused = tuple(column for column in known if column not in values)
    return EncodedRows(examples, row, names, labelled, unknown, unused)


def _shaped(column: str, raw: Raw, feature: EncodedColumn) -> Raw:
    """A column in the shape that it had in training; lists cut to their last entries."""
    if feature.length is not None:
        if isinstance(raw, np.ndarray) and raw.ndim == 2:
            raw = Lists(raw.ravel(), np.full(len(raw), raw.shape[1]))
        if isinstance(raw, np.ndarray):
            raise DataError(
                f"Column {column!r} held lists in training, but value 0 is {raw.tolist()[0]!r}: "
                "make a list of each value."
            )
        return raw if feature.most is None else raw.last(feature.most)
    if isinstance(raw, Lists):
        if feature.width is None:
            raise DataError(
                f"Column {column!r} held one value a row in training, but has lists: give one "
                "value a row."
            )
        if (odd := raw.sizes != feature.width).any():
            at = int(np.argmax(odd))
            raise DataError(
                f"Column {column!r} held {feature.width} values a row in training, but "
                f"row {at} has {raw.sizes[at]}."
            )
        raw = raw.values.reshape(len(raw), feature.width)
    width = raw.shape[1] if raw.ndim == 2 else None
    if width != feature.width:
        raise DataError(
            f"Column {column!r} held {feature.width or 'one'} values a row in training, but has "
            f"{width or 'one'}."
        )
    return raw


def rows_of(
    column: str, values: np.ndarray, encoder: Encoder, known_values: KnownValues
) -> tuple[np.ndarray, int]:
    """The row of every value, and how many values have none of their own.

    If unknown values have no row, one in a list is 0, which stands for nothing, and one elsewhere
    is an error.
    """
    feature = encoder.features[column]
    table = encoder.tables[feature.table]
    padded = feature.table in encoder.padded
    no_nulls(column, values.ravel())
    if table.how == HASHES:
        numeric = _numeric(column, values) if feature.kind == NUMBER else values
        return hashed(column, numeric, table.rows, padded), 0
    if table.how == GIVEN:
        return _given(column, values, table.rows), 0
    words, codes = texts(column, values, feature.kind)
    known = known_values.of(column)
    rows = np.array([known.get(word, -1) for word in words], dtype=np.int64)[codes]
    strange = rows < 0
    if "" in words and "" not in known:  # a cell of a file that was left out
        at = int(np.argmax(codes.ravel() == words.index("")))
        raise DataError(f"Column {column!r} is empty in its value {at}: drop or fill such rows.")
    if strange.any() and table.unknown is None and feature.length is None:
        at = int(np.argmax(strange.ravel()))
        raise DataError(
            f"Column {column!r} has the value {words[codes.ravel()[at]]!r}, but table "
            f"{feature.table!r} has no row for unknown values: Vocabulary(oov=True) makes one."
        )
    return np.where(strange, table.unknown or 0, rows), int(strange.sum())


def _given(column: str, values: np.ndarray, rows: int) -> np.ndarray:
    """Ids that are rows already."""
    ids = _numeric(column, values)
    bad = (ids < 0) | (ids >= rows) | (ids != np.floor(ids))
    if bad.any():
        at = int(np.argmax(bad.ravel()))
        raise DataError(
            f"Column {column!r} has id {values.ravel().tolist()[at]!r}, but ids of its table are "
            f"whole numbers from 0 to {rows - 1}."
        )
    return ids.astype(np.int64)


def _numeric(column: str, values: np.ndarray) -> np.ndarray:
    """Numbers, also those that are written as text."""
    if values.dtype.kind in "iufb":
        return values
    words, codes = texts(column, values, NUMBER)
    return np.array([float(x) if "." in x or "e" in x else int(x) for x in words])[codes]


def _numbers(
    column: str, values: np.ndarray, width: int | None, count: int, scaled: Scaled | None
) -> np.ndarray:
    raw = as_raw(column, values)
    if isinstance(raw, Lists):
        same = bool((raw.sizes == width).all())
        raw = raw.values.reshape(count, -1) if same and width else np.empty((count, 0))
    numbers = as_numbers(column, raw, count, scaled=scaled)
    if (numbers.shape[1] if numbers.ndim == 2 else None) != width:
        raise DataError(
            f"Column {column!r} held {'one number' if width is None else f'{width} numbers'} a row "
            "in training: give as many."
        )
    return numbers
