"""id → place: where a touched row is kept, by open addressing, many ids at a time.

    ids      [ 31 4 77 … ]       the id at every place, in a file, in the order of their arrival
    slots    [ . 2 . 0 . 1 … ]   places, each at its id's hash or at the next slot that was free

At most half of the slots are taken. A look-up of R ids costs a few passes over R numbers; nothing
is as large as the table, and there is no Python object per row.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from fedrows.seeds import mix
from fedrows.tables.column import Column

_FEWEST = 2**12


class Places:
    """The ids that were touched, each with a place of its own: 0, 1, 2, …"""

    def __init__(self, column: Column) -> None:
        self.column = column
        self.count = 0
        self._slots = np.full(_FEWEST, -1, dtype=np.int32)
        self._last: tuple[Tensor, int, np.ndarray] | None = None

    @property
    def ids(self) -> Tensor:
        """The id at each place: (count,)."""
        return self.column.rows[: self.count]

    def find(self, ids: Tensor) -> Tensor:
        """The place of each id (R,), −1 where it has none."""
        return torch.from_numpy(self._find(ids))

    def find_or_add(self, ids: Tensor) -> Tensor:
        """The place of each id (R,); those that have none get the next."""
        place = self._find(ids)
        missing = np.flatnonzero(place < 0)
        if len(missing):
            new, which = np.unique(ids.numpy()[missing], return_inverse=True)
            self.column.reserve(self.count + len(new))
            self.column.rows[self.count : self.count + len(new)] = torch.from_numpy(new)
            place = place.copy()
            place[missing] = self.count + which
            first, self.count = self.count, self.count + len(new)
            if 2 * self.count > len(self._slots):
                self._rebuild()
            else:
                self._put(first)
            self._last = None if _version(ids) < 0 else (ids, _version(ids), place)
        return torch.from_numpy(place)

    def set_count(self, count: int) -> None:
        """Forgets all but the first ids, or learns of those that are in the file."""
        self.count = count
        self._last = None
        self._rebuild()

    def _find(self, ids: Tensor) -> np.ndarray:
        """The place of each id; a round asks for the same ids several times, and gets the same."""
        if self._last is not None and self._last[0] is ids and self._last[1] == _version(ids):
            return self._last[2]
        wanted, known = ids.numpy(), self.column.rows.numpy()
        if not self.count:
            return np.full(len(wanted), -1)
        mask = len(self._slots) - 1
        slot = mix(wanted) & mask
        place = self._slots[slot].astype(np.int64)
        wrong = np.flatnonzero((place >= 0) & (known[place] != wanted))
        while len(wrong):
            slot[wrong] = (slot[wrong] + 1) & mask
            place[wrong] = further = self._slots[slot[wrong]]
            wrong = wrong[(further >= 0) & (known[further] != wanted[wrong])]
        if _version(ids) >= 0:
            self._last = (ids, _version(ids), place)
        return place

    def _put(self, first: int) -> None:
        """Gives the places from `first` on a slot each."""
        mask = len(self._slots) - 1
        place = np.arange(first, self.count, dtype=self._slots.dtype)
        slot = mix(self.column.rows[first : self.count].numpy()) & mask
        while len(place):
            free = self._slots[slot] < 0
            self._slots[slot[free]] = place[free]  # of several for one slot, the last has it
            lost = self._slots[slot] != place
            place, slot = place[lost], (slot[lost] + 1) & mask

    def _rebuild(self) -> None:
        size = _FEWEST
        while size < 4 * self.count:
            size *= 2
        self._slots = np.full(size, -1, dtype=np.int32 if size <= 2**31 else np.int64)
        self._put(0)


def _version(ids: Tensor) -> int:
    """How often a tensor was changed in place; −1 if nobody counts."""
    return -1 if ids.is_inference() else ids._version
