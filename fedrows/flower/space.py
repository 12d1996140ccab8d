"""All shared tables as one: rows numbered through, so that a protocol needs one vocabulary.

    table a (5 rows)   0 … 4
    table b (3 rows)   5 … 7

Rows are as wide as the widest; what a narrower one lacks is 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from fedrows.rows.index import Index
from fedrows.rows.schema import Schema


@dataclass(frozen=True)
class Space:
    """The rows of some tables, one after another."""

    schema: Schema
    tables: tuple[str, ...]

    @cached_property
    def first(self) -> dict[str, int]:
        """Where each table begins."""
        found, at = {}, 0
        for table in self.tables:
            found[table] = at
            at += self.schema.tables[table].rows
        return found

    @property
    def rows(self) -> int:
        """How many rows there are."""
        return sum(self.schema.tables[table].rows for table in self.tables)

    @property
    def width(self) -> int:
        """How wide a row is."""
        return max(self.schema.tables[table].width for table in self.tables)

    def ids(self, index: Mapping[str, Index]) -> np.ndarray:
        """The rows that any client of an index holds, sorted."""
        parts = [index[table].ids + self.first[table] for table in self.tables]
        found: np.ndarray = torch.unique(torch.cat(parts)).numpy()
        return found

    def split(self, ids: Tensor) -> dict[str, Tensor]:
        """Sorted rows as places in `ids`, by table: a range each."""
        edges = [self.first[table] for table in self.tables] + [self.rows]
        cuts = torch.searchsorted(ids, torch.tensor(edges)).tolist()
        return {
            table: torch.arange(low, high)
            for table, low, high in zip(self.tables, cuts[:-1], cuts[1:], strict=True)
        }

    def index(self, ids: Tensor) -> dict[str, Index]:
        """Sorted rows as the index sets of one client."""
        found = {}
        for table, places in self.split(ids).items():
            own = ids[places] - self.first[table]
            found[table] = Index(own, torch.tensor([0, len(own)]))
        return found
