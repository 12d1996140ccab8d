"""CSV and Parquet files as frames, by pandas or polars, whichever is installed.

In a CSV file every column is text: a value is its text, so 007 stays 007. Cells of a column of
lists hold entries with spaces between them, or a JSON list.
"""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

from fedrows.data.encoder import Encoder
from fedrows.errors import DataError
from fedrows.files.whole import reason

FORMATS = (".csv", ".parquet")
_TRUTH = {"true": "1", "false": "0"}


def read_frame(path: Path, encoder: Encoder) -> Any:
    """A file as a frame whose columns of lists are lists."""
    _, library = reader(path)
    if not path.is_file():
        raise DataError(f"There is no file {path}: check the path.")
    try:
        frame = _read(path, library)
    except OSError as error:
        raise DataError(f"{path} cannot be read ({reason(error)}).") from error
    except Exception as error:  # whatever the library says of a file that is not whole
        why = next((x for x in str(error).splitlines() if x.strip()), type(error).__name__)
        raise DataError(f"{path} cannot be read ({why.strip().rstrip('.')}).") from error
    if path.suffix.lower() == ".parquet":
        return frame
    columns = {str(name): list(frame[name]) for name in frame.columns}
    for name, feature in encoder.features.items():
        if name in columns and (feature.length is not None or feature.width is not None):
            columns[name] = [_entries(path, name, i, x) for i, x in enumerate(columns[name])]
    if encoder.labels == "binary" and encoder.label in columns:
        columns[encoder.label] = [_TRUTH.get(x.lower(), x) for x in columns[encoder.label]]
    return columns


def reader(path: Path) -> tuple[str, Any]:
    """The library that reads and writes frames, and its name."""
    if path.suffix.lower() not in FORMATS:
        raise DataError(f"{path} is neither a .csv nor a .parquet file: name one of them.")
    for name in ("pandas", "polars"):
        try:
            return name, importlib.import_module(name)
        except ImportError:
            continue
    raise DataError("Reading data files needs pandas or polars: install one of them.")


def _read(path: Path, library: Any) -> Any:
    polars = library.__name__ == "polars"
    if path.suffix.lower() == ".parquet":
        return library.read_parquet(path)
    if polars:
        return library.read_csv(path, infer_schema=False).fill_null("")
    return library.read_csv(path, dtype=str, keep_default_na=False)


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
