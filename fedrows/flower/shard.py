"""A node's data, as they are and as the server knows them.

Data may change between two messages. Until the server has been told, a client trains on those of
its examples that the rows the server knows of are enough for.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from fedrows.data.batches import LocalData, local_data
from fedrows.data.examples import Examples
from fedrows.data.federation import FederatedData
from fedrows.data.narrow import narrow
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


def matching(data: FederatedData, now: Told, told: Told) -> tuple[LocalData, Tensor]:
    """Examples that the rows the server knows of are enough for, and where the clients are in data.

    Raises `Lost` if a client has gone, or has no such example.
    """
    where = {name: i for i, name in enumerate(now.names)}
    if any(name not in where for name in told.names):
        raise Lost
    position = torch.tensor([where[name] for name in told.names], dtype=torch.int64)
    same = True
    for table, its in now.index.items():
        mine, theirs = its.select(position), told.index[table]
        same &= torch.equal(mine.splits, theirs.splits) and torch.equal(mine.ids, theirs.ids)
    if same:
        return local_data(data, position), position
    left = narrow(data, position, told.index)
    if len(left.clients) < len(position):
        raise Lost
    return left.local, position


def losses(model: Model, local: LocalData, start: Submodels) -> Tensor:
    """Each client's mean loss over its first examples, of the submodel it was sent: (K,)."""
    return torch.stack(
        [_loss(model, local, i, start.slice(i, i + 1)) for i in range(len(local.clients))]
    )


def _loss(model: Model, local: LocalData, client: int, mine: Submodels) -> Tensor:
    """One client's mean loss: its rows are a small model, and its slots the ids of that one."""
    low, size = int(local.starts[client]), int(local.sizes[client])
    some = torch.arange(low, low + min(size, LOSS_EXAMPLES))
    whole = torch.tensor([0, len(local.label)])
    own = Examples(whole, dict(local.slots), local.label, dict(local.numbers)).pick(some)
    first = {table: int(table in local.padded) for table in mine.rows}  # row 0 means nothing there
    shifted = {name: _shifted(x, first[local.fields[name]]) for name, x in own.ids.items()}
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
