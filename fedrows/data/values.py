"""What a value is, whatever the type of its column: its text.

    5, 5.0, np.int64(5), "5"     one value, whose text is "5"
    True, False                  1 and 0
    0.1, np.float32(0.1)         one value, "0.1"
    "05", "5.0"                  text as it stands; in a column of numbers they are 5
    dates and times              their ISO text, to the nanosecond

A hash depends on the value alone: text that writes a whole number is hashed as that number, other
text by its bytes. So pandas, polars, Parquet and CSV give the same rows, and so do all machines.
"""

from __future__ import annotations

import datetime
import hashlib
import math
import re
from collections.abc import Callable
from typing import Any

import numpy as np

from fedrows.errors import DataError
from fedrows.seeds import mix

NUMBER, TEXT, TIME = "number", "text", "time"  # what a column holds
_WHOLE = re.compile(r"0|-?[1-9][0-9]*")


def kind_of(values: np.ndarray) -> str:
    """Whether values (n,) are numbers, text or times; text if there are none."""
    if values.dtype.kind == "O":
        first = next(iter(values.ravel().tolist()), "")
        if isinstance(first, datetime.date):
            return TIME
        return NUMBER if isinstance(first, bool | int | float | np.number) else TEXT
    return NUMBER if values.dtype.kind in "iufb" else TIME if values.dtype.kind == "M" else TEXT


def different(values: np.ndarray) -> tuple[list[Any], np.ndarray]:
    """The different values, in any order, and the place of each value among them, as its shape.

    Unlike `distinct` this needs no order: text and numbers may stand in one column.
    """
    if values.dtype.kind != "O":
        words, codes = np.unique(values, return_inverse=True)
        return list(words), codes.reshape(values.shape)
    seen: dict[object, int] = {}
    places = [seen.setdefault(value, len(seen)) for value in values.ravel().tolist()]
    return list(seen), np.array(places, dtype=np.int64).reshape(values.shape)


def text_of(value: Any, kind: str = TEXT) -> str:
    """The text of a value in a column of some kind; a ValueError if it cannot be one of them."""
    if isinstance(value, datetime.date | np.datetime64) or (kind == TIME and type(value) is str):
        return str(np.array(value, dtype="M8[ns]"))
    if isinstance(value, str):
        return _number_text(value) if kind == NUMBER else value
    if kind == TIME:
        raise ValueError(f"{value} is no time")
    if isinstance(value, bool | np.bool_ | int | np.integer):
        return str(int(value))
    if isinstance(value, float | np.floating):
        return str(int(value)) if float(value).is_integer() else str(value)
    raise ValueError(f"{type(value).__name__} is neither a number nor text nor a time")


def hash_of(value: Any) -> int:
    """64 bits that depend on the value alone; a ValueError unless it is text or a whole number."""
    fraction = isinstance(value, float | np.floating) and not float(value).is_integer()
    if fraction or isinstance(value, datetime.date | np.datetime64):
        raise ValueError(f"{value} is neither text nor a whole number")
    text = text_of(value)
    if len(text) < 21 and _WHOLE.fullmatch(text) and -(2**63) <= int(text) < 2**64:
        number = np.array([int(text) % 2**64], dtype=np.uint64)
        return int(mix(number.view(np.int64)).view(np.uint64)[0])
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def hashed(column: str, values: np.ndarray, rows: int, padded: bool) -> np.ndarray:
    """A row for each value by its hash; row 0 stays free in a padded table."""
    first = int(padded)
    if values.dtype.kind in "iub":  # the same as `hash_of`, all at once
        hashes: np.ndarray = mix(values.astype(np.int64)).view(np.uint64)
    else:
        words, codes = different(values)
        hashes = np.array(_each(column, words, codes, hash_of), dtype=np.uint64)[codes]
    return (hashes % np.uint64(rows - first)).astype(np.int64) + first


def texts(column: str, values: np.ndarray, kind: str) -> tuple[list[str], np.ndarray]:
    """The texts of the different values, and the place of each value among them, as its shape.

    A DataError that names the first value that the column, being of that kind, cannot have.
    """
    words, codes = different(values)
    return _each(column, words, codes, lambda word: text_of(word, kind), kind), codes


def _each(
    column: str, words: list[Any], codes: np.ndarray, of: Callable[[Any], Any], kind: str = ""
) -> list[Any]:
    """What a function gives for every word."""
    made = []
    for number, word in enumerate(words):
        try:
            made.append(of(word))
        except ValueError:
            at = int(np.argmax(codes.ravel() == number))
            word = word.item() if isinstance(word, np.generic) else word
            why = f"held {kind}s in training" if kind else "is hashed"
            wanted = f"a {kind}" if kind else "text or a whole number"
            raise DataError(
                f"Column {column!r} {why}, but its value {at} is {word!r} "
                f"({type(word).__name__}), not {wanted}: convert the column."
            ) from None
    return made


def _number_text(text: str) -> str:
    """The text of a number that is written in text."""
    if _WHOLE.fullmatch(text):
        return text
    number = float(text)
    if not math.isfinite(number) or "_" in text:
        raise ValueError(f"{text} is no finite number")
    return str(int(number)) if number.is_integer() else str(number)
