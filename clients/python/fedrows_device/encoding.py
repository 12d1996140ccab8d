"""Raw values as rows of their tables, as the data were encoded that the model is trained on.

The manifest has the encoder, and vocabulary.json the values of the shared tables. A value is its
text: 5, 5.0 and "5" are one in a column of numbers. The same rules as fedrows/data/encode_rows.py.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedrows_device.batches import ExamplesError
from fedrows_device.counters import mixed

_WHOLE = re.compile(r"0|-?[1-9][0-9]*")


def encoded(
    manifest: Mapping[str, Any], vocabulary: Mapping[str, Sequence[str]], columns: Mapping[str, Any]
) -> dict[str, Any]:
    """Columns of raw values as the ids, labels, numbers and weights that a device trains on."""
    encoder = manifest["encoder"]
    if not encoder:
        raise ExamplesError("The program has no encoder: give `ids`, which are rows of the tables.")
    wanted = [*encoder["features"], *encoder["numbers"], encoder["label"]]
    if missing := [column for column in wanted if column not in columns]:
        raise ExamplesError(f"The data have no column {missing[0]!r}, which the program reads.")
    rows = {table: _Rows(encoder, vocabulary, table) for table in encoder["tables"]}
    ids = {}
    for column, its in encoder["features"].items():
        of = rows[its["table"]]
        ids[column] = [_entry(column, value, its, of) for value in columns[column]]
    weight = columns.get(encoder["weight"]) if encoder["weight"] else None
    scaled = encoder["scaled"]
    numbers = {
        column: _scaled(column, columns[column], scaled[column])
        if column in scaled
        else columns[column]
        for column in encoder["numbers"]
    }
    return {"ids": ids, "label": columns[encoder["label"]], "numbers": numbers, "weight": weight}


def _scaled(column: str, values: Sequence[Any], by: Mapping[str, float]) -> list[Any]:
    """Numbers, or lists of them, less their center in units of their spread."""
    if not by["spread"] > 0:
        raise ExamplesError(f"The program divides column {column!r} by {by['spread']}: refused.")
    try:
        return [
            _scaled(column, x, by)
            if isinstance(x, list)
            else (float(x) - by["center"]) / by["spread"]
            for x in values
        ]
    except (TypeError, ValueError):
        raise ExamplesError(f"Column {column!r} holds something that is no number.") from None


def _entry(column: str, value: Any, its: Mapping[str, Any], rows: _Rows) -> Any:
    """One example's entry of a column: a row, or a list of rows."""
    several = its["width"] is not None or its["length"] is not None
    if several != isinstance(value, list):
        wanted = "lists" if several else "one value"
        raise ExamplesError(f"Column {column!r} held {wanted} in training: {value!r} does not fit.")
    if not several:
        return rows.of(column, value, its["kind"])
    if its["width"] is not None and len(value) != its["width"]:
        raise ExamplesError(
            f"Column {column!r} held {its['width']} values an example, and {len(value)} were given."
        )
    kept = value if its["most"] is None else value[-its["most"] :]
    return [rows.of(column, one, its["kind"]) for one in kept]


class _Rows:
    """The row of every value of a table."""

    def __init__(
        self, encoder: Mapping[str, Any], vocabulary: Mapping[str, Sequence[str]], table: str
    ) -> None:
        self._table, self._name = encoder["tables"][table], table
        self._first = int(table in encoder["padded"])
        known = vocabulary.get(table)
        self._known = None if known is None else {x: i for i, x in enumerate(known, self._first)}

    def of(self, column: str, value: Any, kind: str) -> int:
        """The row of a value, or an ExamplesError that says why it has none."""
        how, count = self._table["how"], int(self._table["rows"])
        try:
            if how == "hashed":
                random = _hash(_whole(value) if kind == "number" else value)
                return random % (count - self._first) + self._first
            text = _text(value, "number" if how == "given" else kind)
        except ValueError:
            raise ExamplesError(
                f"Column {column!r} holds {kind}s, and {value!r} is none that it can have."
            ) from None
        if how == "given":
            if not _WHOLE.fullmatch(text) or not 0 <= int(text) < count:
                raise ExamplesError(f"Column {column!r} has no row {value!r}: 0 to {count - 1}.")
            return int(text)
        if self._known is None:
            raise ExamplesError(
                f"The values of table {self._name!r} are not in the program, for they stay with "
                "their clients: give `ids`, which are rows of the tables."
            )
        row = self._known.get(text, self._table["unknown"])
        if row is None:
            raise ExamplesError(
                f"Column {column!r} has the value {value!r}, which is not in the vocabulary."
            )
        return int(row)


def _text(value: Any, kind: str) -> str:
    """The text of a value in a column of some kind; a ValueError if it cannot be one of them."""
    if isinstance(value, str):
        if kind == "time":
            return str(np.array(value, dtype="M8[ns]"))
        return _number_text(value) if kind == "number" else value
    if kind == "time" or not isinstance(value, bool | int | float):
        raise ValueError(f"{type(value).__name__} does not fit")
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError("it is not finite")
        return str(int(value)) if value.is_integer() else str(value)
    return str(int(value))


def _number_text(text: str) -> str:
    """The text of a number that is written in text."""
    if _WHOLE.fullmatch(text):
        return text
    return _text(float(text), "number")


def _whole(value: Any) -> str:
    """The text of a whole number."""
    text = _text(value, "number")
    if not _WHOLE.fullmatch(text):
        raise ValueError("it is a fraction")
    return text


def _hash(value: Any) -> int:
    """64 bits that depend on the value alone; a ValueError unless it is text or a whole number."""
    if isinstance(value, float) and not value.is_integer():
        raise ValueError("it is a fraction")
    text = _text(value, "text")
    if len(text) < 21 and _WHOLE.fullmatch(text) and -(2**63) <= int(text) < 2**64:
        return mixed(int(text) % 2**64)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")
