"""All mapped tables of a run, in one folder: how they are saved with a checkpoint and brought back.

    sync    the rows go to the disk; what there is to go back to has not changed yet
    save    the checkpoint is written, with the save point that `sync` gave
    saved   now the rows as they are count: a new log of changes begins

A process may be killed between any two of these, or within one. The log has the number of the
checkpoint it leads back to, so a log that a newer checkpoint has overtaken is not used. Whoever
saves the run asks after every round whether the log is long, and saves then: so the disk is never
much fuller than the rows.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import weakref
from dataclasses import dataclass
from pathlib import Path

import torch

from fedrows.errors import RunFolderError
from fedrows.files.whole import reason
from fedrows.tables.initial_rows import InitialRows
from fedrows.tables.row_file import MAGIC
from fedrows.tables.touched_rows import MappedRows, TouchedRows
from fedrows.tables.undo_log import UndoLog

SHARE = 1 / 5  # of the rows' bytes: a log beyond it is long
FLOOR = 4 * 2**20  # bytes of a log that nobody minds, however few rows there are
_NAMES = ("*.ids", "*.rows", "*.undo")


@dataclass(frozen=True)
class SavePoint:
    """Where the tables stand, as a checkpoint keeps it."""

    name: str  # of the tables
    number: int  # of the checkpoint
    rows: dict[str, int]  # touched, by table


class TableFolder:
    """The mapped tables of one run; without a folder they live in a temporary one."""

    def __init__(self, folder: Path | None = None) -> None:
        if folder is None:
            folder = Path(tempfile.mkdtemp(prefix="fedrows-"))
            weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
        self.folder = folder
        self.tables: dict[str, TouchedRows] = {}
        self._name = b""  # drawn when the files are made
        self._number = 0

    def add(
        self, table: str, rows: int, start: InitialRows, tail: tuple[int, ...], dtype: torch.dtype
    ) -> MappedRows:
        """A new table, of which no row is touched."""
        stem = self.folder / str(len(self.tables))
        self.tables[table] = TouchedRows(rows, stem, self.create)
        return MappedRows(self.tables[table], start, tail, dtype)

    @property
    def nbytes(self) -> int:
        """What the files take on the disk."""
        files = [path for name in _NAMES for path in self.folder.glob(name)]
        return sum(path.stat().st_blocks * 512 for path in files)

    @property
    def log_is_long(self) -> bool:
        """Whether it is time for a checkpoint, at which the log of changes begins anew."""
        tables = self.tables.values()
        logs = sum(touched.undo.nbytes for touched in tables if touched.undo is not None)
        rows = sum(touched.nbytes for touched in tables)
        return logs > max(FLOOR, SHARE * rows)

    def not_finite(self) -> str:
        """A table that has become infinite or NaN in some row since the checkpoint, or ""."""
        return next((name for name, rows in self.tables.items() if not rows.finite()), "")

    def create(self) -> None:
        """Makes the files if they are not there; tables that an earlier run left give way."""
        if self._name:
            return
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            for path in [path for name in _NAMES for path in self.folder.glob(name)]:
                with path.open("rb") as file:
                    ours = file.read(len(MAGIC)) in (MAGIC, b"")
                if not ours:
                    raise RunFolderError(
                        f"{path} is not a table of fedrows, and is not overwritten: choose another "
                        "folder."
                    )
                path.unlink()
        except RunFolderError:
            raise
        except OSError as error:
            raise RunFolderError(
                f"{self.folder} cannot be written ({reason(error)}): choose another folder."
            ) from error
        name = os.urandom(16)
        for touched in self.tables.values():
            for row_file in touched.files():
                row_file.create(name)
        self._name = name

    def sync(self) -> SavePoint:
        """Brings all rows to the disk and says where they stand."""
        self.create()
        for touched in self.tables.values():
            touched.fill()
        try:
            for touched in self.tables.values():
                touched.sync()
        except OSError as error:
            raise RunFolderError(
                f"{self.folder} cannot be written ({reason(error)}): make room, then go on from "
                "the last checkpoint with --resume."
            ) from error
        rows = {table: touched.id_map.count for table, touched in self.tables.items()}
        return SavePoint(self._name.hex(), self._number + 1, rows)

    def saved(self, point: SavePoint) -> None:
        """Lets the rows as they are be what to go back to: a checkpoint has the save point."""
        self._number = point.number
        for touched in self.tables.values():
            touched.saved(self._undo(touched, point.number))
            self._forget_logs(touched, point.number)

    def restore(self, point: SavePoint, *, read_only: bool = False) -> None:
        """Opens the files and brings every row to where it was at a save point.

        read_only: the rows can be read, and the files stay as they are.
        """
        self._name, self._number = bytes.fromhex(point.name), point.number
        if point.rows.keys() != self.tables.keys():
            raise RunFolderError(
                f"{self.folder} does not belong to this run: it has the tables "
                f"{', '.join(point.rows)}, not {', '.join(self.tables)}."
            )
        for table, touched in self.tables.items():
            count = point.rows[table]
            for file in touched.files():
                file.open(self._name, count, read_only=read_only)
            touched.restore(count, self._undo(touched, point.number))
            if read_only:
                continue
            touched.sync()
            touched.saved(self._undo(touched, point.number))
            self._forget_logs(touched, None)

    def _undo(self, touched: TouchedRows, number: int) -> UndoLog:
        return UndoLog(touched.stem.with_suffix(f".{number}.undo"), self._name)

    def _forget_logs(self, touched: TouchedRows, number: int | None) -> None:
        """Removes the logs that lead back to another checkpoint than this."""
        for path in self.folder.glob(f"{touched.stem.name}.*.undo"):
            if path != touched.stem.with_suffix(f".{number}.undo"):
                path.unlink(missing_ok=True)
