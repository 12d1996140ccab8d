"""Which rows of a table each client of a cohort holds, flat and ragged.

    cohort of K = 3       client 0   client 1   client 2
      ids     [ 4 9 31 |  9 12  |  4 12 40 77 ]     (R,)    sorted inside each client
      splits  [ 0      3        5            9]     (K+1,)

No padding: client sizes are heavy-tailed. `splits` lives on the CPU whatever the device, so that
every size is known to the host without waiting for a GPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Index:
    """The index sets S(i) of K clients in one table.

    `held` are the sorted ids that any client of the whole federation holds, and `place` says
    where in it each id stands. Heat kept in the order of `held` is then read by one gather.
    `source` says which entries of a larger index this one was selected from. `known_owner` is
    `owner`, where whoever made the index has it already.
    """

    ids: Tensor  # (R,)
    splits: Tensor  # (K+1,), on the CPU
    place: Tensor | None = None  # (R,)
    held: Tensor | None = None  # (H,)
    source: Tensor | None = field(default=None, repr=False)  # (R,)
    known_owner: Tensor | None = field(default=None, repr=False)  # (R,)

    @classmethod
    def of(cls, sets: Sequence[Tensor]) -> Index:
        """The index of clients that hold these rows each; there may be none."""
        lengths = torch.tensor([len(ids) for ids in sets], dtype=torch.int64)
        splits = torch.cat([lengths.new_zeros(1), lengths.cumsum(0)])
        return cls(torch.cat([torch.zeros(0, dtype=torch.int64), *sets]), splits)

    @property
    def clients(self) -> int:
        """K, the number of clients."""
        return len(self.splits) - 1

    @cached_property
    def lengths(self) -> Tensor:
        """How many rows each client holds: (K,), on the CPU."""
        return self.splits.diff()

    @cached_property
    def owner(self) -> Tensor:
        """Which client each entry belongs to: (R,)."""
        if self.known_owner is not None:
            return self.known_owner
        lengths = self.lengths.to(self.ids.device, non_blocking=True)
        return torch.repeat_interleave(lengths, output_size=len(self.ids))

    def spread(self, values: Tensor) -> Tensor:
        """One value per client, repeated over its entries: (K,) → (R,)."""
        return values.to(self.ids.device, non_blocking=True).index_select(0, self.owner)

    def sum_by_row(self, values: Tensor) -> Tensor:
        """For every entry, the sum of one value per entry over all entries of its row: (R,) → (R,).

        Shapes do not depend on the ids, so that a GPU need not be waited for.
        """
        position = torch.searchsorted(self.ids.sort().values, self.ids)  # (R,), one for each row
        return torch.zeros_like(values).index_add_(0, position, values).index_select(0, position)

    def select(self, clients: Tensor) -> Index:
        """The index sets of some of the clients, in the order given."""
        which, bounds = clients.numpy(), self.splits.numpy()
        starts = bounds[which]
        splits, owner, source = entries(starts, bounds[which + 1] - starts, self.ids.device)
        if self.place is None or self.held is None:
            ids = self.ids.index_select(0, source)
            return Index(ids, splits, source=source, known_owner=owner)
        position = self.place.index_select(0, source)
        ids = self.held.index_select(0, position)  # the same ids, from far less memory
        return Index(ids, splits, position, self.held, source, owner)

    def slice(self, start: int, stop: int) -> Index:
        """The index sets of the clients start … stop−1, as views."""
        low, high = int(self.splits[start]), int(self.splits[stop])
        return Index(
            self.ids[low:high],
            self.splits[start : stop + 1] - low,
            None if self.place is None else self.place[low:high],
            self.held,
            None if self.source is None else self.source[low:high],
        )

    def to(self, device: torch.device) -> Index:
        """The same index with its entries on another device."""
        position, held, source = (
            None if x is None else x.to(device) for x in (self.place, self.held, self.source)
        )
        return Index(self.ids.to(device), self.splits, position, held, source)


def entries(
    starts: np.ndarray, lengths: np.ndarray, device: torch.device
) -> tuple[Tensor, Tensor, Tensor]:
    """The entries of K parts of a flat list: splits (K+1,), on the CPU, owner and source (R,)."""
    # NumPy: so few numbers that what counts is what a call costs.
    whole = np.zeros(len(lengths) + 1, dtype=np.int64)
    ends = np.cumsum(lengths, out=whole[1:])
    splits, size = torch.from_numpy(whole), int(whole[-1])
    both = torch.from_numpy(np.stack([lengths, starts - ends + lengths]))
    both = both.to(device, non_blocking=True)
    owner = torch.repeat_interleave(both[0], output_size=size)
    source = both[1].index_select(0, owner)
    source += torch.arange(size, device=device)
    return splits, owner, source


def index_and_slots(
    clients: int, owners: list[np.ndarray], ids: list[np.ndarray]
) -> tuple[Index, list[np.ndarray]]:
    """The index sets behind (owner, id) pairs, and each pair's slot: its place inside S(owner).

    Takes several lists of pairs, one per field that reads the table, because fields that share a
    table share index sets.
    """
    # Numbered among the held ids first: owner · rows + id need not fit into 64 bits.
    held, rank = _different(np.concatenate(ids))
    pairs = np.concatenate(owners, dtype=np.int64)
    pairs *= len(held)
    pairs += rank
    del rank  # of millions of pairs, it takes much memory
    unique, inverse = _different(pairs)
    entry_owner, entry_place = np.divmod(unique, max(len(held), 1))
    splits = np.searchsorted(entry_owner, np.arange(clients + 1))
    slots = inverse - splits[entry_owner[inverse]]
    entry_id = held[entry_place]
    index = Index(*(torch.from_numpy(x) for x in (entry_id, splits, entry_place, held)))
    sizes = np.cumsum([len(owner) for owner in owners])[:-1]
    return index, np.split(slots, sizes)


def _different(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The different values, ascending, and the place of each value (n,) among them.

    As np.unique, whose sort takes far longer if the values are not much larger than they are many.
    """
    cells = int(values.max(initial=-1)) + 1
    if not 0 < cells <= 4 * len(values):
        return np.unique(values, return_inverse=True)
    occurs = np.zeros(cells, dtype=bool)
    occurs[values] = True
    position = np.cumsum(occurs) - 1
    return np.flatnonzero(occurs), position[values]
