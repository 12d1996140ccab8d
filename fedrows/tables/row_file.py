"""Numbers in a mapped file that grows: row after row, behind a header that says whose they are.

    0    "fedrows rows 1"                   16 bytes
    16   the name of the run's tables       16 bytes, drawn when they are made
    32   what a row is, as text             32 bytes
    64   the rows

Room is reserved on the disk before it is written to. A mapped page that finds no room on a full
disk kills the process; a reservation that fails raises an error, and what is there stays. The room
grows in small steps. The file is longer, with a hole at its end that takes no room, because mapping
it anew is dear.
"""

from __future__ import annotations

import mmap
import os
from math import prod
from pathlib import Path

import torch

from fedrows.errors import RunFolderError
from fedrows.files.whole import reason, unwritable

MAGIC = b"fedrows rows 1".ljust(16, b"\0")
HEADER = 64
_STEP = 2**18  # bytes of room that are reserved at once


class RowFile:
    """Rows of one shape and kind in a file; `rows` are all that are mapped, the hole included."""

    def __init__(self, path: Path, tail: tuple[int, ...], dtype: torch.dtype) -> None:
        self.path, self.tail, self.dtype = path, tail, dtype
        self.rows = torch.empty(0, *tail, dtype=dtype)
        self.row_bytes = dtype.itemsize * prod(tail)
        self._room = 0  # rows that have their room on the disk
        self._file = -1
        self._map: mmap.mmap | None = None

    def create(self, name: bytes) -> None:
        """Makes the file, empty; one that is there gives way."""
        try:
            self._file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o644)
            os.write(self._file, MAGIC + name + self._kind())
        except OSError as error:
            raise unwritable(self.path, error) from error

    def open(self, name: bytes, count: int, *, read_only: bool = False) -> None:
        """Opens a file that must belong to the tables of that name and have so many rows.

        read_only: what is then written stays in this process, and the file as it is.
        """
        try:
            self._file = os.open(self.path, os.O_RDONLY if read_only else os.O_RDWR)
            head, size = os.pread(self._file, HEADER, 0), os.fstat(self._file).st_size
        except OSError as error:
            raise RunFolderError(
                f"{self.path} cannot be opened ({reason(error)}): restore it, or run again with "
                "--overwrite."
            ) from error
        if head != MAGIC + name + self._kind():
            raise RunFolderError(
                f"{self.path} does not belong to this run's checkpoint: restore the file that "
                "does, or run again with --overwrite."
            )
        length = (size - HEADER) // self.row_bytes
        if length < count:
            raise RunFolderError(
                f"{self.path} is cut short, {length} of {count} rows are there: restore it, or run "
                "again with --overwrite."
            )
        self._room = count
        if length:
            self._remap(length, mmap.ACCESS_COPY if read_only else mmap.ACCESS_WRITE)

    def reserve(self, count: int) -> None:
        """Sees to it that there is room for so many rows."""
        if count <= self._room:
            return
        room = max(count, self._room + _STEP // self.row_bytes)
        size = HEADER + room * self.row_bytes
        try:
            _allocate(self._file, HEADER + self._room * self.row_bytes, size)
            if room > len(self.rows):
                length = room + room // 8
                os.ftruncate(self._file, HEADER + length * self.row_bytes)
                self._remap(length)
            self._room = room
        except OSError as error:
            raise RunFolderError(
                f"{self.path} cannot grow to {size:,} bytes ({reason(error)}): make room, then go "
                "on from the last checkpoint with --resume."
            ) from error

    def sync(self) -> None:
        """Waits until the rows are on the disk."""
        if self._map is not None:
            self._map.flush()
        os.fsync(self._file)

    def _remap(self, length: int, access: int = mmap.ACCESS_WRITE) -> None:
        self._map = mmap.mmap(self._file, HEADER + length * self.row_bytes, access=access)
        if hasattr(mmap, "MADV_RANDOM"):  # reading ahead would fetch rows that nobody asked for
            self._map.madvise(mmap.MADV_RANDOM)
        count = length * prod(self.tail)
        with torch.inference_mode(False):  # or it could be written to in that mode only
            flat = torch.frombuffer(self._map, dtype=self.dtype, count=count, offset=HEADER)
            self.rows = flat.view(length, *self.tail)

    def _kind(self) -> bytes:
        text = f"{str(self.dtype).removeprefix('torch.')} {'x'.join(map(str, self.tail))}"
        return text.encode().ljust(32, b"\0")

    def __del__(self) -> None:
        if self._file >= 0:
            os.close(self._file)


def _allocate(file: int, start: int, stop: int) -> None:
    """Reserves the room of some bytes of a file, which becomes longer if need be."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(file, start, stop - start)
        return
    for at in range(start, stop, 2**20):  # macOS: written, so reserved
        os.pwrite(file, bytes(min(2**20, stop - at)), at)
