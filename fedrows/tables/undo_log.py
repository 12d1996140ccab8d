"""The undo log: what rows were at the last checkpoint, written to disk before they change.

What is written to a mapped file may reach the disk at any moment. So the first time after a
checkpoint that a row is about to change, its old value is appended to the log, and the log is
synced. A run that was killed reads the log and continues from its checkpoint, to the last bit.

    record   count, checksum (8 bytes each), positions (count,), the rows of every file

A record that was cut short is ignored: its rows have not been changed yet.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator
from math import prod
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fedrows.errors import RunFolderError
from fedrows.files.whole import reason, sync_folder
from fedrows.tables.row_file import HEADER, MAGIC, RowFile


class UndoLog:
    """The log of one table since one checkpoint; there is no file before the first record."""

    def __init__(self, path: Path, name: bytes) -> None:
        self.path, self._name = path, name
        self.nbytes = 0  # written so far
        self._file = -1

    def write(self, positions: Tensor, files: list[RowFile]) -> None:
        """Keeps what the rows at some positions (R,) are now; on the disk when it returns."""
        parts = [positions.numpy(), *(x.rows.index_select(0, positions).numpy() for x in files)]
        body = [part.data.cast("B") for part in parts]
        check = 0
        for part in body:
            check = zlib.crc32(part, check)
        head = np.array([len(positions), check], dtype=np.int64).tobytes()
        try:
            if self._file < 0:
                self._file = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
                _write(self._file, self._head())
                self.nbytes = HEADER
                sync_folder(self.path.parent)
            for part in (memoryview(head), *body):
                _write(self._file, part)
            os.fdatasync(self._file) if hasattr(os, "fdatasync") else os.fsync(self._file)
            self.nbytes += len(head) + sum(map(len, body))
        except OSError as error:
            raise RunFolderError(
                f"{self.path} cannot be written ({reason(error)}): make room, then go on from the "
                "last checkpoint with --resume."
            ) from error

    def records(self, files: list[RowFile]) -> Iterator[tuple[Tensor, list[Tensor]]]:
        """The positions of each record and the rows that were there, file by file."""
        try:
            log = self.path.open("rb")
        except FileNotFoundError:
            return
        except OSError as error:
            raise RunFolderError(f"{self.path} cannot be read ({reason(error)}).") from error
        row = 8 + sum(file.row_bytes for file in files)
        with log:
            if log.read(HEADER) != self._head():
                return  # cut short before its first record
            while len(head := log.read(16)) == 16:
                count, check = np.frombuffer(head, dtype=np.int64).tolist()
                if not 0 < count <= os.fstat(log.fileno()).st_size // row:
                    return
                body = bytearray(log.read(count * row))
                if len(body) < count * row or zlib.crc32(body) != check:
                    return
                positions = torch.frombuffer(body, dtype=torch.int64, count=count)
                at, rows = 8 * count, []
                for file in files:
                    numbers = count * prod(file.tail)
                    flat = torch.frombuffer(body, dtype=file.dtype, count=numbers, offset=at)
                    rows.append(flat.view(count, *file.tail))
                    at += numbers * file.dtype.itemsize
                yield positions, rows

    def _head(self) -> bytes:
        return MAGIC + self._name + b"undo".ljust(HEADER - 32, b"\0")

    def __del__(self) -> None:
        if self._file >= 0:
            os.close(self._file)


def _write(file: int, data: bytes | memoryview) -> None:
    left = memoryview(data)
    while left:
        left = left[os.write(file, left) :]
