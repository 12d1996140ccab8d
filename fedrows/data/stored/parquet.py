"""Federations from Parquet files, by way of a store."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedrows.data.column_layout import Layout
from fedrows.data.federation import FederatedData
from fedrows.data.stored.parquet_table import ParquetTable
from fedrows.data.stored.parquet_to_store import write
from fedrows.data.stored.store import folder_of, open_or_write, sources
from fedrows.errors import DataError, UnknownKeywordError
from fedrows.files.fetch import data_folder
from fedrows.options import keywords


def read_parquet(
    paths: str | Path | Iterable[str | Path],
    *,
    client: str,
    label: str,
    features: Sequence[str] | Mapping[str, str],
    store: str | Path | None = None,
    **options: Any,
) -> FederatedData:
    """A federation from Parquet files, or a folder of them, that need not fit into memory.

    They are read once into a store of memory-mapped columns, by default below the data folder. As
    long as the files and the options stay the same, the store is opened again at once. The rows
    are those of all files in order. Options are those of `FederatedData.from_frame`.
    """
    _check_keywords(options)
    columns = Layout(client=client, label=label, features=features, **options)
    files = _files(paths)
    key = {"from": sources(files), "layout": columns.as_facts()}
    folder = folder_of(data_folder() / "stores", key) if store is None else Path(store)

    def make(at: Path) -> None:
        _require_arrow()
        write(ParquetTable(files, columns), columns, at, key)

    return open_or_write(folder, key, make)


def _check_keywords(given: Iterable[str]) -> None:
    """Raises an UnknownKeywordError for a keyword that neither function has."""
    known = {*keywords(read_parquet), *keywords(Layout)}
    for name in given:
        if name not in known:
            raise UnknownKeywordError("read_parquet", name, known)


def _require_arrow() -> None:
    try:
        import pyarrow.parquet  # noqa: F401
    except ImportError:
        raise DataError(
            "Reading Parquet needs pyarrow: install it with `pip install 'fedrows[data]'`."
        ) from None


def _files(paths: str | Path | Iterable[str | Path]) -> list[Path]:
    """The Parquet files that are meant, those of a folder in the order of their names."""
    given = [paths] if isinstance(paths, str | Path) else list(paths)
    files: list[Path] = []
    for path in map(Path, given):
        if path.is_dir():
            inside = sorted(path.rglob("*.parquet"))
            inside = [file for file in inside if not _hidden(file.relative_to(path))]
            if not inside:
                raise DataError(f"There is no Parquet file (*.parquet) in the folder {path}.")
            files += inside
        elif path.is_file():
            files.append(path)
        else:
            raise DataError(f"There is no file or folder {path}: check the path.")
    if not files:
        raise DataError("No Parquet file is named: give a file, several, or a folder.")
    return files


def _hidden(path: Path) -> bool:
    return any(part.startswith((".", "_")) for part in path.parts)
