"""The end of a JSON-lines file that somebody else is writing."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from fedrows.files.whole import Json

CHUNK = 8 * 2**20  # bytes of one look, so that a long file is not one long wait


class GrowingLines:
    """Reads what was added to a file since the last look.

    A last line without its line break is left for the next look. A file that was replaced, or has
    become shorter, is read anew.
    """

    def __init__(self, path: Path) -> None:
        self.path, self.changed = path, 0.0  # changed: when the file was last written
        self._file: tuple[int, int] | None = None  # device and inode
        self._offset = 0

    def read(self) -> tuple[list[Json], bool]:
        """The new lines, and whether they replace all that came before."""
        try:
            with self.path.open("rb") as file:
                return self._read(file)
        except OSError:
            anew, self._file, self._offset = self._offset > 0, None, 0
            return [], anew

    def _read(self, file: Any) -> tuple[list[Json], bool]:
        about = os.fstat(file.fileno())
        this, anew = (about.st_dev, about.st_ino), False
        if self._file != this or about.st_size < self._offset:
            anew, self._file, self._offset = self._offset > 0, this, 0
        self.changed = about.st_mtime
        lines: list[Json] = []
        file.seek(self._offset)
        while chunk := file.read(CHUNK):
            complete, end, _ = chunk.rpartition(b"\n")
            if not end:
                break
            self._offset += len(complete) + 1
            file.seek(self._offset)
            for text in complete.split(b"\n"):
                line = _parsed(text)
                if line is not None:
                    lines.append(line)
        return lines, anew


def _parsed(text: bytes) -> Json | None:
    """A line, or None for one that is no JSON object: its writer was cut short and went on."""
    try:
        line = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return line if isinstance(line, dict) else None
