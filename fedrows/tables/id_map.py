"""id → position: where a touched row is kept, by open addressing, many ids at a time.

    ids      [ 31 4 77 … ]       the id at every position, in a file, in the order of their arrival
    slots    [ . 2 . 0 . 1 … ]   positions, each at its id's hash or at the next slot that was free

At most half of the slots are taken. A look-up of R ids costs a few passes over R numbers; nothing
is as large as the table, and there is no Python object per row.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from fedrows.seeds import mix
from fedrows.tables.row_file import RowFile

_FEWEST = 2**12


class IdMap:
    """The ids that were touched, each with a position of its own: 0, 1, 2, …"""

    def __init__(self, file: RowFile) -> None:
        self.file = file
        self.count = 0
        self._slots = np.full(_FEWEST, -1, dtype=np.int32)
        self._last: tuple[Tensor, int, np.ndarray] | None = None

    @property
    def ids(self) -> Tensor:
        """The id at each position: (count,)."""
        return self.file.rows[: self.count]

    def find(self, ids: Tensor) -> Tensor:
        """The position of each id (R,), −1 where it has none."""
        return torch.from_numpy(self._find(ids))

    def find_or_add(self, ids: Tensor) -> Tensor:
        """The position of each id (R,); those that have none get the next."""
        position = self._find(ids)
        missing = np.flatnonzero(position < 0)
        if len(missing):
            new, which = np.unique(ids.numpy()[missing], return_inverse=True)
            self.file.reserve(self.count + len(new))
            self.file.rows[self.count : self.count + len(new)] = torch.from_numpy(new)
            position = position.copy()
            position[missing] = self.count + which
            first, self.count = self.count, self.count + len(new)
            if 2 * self.count > len(self._slots):
                self._rebuild()
            else:
                self._put(first)
            self._last = None if _version(ids) < 0 else (ids, _version(ids), position)
        return torch.from_numpy(position)

    def set_count(self, count: int) -> None:
        """Forgets all but the first ids, or learns of those that are in the file."""
        self.count = count
        self._last = None
        self._rebuild()

    def _find(self, ids: Tensor) -> np.ndarray:
        """The position of each id; the last answer is kept, as a round asks several times."""
        if self._last is not None and self._last[0] is ids and self._last[1] == _version(ids):
            return self._last[2]
        wanted, known = ids.numpy(), self.file.rows.numpy()
        if not self.count:
            return np.full(len(wanted), -1)
        mask = len(self._slots) - 1
        slot = mix(wanted) & mask
        position = self._slots[slot].astype(np.int64)
        wrong = np.flatnonzero((position >= 0) & (known[position] != wanted))
        while len(wrong):
            slot[wrong] = (slot[wrong] + 1) & mask
            position[wrong] = further = self._slots[slot[wrong]]
            wrong = wrong[(further >= 0) & (known[further] != wanted[wrong])]
        if _version(ids) >= 0:
            self._last = (ids, _version(ids), position)
        return position

    def _put(self, first: int) -> None:
        """Gives the positions from `first` on a slot each."""
        mask = len(self._slots) - 1
        position = np.arange(first, self.count, dtype=self._slots.dtype)
        slot = mix(self.file.rows[first : self.count].numpy()) & mask
        while len(position):
            free = self._slots[slot] < 0
            self._slots[slot[free]] = position[free]  # of several for one slot, the last has it
            lost = self._slots[slot] != position
            position, slot = position[lost], (slot[lost] + 1) & mask

    def _rebuild(self) -> None:
        size = _FEWEST
        while size < 4 * self.count:
            size *= 2
        self._slots = np.full(size, -1, dtype=np.int32 if size <= 2**31 else np.int64)
        self._put(0)


def _version(ids: Tensor) -> int:
    """How often a tensor was changed in place; −1 if nobody counts."""
    return -1 if ids.is_inference() else ids._version
