"""CSV and Parquet files as frames; Parquet by pandas or polars, whichever is installed.

In a CSV file every column is text: a value is its text, so 007 stays 007. Cells of a column of
lists hold entries with spaces between them, or a JSON list. Where training had numbers, true and
false are 1 and 0.
"""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

from fedrows.data.encoder import Encoder
from fedrows.data.frame_sources import csv_texts
from fedrows.data.values import NUMBER
from fedrows.errors import DataError
from fedrows.files.whole import reason

FORMATS = (".csv", ".parquet")
_TRUTH = {"true": "1", "false": "0"}


def read_frame(path: Path, encoder: Encoder) -> Any:
    """A file as a frame whose columns of lists are lists."""
    _check_name(path)
    if not path.is_file():
        raise DataError(f"There is no file {path}: check the path.")
    if path.suffix.lower() == ".parquet":
        return _read_parquet(path)
    columns: dict[str, list[Any]] = {**csv_texts(path)}
    lists = {n for n, x in encoder.features.items() if (x.length or x.width) is not None}
    lists |= {name for name, width in encoder.numbers.items() if width is not None}
    numbers = {name for name, x in encoder.features.items() if x.kind == NUMBER}
    numbers |= {*encoder.numbers, encoder.label}
    for name, texts in columns.items():
        if name in lists:
            columns[name] = [_entries(path, name, i, x) for i, x in enumerate(texts)]
        elif name in numbers:
            columns[name] = [_TRUTH.get(x.lower(), x) for x in texts]
    return columns


def reader(path: Path) -> tuple[str, Any]:
    """The library that reads and writes Parquet, and its name."""
    _check_name(path)
    for name in ("pandas", "polars"):
        try:
            return name, importlib.import_module(name)
        except ImportError:
            continue
    raise DataError("Parquet files need pandas or polars: install one of them, or use CSV.")


def _check_name(path: Path) -> None:
    if path.suffix.lower() not in FORMATS:
        raise DataError(f"{path} is neither a .csv nor a .parquet file: name one of them.")


def _read_parquet(path: Path) -> Any:
    _, library = reader(path)
    try:
        return library.read_parquet(path)
    except OSError as error:
        raise DataError(f"{path} cannot be read ({reason(error)}).") from error
    except Exception as error:  # whatever the library says of a file that is not whole
        why = next((x for x in str(error).splitlines() if x.strip()), type(error).__name__)
        raise DataError(f"{path} cannot be read ({why.strip().rstrip('.')}).") from error


def _entries(path: Path, column: str, row: int, cell: str) -> list[Any]:
    """The entries of a list that is written in a cell."""
    if not cell.lstrip().startswith("["):
        return cell.split()
    try:
        entries = json.loads(cell)
    except ValueError:
        raise DataError(
            f"Column {column!r} of {path} is {cell!r} in row {row}, which is no JSON list: write "
            "its entries with spaces between them, or as JSON."
        ) from None
    return list(entries)
