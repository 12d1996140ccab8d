"""All mapped tables of a run, in one folder: how they are saved with a checkpoint and brought back.

    sync    the rows go to the disk; what there is to go back to has not changed yet
    save    the checkpoint is put in its place, with the mark that `sync` gave
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
from fedrows.tables.column import MAGIC, Column
from fedrows.tables.kept import Kept, Part
from fedrows.tables.starts import Start
from fedrows.tables.undo import Undo

SHARE = 1 / 5  # of the rows' bytes: a log beyond it is long
FLOOR = 4 * 2**20  # bytes of a log that nobody minds, however few rows there are
_NAMES = ("*.ids", "*.rows", "*.undo")


@dataclass(frozen=True)
class Mark:
    """Where the tables stand, as a checkpoint keeps it."""

    name: str  # of the tables
    number: int  # of the checkpoint
    rows: dict[str, int]  # touched, by table


class Shelf:
    """The mapped tables of one run; without a folder they live in a temporary one."""

    def __init__(self, folder: Path | None = None) -> None:
        if folder is None:
            folder = Path(tempfile.mkdtemp(prefix="fedrows-"))
            weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
        self.folder = folder
        self.tables: dict[str, Kept] = {}
        self._name = b""  # drawn when the files are made
        self._number = 0

    def add(
        self, table: str, rows: int, start: Start, tail: tuple[int, ...], dtype: torch.dtype
    ) -> Part:
        """A new table, of which no row is touched."""
        kept = Kept(rows, self.folder / str(len(self.tables)), self.create)
        self.tables[table] = kept
        return Part(kept, start, tail, dtype)

    @property
    def nbytes(self) -> int:
        """What the files take on the disk."""
        files = [path for name in _NAMES for path in self.folder.glob(name)]
        return sum(path.stat().st_blocks * 512 for path in files)

    @property
    def log_is_long(self) -> bool:
        """Whether it is time for a checkpoint, at which the log of changes begins anew."""
        logs = sum(kept.undo.nbytes for kept in self.tables.values() if kept.undo is not None)
        rows = sum(kept.nbytes for kept in self.tables.values())
        return logs > max(FLOOR, SHARE * rows)

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
        for column in self._columns():
            column.create(name)
        self._name = name

    def sync(self) -> Mark:
        """Brings all rows to the disk and says where they stand."""
        self.create()
        for kept in self.tables.values():
            kept.fill()
        try:
            for kept in self.tables.values():
                kept.sync()
        except OSError as error:
            raise RunFolderError(
                f"{self.folder} cannot be written ({reason(error)}): make room, then go on from "
                "the last checkpoint with --resume."
            ) from error
        rows = {table: kept.places.count for table, kept in self.tables.items()}
        return Mark(self._name.hex(), self._number + 1, rows)

    def saved(self, mark: Mark) -> None:
        """Lets the rows as they are be what to go back to: a checkpoint has the mark."""
        self._number = mark.number
        for kept in self.tables.values():
            kept.saved(self._undo(kept, mark.number))
            self._forget_logs(kept, mark.number)

    def go_back(self, mark: Mark, *, look: bool = False) -> None:
        """Opens the files and brings every row to where it was at a mark.

        look: only to look at the rows; the files stay as they are.
        """
        self._name, self._number = bytes.fromhex(mark.name), mark.number
        if mark.rows.keys() != self.tables.keys():
            raise RunFolderError(
                f"{self.folder} does not belong to this run: it has the tables "
                f"{', '.join(mark.rows)}, not {', '.join(self.tables)}."
            )
        for table, kept in self.tables.items():
            count = mark.rows[table]
            for column in (kept.places.column, *kept.columns()):
                column.open(self._name, count, look=look)
            kept.go_back(count, self._undo(kept, mark.number))
            if look:
                continue
            kept.sync()
            kept.saved(self._undo(kept, mark.number))
            self._forget_logs(kept, None)

    def _columns(self) -> list[Column]:
        return [x for kept in self.tables.values() for x in (kept.places.column, *kept.columns())]

    def _undo(self, kept: Kept, number: int) -> Undo:
        return Undo(kept.stem.with_suffix(f".{number}.undo"), self._name)

    def _forget_logs(self, kept: Kept, number: int | None) -> None:
        """Removes the logs that lead back to another checkpoint than this."""
        for path in self.folder.glob(f"{kept.stem.name}.*.undo"):
            if path != kept.stem.with_suffix(f".{number}.undo"):
                path.unlink(missing_ok=True)
