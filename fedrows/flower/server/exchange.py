"""What one round exchanges: the record that is kept of it, and submodels as they are packed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from fedrows.rows.index import Index
from fedrows.rows.params import Submodels
from fedrows.rows.schema import Schema


@dataclass
class Exchange:
    """What happened in a round, for whoever watches."""

    round: int
    tries: int = 1  # a round with too few answers is tried again
    asked: int = 0
    answered: int = 0
    dropped: dict[str, list[Any]] = field(default_factory=dict)  # why → clients, by name
    refused: dict[str, list[str]] = field(default_factory=dict)  # why → nodes or clients
    messages: int = 0  # sent, one to a node
    bytes_down: int = 0
    bytes_up: int = 0
    rows_spared: int = 0  # not sent, because the node had them
    loss: float | None = None  # of the clients that answered, before they trained
    seconds: dict[str, float] = field(default_factory=dict)
    resident: int | None = None  # bytes of memory that the server has after it


def joined(
    index: Mapping[str, Index],
    taken: list[tuple[dict[str, Submodels], int]],
    name: str,
    schema: Schema,
    dtype: torch.dtype,
) -> Submodels:
    """Single clients' submodels, one after another."""
    own = [found[name].slice(i, i + 1) for found, i in taken]
    rows = {
        table: torch.cat(
            [torch.zeros(0, schema.tables[table].width, dtype=dtype)] + [x.rows[table] for x in own]
        )
        for table in index
    }
    dense = {
        tensor: torch.cat([torch.zeros(0, *shape, dtype=dtype)] + [x.dense[tensor] for x in own])
        for tensor, shape in schema.dense.items()
    }
    return Submodels(index, rows, dense)


def distinct_rows(found: Submodels, positions: list[int]) -> Submodels:
    """The rows of some clients, each once, and what they all get of the dense tensors."""
    which = torch.tensor(positions, dtype=torch.int64)
    index, rows = {}, {}
    for table, its in found.index.items():
        some = replace(its, source=None).select(which)
        assert some.source is not None
        ids, inverse = torch.unique(some.ids, return_inverse=True)
        first = torch.empty_like(ids).scatter_(0, inverse, some.source)
        index[table] = Index(ids, torch.tensor([0, len(ids)]))
        rows[table] = found.rows[table].index_select(0, first)
    return Submodels(index, rows, {name: x[positions[:1]] for name, x in found.dense.items()})
