"""All shared tables' rows in one line, table after table, so that one protocol serves them all.

table a (5 rows)   places 0 … 4
table b (3 rows)   places 5 … 7
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch

from fedrows.privacy.protocol import ProtocolError
from fedrows.rows.index import Index


@dataclass(frozen=True)
class RowSpace:
    """The rows of some tables, one table after another."""

    sizes: Mapping[str, int]  # table → rows

    @property
    def tables(self) -> tuple[str, ...]:
        """The tables in their order."""
        return tuple(self.sizes)

    @cached_property
    def starts(self) -> dict[str, int]:
        """The place of each table's first row."""
        ends = np.cumsum([0, *self.sizes.values()]).tolist()
        return dict(zip(self.sizes, ends, strict=False))

    @property
    def rows(self) -> int:
        """The rows of all tables together."""
        return sum(self.sizes.values())

    def places(self, index: Mapping[str, Index]) -> np.ndarray:
        """The places of the rows that any client of an index holds, sorted."""
        parts = [np.empty(0, dtype=np.int64)]
        for table, start in self.starts.items():
            ids = index[table].ids.cpu().numpy()
            parts.append(start + (ids if index[table].clients == 1 else np.unique(ids)))
        return np.concatenate(parts)

    def check_union(self, union: np.ndarray, own: np.ndarray) -> None:
        """Raises a ProtocolError unless places are a union that a party with its own was part of.

        A server could else leave out all rows but one party's, so that it alone would train. The
        protocol itself misses a row with odds of at most 10⁻⁶.
        """
        if (np.diff(union, prepend=-1) <= 0).any() or (union >= self.rows).any():
            raise ProtocolError("The union has rows out of order, or that no table has.")
        if not np.isin(own, union).all():
            raise ProtocolError("The union lacks rows that this party has: it takes no part.")

    def by_table(self, places: np.ndarray) -> dict[str, np.ndarray]:
        """Sorted places as ids of each table."""
        cuts = np.searchsorted(places, [*self.starts.values(), self.rows])
        return {
            table: places[cuts[i] : cuts[i + 1]] - start
            for i, (table, start) in enumerate(self.starts.items())
        }

    def index(self, places: Sequence[np.ndarray]) -> dict[str, Index]:
        """The index sets of clients, each with its sorted places."""
        parts = [self.by_table(own) for own in places]
        index = {}
        for table in self.sizes:
            sets = [part[table] for part in parts]
            splits = np.cumsum([0, *(len(ids) for ids in sets)])
            ids = np.concatenate([np.empty(0, dtype=np.int64), *sets])
            index[table] = Index(torch.from_numpy(ids), torch.from_numpy(splits))
        return index
