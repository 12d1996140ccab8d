"""Columns on disk in parts, each with all examples of some clients, and small enough to load."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch

from fedrows.rows.ragged import Ragged, lists_of

OWNER = "owner"  # the column of every example's client
Spilled = np.ndarray | Ragged


class Spill:
    """The parts of a table of columns; clients are numbers, and a part has a range of them."""

    def __init__(self, folder: Path, part: np.ndarray) -> None:
        self.folder = folder
        self.part = part  # (clients,), ascending: where each client's examples go
        self.parts = int(part[-1]) + 1
        self._kinds: dict[tuple[str, str], tuple[np.dtype, tuple[int, ...]]] = {}
        folder.mkdir()

    def clients(self, part: int) -> tuple[int, int]:
        """The first client of a part, and the first one after it."""
        low, high = np.searchsorted(self.part, [part, part + 1])
        return int(low), int(high)

    def add(self, columns: Mapping[str, Spilled]) -> None:
        """Appends examples to the parts of their clients."""
        owner = columns[OWNER]
        assert isinstance(owner, np.ndarray)
        part = self.part[owner]
        order = np.argsort(part, kind="stable")
        bounds = np.searchsorted(part[order], np.arange(self.parts + 1))
        for name, column in columns.items():
            if isinstance(column, Ragged):
                lists = column.pick(torch.from_numpy(order))
                self._write((name, "sizes"), lists.sizes.numpy(), bounds)
                self._write((name, "values"), lists.values.numpy(), lists.offsets.numpy()[bounds])
            else:
                self._write((name, ""), column[order], bounds)

    def load(self, part: int) -> dict[str, Spilled]:
        """The columns of a part, sorted by client and otherwise in the order they came in."""
        order = np.argsort(self._read(part, (OWNER, "")), kind="stable")
        columns: dict[str, Spilled] = {}
        for name, piece in self._kinds:
            if piece == "sizes":
                sizes = self._read(part, (name, piece))
                lists = lists_of(self._read(part, (name, "values")), sizes)
                columns[name] = lists.pick(torch.from_numpy(order))
            elif not piece:
                columns[name] = self._read(part, (name, piece))[order]
        return columns

    def _write(self, which: tuple[str, str], values: np.ndarray, bounds: np.ndarray) -> None:
        self._kinds.setdefault(which, (values.dtype, values.shape[1:]))
        values = np.ascontiguousarray(values)
        for part in np.flatnonzero(np.diff(bounds)).tolist():
            with self._path(part, which).open("ab") as file:
                file.write(values[bounds[part] : bounds[part + 1]].tobytes())

    def _read(self, part: int, which: tuple[str, str]) -> np.ndarray:
        dtype, shape = self._kinds[which]
        path = self._path(part, which)
        flat = np.fromfile(path, dtype) if path.exists() else np.empty(0, dtype)
        return flat.reshape(-1, *shape)

    def _path(self, part: int, which: tuple[str, str]) -> Path:
        return self.folder / f"{list(self._kinds).index(which)}.{part}"
