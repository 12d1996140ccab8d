"""Federations from Parquet files, by way of a store."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from fedrows.data.federation import FederatedData
from fedrows.data.layout import Layout, as_facts
from fedrows.data.stored.arrow import ParquetTable
from fedrows.data.stored.store import kept, place_of, sources
from fedrows.data.stored.streamed import write
from fedrows.errors import DataError
from fedrows.files.fetch import data_folder


def from_parquet(
    paths: str | Path | Iterable[str | Path], layout: Layout, store: str | Path | None = None
) -> FederatedData:
    """The store of some files and a layout, made if it is not there."""
    files = _files(paths)
    key = {"from": sources(files), "layout": as_facts(layout)}
    place = place_of(data_folder() / "stores", key) if store is None else Path(store)

    def make(at: Path) -> None:
        _require_arrow()
        write(ParquetTable(files, layout), layout, at, key)

    return kept(place, key, make)


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
            found = sorted(path.rglob("*.parquet"))
            found = [file for file in found if not _hidden(file.relative_to(path))]
            if not found:
                raise DataError(f"There is no Parquet file (*.parquet) in the folder {path}.")
            files += found
        elif path.is_file():
            files.append(path)
        else:
            raise DataError(f"There is no file or folder {path}: check the path.")
    if not files:
        raise DataError("No Parquet file is named: give a file, several, or a folder.")
    return files


def _hidden(path: Path) -> bool:
    return any(part.startswith((".", "_")) for part in path.parts)
