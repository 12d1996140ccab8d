"""What people hold their rows in, made into columns: frames, tables, data sets and CSV files.

pandas and polars frames, LazyFrames, Arrow tables, data sets of Hugging Face, mappings of columns
and the path of a CSV file are all read here. No package is imported: a frame brings its own.

A data set of Hugging Face may also come as its splits, or as the parts of a partitioner: whatever
has `num_partitions` and `load_partition(number)`, as those of flwr-datasets do. Each part is a
client.
"""

from __future__ import annotations

import csv
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fedrows.errors import DataError
from fedrows.files.whole import reason

WANTED = (
    "a pandas or polars frame, an Arrow table, a Hugging Face data set, a mapping of columns, or "
    "the path of a CSV file"
)
# Python reads numbers in them, but 007 is not 7 and 1_2 is not 12.
_NO_NUMBER = re.compile(r"[-+]?0[0-9]|.*_")


class FrameColumns(Mapping[str, Any]):
    """The columns of a frame by name; each becomes an array when it is asked for."""

    def __init__(self, names: Iterable[str], frame: Any) -> None:
        self._names, self._frame = list(map(str, names)), frame
        _check_once(self._names)

    def __getitem__(self, name: str) -> Any:
        return _as_array(name, self._frame[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def columns_in(frame: Any, wanted: Iterable[str] = ()) -> Mapping[str, Any]:
    """The columns of whatever holds rows, by name, as arrays.

    A DataError if it is nothing that holds rows, or has two columns of one name. wanted: the
    columns that will be asked for; others of a LazyFrame are not read.
    """
    if isinstance(frame, type):
        raise DataError(f"The frame is the class {frame.__name__}: give an instance, {WANTED}.")
    if isinstance(frame, str | Path):
        return _csv_columns(Path(frame))
    if hasattr(frame, "collect_schema") and hasattr(frame, "collect"):  # a polars LazyFrame
        names = frame.collect_schema().names()
        chosen = [name for name in names if name in set(wanted)]
        return FrameColumns(names, frame.select(chosen or names).collect())
    if (
        isinstance(frame, Mapping)
        and frame
        and all(hasattr(x, "column_names") for x in frame.values())
    ):
        raise DataError(
            f"The frame has the splits {', '.join(map(str, frame))}: give one of them, as in "
            f"frame[{next(iter(frame))!r}]."
        )
    if isinstance(frame, Mapping):
        return FrameColumns(frame, {str(name): values for name, values in frame.items()})
    if hasattr(frame, "with_format") and hasattr(frame, "column_names"):  # Hugging Face
        frame = frame.with_format("arrow")[:]
    names = getattr(frame, "column_names", None)  # of an Arrow table
    if names is None:
        names = getattr(frame, "columns", None)
    if names is None or callable(names) or not hasattr(frame, "__getitem__"):
        raise DataError(f"The frame is {_kind(frame)}: give {WANTED}.")
    return FrameColumns(names, frame)


def _check_once(names: Iterable[str]) -> None:
    """Raises a DataError if two columns have one name."""
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise DataError(
            f"The frame has {Counter(names)[twice[0]]} columns called {twice[0]!r}: rename or drop "
            "all but one."
        )


def _as_array(name: str, values: Any) -> Any:
    """A column as an array, whatever held it."""
    if hasattr(values, "combine_chunks") and hasattr(values, "to_pylist"):  # Arrow
        kind = str(values.type)
        if kind.startswith(("list", "large_list", "fixed_size_list", "string", "large_string")):
            return objects_of(values.to_pylist())
    if hasattr(values, "to_numpy"):
        return values.to_numpy()
    return values if isinstance(values, np.ndarray) else _listed(name, values)


def _listed(name: str, values: Any) -> np.ndarray:
    """Python values as an array, never of two dimensions."""
    try:
        values = list(values)
    except TypeError:
        raise DataError(
            f"Column {name!r} is {values!r}: give a list or an array of values."
        ) from None
    if any(isinstance(value, list | tuple | np.ndarray | str) for value in values):
        return objects_of(values)
    return np.asarray(values)


def objects_of(values: list[Any]) -> np.ndarray:
    """Values as an array of objects, lists among them as they are."""
    objects = np.empty(len(values), dtype=object)
    for position, value in enumerate(values):  # objects[:] = values would unpack lists
        objects[position] = value
    return objects


def is_frame(given: Any) -> bool:
    """Whether something has columns, rather than values."""
    kinds = ("collect_schema", "column_names", "columns")  # the first is a LazyFrame's
    return isinstance(given, Mapping) or any(hasattr(given, kind) for kind in kinds)


def _csv_columns(path: Path) -> dict[str, np.ndarray]:
    """The columns of a CSV file with a header; those of numbers only are numbers."""
    return {name: _typed(texts) for name, texts in csv_texts(path).items()}


def csv_texts(path: Path) -> dict[str, list[str]]:
    """The columns of a CSV file with a header, as they are written."""
    if path.suffix.lower() == ".parquet" or path.is_dir():
        raise DataError(f"{path} is not a CSV file: read it with fedrows.read_parquet.")
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.reader(file)
            names = next(reader, [])
            rows = list(reader)
    except OSError as error:
        raise DataError(f"{path} cannot be read ({reason(error)}).") from None
    except (UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{path} is not a CSV file in UTF-8 ({error}).") from None
    _check_once(names)
    rows = [row for row in rows if row]
    odd = next((number for number, row in enumerate(rows) if len(row) != len(names)), None)
    if odd is not None:
        raise DataError(
            f"Row {odd + 1} of {path} has {len(rows[odd])} values, but its header {len(names)}: "
            "mend the file."
        )
    return {name: [row[i] for row in rows] for i, name in enumerate(names)}


def _typed(texts: list[str]) -> np.ndarray:
    """Texts as whole numbers, as numbers, as true and false, or as they are; "" is no value."""
    if texts and all(text in ("True", "False", "true", "false") for text in texts):
        return np.array([text.lower() == "true" for text in texts])
    for kind in () if any(_NO_NUMBER.match(text) for text in texts) else (int, float):
        try:
            return np.array([kind(text) for text in texts])
        except (ValueError, OverflowError):
            continue
    return objects_of([text or None for text in texts])


def _kind(value: Any) -> str:
    return f"a {type(value).__name__}" if value is not None else "None"


def is_partitioner(source: Any) -> bool:
    """Whether it divides a data set among clients."""
    return hasattr(source, "load_partition") and hasattr(source, "num_partitions")


def parts_of(partitioner: Any) -> Iterator[tuple[int, Any]]:
    """The parts by number, each the piece of a client."""
    for number in range(int(partitioner.num_partitions)):
        yield number, columns_in(partitioner.load_partition(number))


def joined_splits(source: Any, options: dict[str, Any]) -> tuple[Mapping[str, Any], dict[str, Any]]:
    """One frame of a data set or of its splits, and the options with how it is split.

    The splits may be train, validation and test. What they are called decides what is held out.
    """
    if not isinstance(source, Mapping):
        if type(source).__name__.startswith("Iterable"):
            raise DataError("The data set is streamed, but all of it is needed: load it whole.")
        return columns_in(source), options
    splits = {str(name): columns_in(part) for name, part in source.items()}
    unknown = [name for name in splits if name not in ("train", "validation", "test")]
    if unknown or "train" not in splits:
        raise DataError(
            f"The data set has the splits {', '.join(splits)}: give one of them, or rename them to "
            "train, validation and test."
        )
    marks = {name: f"is a {name} example" for name in splits if name != "train"}  # new columns
    for name in marks:
        if name in options:
            raise DataError(
                f"{name} is {options[name]!r}, but the data set has a split {name!r} already: "
                "leave one of them out."
            )
    first = splits["train"]
    for name, part in splits.items():
        if missing := sorted(set(first) ^ set(part)):
            raise DataError(
                f"The splits train and {name} differ in column {missing[0]!r}: give both the same."
            )
    columns = {
        column: np.concatenate([part[column] for part in splits.values()]) for column in first
    }
    sizes = {name: len(part[next(iter(part))]) for name, part in splits.items()}
    for name, column in marks.items():
        columns[column] = np.concatenate([np.full(n, s == name) for s, n in sizes.items()])
    return columns, {**options, **marks}
