"""Clients in a message: their names, how many examples they have, and their index sets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from fedrows.flower.wire.codings import ids_to_bytes
from fedrows.rows.index import Index
from fedrows.rows.schema import Schema

ClientName = int | str  # what a node calls a client


def describe_clients(
    names: Sequence[ClientName],
    examples: Sequence[int],
    index: Mapping[str, Index],
    schema: Schema,
    prefix: str = "",
) -> tuple[dict[str, Any], dict[str, bytes]]:
    """Some clients as facts and parts of a message: what `Registry` reads."""
    parts = {f"{prefix}examples": ids_to_bytes(torch.tensor(examples, dtype=torch.int64).cumsum(0))}
    for table, sets in index.items():
        rows = schema.tables[table].rows
        parts[f"{prefix}index/{table}"] = ids_to_bytes(sets.ids + sets.owner * rows)
    return {"clients": list(names)}, parts


def no_ids() -> Tensor:
    """An empty list of ids."""
    return torch.empty(0, dtype=torch.int64)
