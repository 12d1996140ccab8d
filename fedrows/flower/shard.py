"""A node's data, as they are and as the server knows them.

Data may change between two messages. Until the server has been told, a client trains on those of
its examples that the rows the server knows of are enough for.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from fedrows.data.examples import Examples
from fedrows.data.federation import FederatedData
from fedrows.flower.state import Name
from fedrows.model import Model
from fedrows.rows.index import Index
from fedrows.rows.params import Params, Submodels
from fedrows.rows.ragged import Column, Ragged

LOSS_EXAMPLES = 1_000  # of each client, for the loss that it reports


class Lost(Exception):
    """The node does not have what the server counts on."""


@dataclass
class Told:
    """Clients as the server knows them: in this order, with these rows of the shared tables."""

    names: list[Name]
    examples: list[int]
    index: dict[str, Index]

    def select(self, places: list[int]) -> Told:
        """Some of the clients."""
        some = torch.tensor(places, dtype=torch.int64)
        return Told(
            [self.names[i] for i in places],
            [self.examples[i] for i in places],
            {table: its.select(some) for table, its in self.index.items()},
        )


def present(data: FederatedData) -> Told:
    """The clients as they are."""
    names = data.client_names if data.client_names is not None else np.arange(data.clients)
    index = {table: its for table, its in data.index.items() if table not in data.local}
    return Told(names[: data.clients].tolist(), data.sizes.tolist(), index)


@dataclass
class Changes:
    """What the server should be told: places that left, clients that came or changed."""

    left: list[int]
    moved: Told
    after: Told  # all clients, in the order that the server will have them in


def changes(told: Told, now: Told) -> Changes | None:
    """What has changed since the server was told; None if nothing has."""
    where = {name: i for i, name in enumerate(now.names)}
    old = {name: place for place, name in enumerate(told.names)}
    left = [place for name, place in old.items() if name not in where]
    both = [(i, old[name]) for name, i in where.items() if name in old]
    moved = {i for name, i in where.items() if name not in old}
    moved |= {i for i, place in both if now.examples[i] != told.examples[place]}
    if both:
        mine, theirs = (torch.tensor(x) for x in zip(*both, strict=True))
        for table, its in now.index.items():
            moved |= _differing(its, mine, told.index[table], theirs)
    if not left and not moved:
        return None
    kept = [name for name in told.names if name in where]
    order = kept + [now.names[i] for i in sorted(moved) if now.names[i] not in old]
    return Changes(left, now.select(sorted(moved)), now.select([where[name] for name in order]))


def matching(data: FederatedData, now: Told, told: Told) -> tuple[FederatedData, Tensor]:
    """Data whose slots fit the rows that the server knows of, and where the clients stand in them.

    Raises `Lost` if a client has gone, or has no example that those rows are enough for.
    """
    where = {name: i for i, name in enumerate(now.names)}
    if any(name not in where for name in told.names):
        raise Lost
    position = torch.tensor([where[name] for name in told.names], dtype=torch.int64)
    same = True
    for table, its in now.index.items():
        mine, theirs = its.select(position), told.index[table]
        same &= torch.equal(mine.splits, theirs.splits) and torch.equal(mine.ids, theirs.ids)
    return (data, position) if same else _narrowed(data.select(position), told)


def _narrowed(data: FederatedData, told: Told) -> tuple[FederatedData, Tensor]:
    """The clients' examples that the rows the server knows of are enough for."""
    train = data.train
    good, slots = torch.ones(len(train), dtype=torch.bool), dict[str, Column](data.slots)
    for name, table in data.fields.items():
        if table in data.local:
            continue
        column, its = train.ids[name], told.index[table]
        flat = column.values if isinstance(column, Ragged) else column.reshape(-1)
        each = _example_of(column)
        owner, rows = train.owner[each], data.tables[table]
        keys, wanted = its.ids + its.owner * rows, flat + owner * rows
        at = torch.searchsorted(keys, wanted).clamp_(max=max(len(keys) - 1, 0))
        found = keys[at] == wanted if len(keys) else torch.zeros_like(wanted, dtype=torch.bool)
        nothing = flat == 0 if table in data.padded else torch.zeros_like(found)
        good[each[~(found | nothing)]] = False
        slot = torch.where(found & ~nothing, at - its.splits[owner], -1)
        slots[name] = (
            replace(column, values=slot) if isinstance(column, Ragged) else slot.view(column.shape)
        )
    sizes = torch.zeros(data.clients, dtype=torch.int64).index_add_(0, train.owner, good.long())
    if (sizes == 0).any():
        raise Lost
    keep = good.nonzero().view(-1)
    splits = torch.cat([sizes.new_zeros(1), sizes.cumsum(0)])
    picked = {n: x.pick(keep) if isinstance(x, Ragged) else x[keep] for n, x in slots.items()}
    narrow = replace(train.pick(keep), splits=splits)
    index = {**data.index, **told.index}
    return replace(data, train=narrow, slots=picked, index=index), torch.arange(data.clients)


def losses(model: Model, data: FederatedData, position: Tensor, start: Submodels) -> Tensor:
    """Each client's mean loss over its first examples, of the submodel it was sent: (K,)."""
    return torch.stack(
        [_loss(model, data, client, start.slice(i, i + 1)) for i, client in enumerate(position)]
    )


def _loss(model: Model, data: FederatedData, client: Tensor, mine: Submodels) -> Tensor:
    """One client's mean loss: its rows are a small model, and its slots the ids of that one."""
    low, high = data.train.splits[client], data.train.splits[client + 1]
    some = torch.arange(int(low), min(int(high), int(low) + LOSS_EXAMPLES))
    train = data.train
    own = Examples(train.splits, dict(data.slots), train.label, train.numbers).pick(some)
    first = {table: int(table in data.padded) for table in mine.rows}  # row 0 means nothing there
    shifted = {name: _shifted(x, first[data.fields[name]]) for name, x in own.ids.items()}
    tables = {
        table: torch.cat([rows.new_zeros(first[table], rows.shape[1]), rows])
        for table, rows in mine.rows.items()
    }
    params = Params(tables, {name: x[0] for name, x in mine.dense.items()})
    examples = replace(own, ids=shifted)
    with torch.no_grad():
        model.calibrate(params, examples)
        scores = model.scores(params, examples.fields(torch.arange(len(some))))
        return model.loss(scores, examples.label).mean()


def _shifted(column: Column, by: int) -> Column:
    if isinstance(column, Ragged):
        return replace(column, values=column.values + by)
    return column + by


def _example_of(column: Column) -> Tensor:
    """The example that each entry of a column belongs to."""
    if isinstance(column, Ragged):
        return torch.repeat_interleave(torch.arange(len(column)), column.sizes)
    each = column.numel() // max(len(column), 1)
    return torch.arange(len(column)).repeat_interleave(each)


def _differing(mine: Index, at: Tensor, theirs: Index, there: Tensor) -> set[int]:
    """Which of `at` have another index set than their counterparts."""
    ours, others = mine.select(at), theirs.select(there)
    if torch.equal(ours.splits, others.splits) and torch.equal(ours.ids, others.ids):
        return set()
    return {
        int(i)
        for i, one, other in zip(at, _sets(ours), _sets(others), strict=True)
        if not torch.equal(one, other)
    }


def _sets(index: Index) -> list[Tensor]:
    return list(index.ids.split(index.lengths.tolist()))
