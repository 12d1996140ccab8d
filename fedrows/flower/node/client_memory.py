"""The memory of single clients between rounds: control variates, error feedback, local rows.

Tensors are stored with the ids of their rows, so what a client remembers survives a change of its
data: rows that are still there keep their values, rows that are new begin with zero.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import torch
from torch import Tensor

from fedrows.flower.node.state import Memory
from fedrows.rows.index import Index
from fedrows.rows.params import Submodels
from fedrows.rows.schema import Schema


def recall(
    name: str,
    memories: Sequence[Mapping[str, Tensor]],
    index: Mapping[str, Index],
    schema: Schema,
    dtype: torch.dtype,
) -> Submodels:
    """What clients have stored under a name, over their present rows; zero where nothing is."""
    rows = {
        table: torch.zeros(len(held.ids), schema.tables[table].width, dtype=dtype)
        for table, held in index.items()
    }
    dense = {
        tensor: torch.zeros(len(memories), *shape, dtype=dtype)
        for tensor, shape in schema.dense.items()
    }
    for i, memory in enumerate(memories):
        for table, held in index.items():
            if f"{name}/{table}" in memory:
                low, high = int(held.splits[i]), int(held.splits[i + 1])
                overlay(rows[table][low:high], held.ids[low:high], f"{name}/{table}", memory)
        for tensor, values in dense.items():
            if f"{name}.{tensor}" in memory:
                values[i] = memory[f"{name}.{tensor}"]
    return Submodels(index, rows, dense)


def store(name: str, submodels: Submodels, memories: Sequence[Memory]) -> None:
    """Adds each client's part of some submodels to what it will remember."""
    for i, memory in enumerate(memories):
        own = submodels.slice(i, i + 1)
        for table, rows in own.rows.items():
            keep(f"{name}/{table}", own.index[table].ids, rows, memory)
        for tensor, x in own.dense.items():
            memory[f"{name}.{tensor}"] = x[0]


def store_local(
    local: Collection[str], start: Submodels, update: Submodels, memories: Sequence[Memory]
) -> None:
    """Adds the rows of local tables after training to what clients will remember."""
    stays = {table: start.rows[table] + update.rows[table] for table in local}
    store("local", Submodels({t: start.index[t] for t in local}, stays, {}), memories)


def with_local_rows(
    memories: Sequence[Memory],
    local: Collection[str],
    start: Submodels,
    update: Submodels,
    who: Sequence[int],
) -> list[Memory]:
    """What clients remember after training; who: the places of those who have trained."""
    trained: list[Memory] = [{} for _ in who]
    store_local(local, start, update, trained)
    after = [dict(memory) for memory in memories]
    for position, memory in zip(who, trained, strict=True):
        after[position] |= memory
    return after


def keep(name: str, ids: Tensor, rows: Tensor, memory: Memory) -> None:
    """Adds rows to what a client will remember."""
    memory[name], memory[f"{name}/ids"] = rows, ids


def overlay(rows: Tensor, ids: Tensor, name: str, memory: Mapping[str, Tensor]) -> None:
    """Puts stored values into the rows that they were stored for."""
    known, order = memory[f"{name}/ids"].sort()  # a client's drawn rows stand behind its own
    values = memory[name][order]
    if not len(known) or not len(ids):
        return
    at = torch.searchsorted(known, ids).clamp_(max=len(known) - 1)
    same = known[at] == ids
    rows[same] = values[at[same]]
