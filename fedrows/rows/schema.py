"""The shape of a model: a few tables, whose rows are addressed by feature id, and dense tensors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod


@dataclass(frozen=True)
class Table:
    """One embedding table: as many rows as there are features, each `width` numbers wide."""

    rows: int
    width: int


@dataclass(frozen=True)
class Schema:
    """Which tables a model has, and the shapes of its dense tensors, both by name."""

    tables: Mapping[str, Table]
    dense: Mapping[str, tuple[int, ...]]

    @property
    def dense_size(self) -> int:
        """How many numbers the dense tensors hold together."""
        return sum(prod(shape) for shape in self.dense.values())

    @property
    def size(self) -> int:
        """How many numbers the whole model holds."""
        return self.dense_size + sum(table.rows * table.width for table in self.tables.values())
