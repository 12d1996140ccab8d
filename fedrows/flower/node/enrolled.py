"""A node's data, as they are and as the server knows them.

Data may change between two messages. Until the server knows, a client trains on those of
its examples that the rows the server knows of are enough for.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedrows.data.batches import LocalData, local_data
from fedrows.data.federation import FederatedData
from fedrows.data.narrow import narrow
from fedrows.flower.wire.clients import ClientName
from fedrows.rows.index import Index


class StateLost(Exception):
    """The node does not have what the server counts on."""


@dataclass
class EnrolledClients:
    """Clients as the server knows them: in this order, with these rows of the shared tables."""

    names: list[ClientName]
    examples: list[int]
    index: dict[str, Index]

    def select(self, places: list[int]) -> EnrolledClients:
        """Some of the clients."""
        some = torch.tensor(places, dtype=torch.int64)
        return EnrolledClients(
            [self.names[i] for i in places],
            [self.examples[i] for i in places],
            {table: its.select(some) for table, its in self.index.items()},
        )


def current_clients(data: FederatedData) -> EnrolledClients:
    """The clients as they are."""
    names = data.client_names if data.client_names is not None else np.arange(data.clients)
    index = {table: its for table, its in data.index.items() if table not in data.local}
    return EnrolledClients(names[: data.clients].tolist(), data.sizes.tolist(), index)


@dataclass
class EnrolmentChanges:
    """What the server should know: places that left, clients that came or changed."""

    left: list[int]
    moved: EnrolledClients
    after: EnrolledClients  # all clients, in the order that the server will have them in


def changes_since(enrolled: EnrolledClients, current: EnrolledClients) -> EnrolmentChanges | None:
    """What has changed since the clients were enrolled; None if nothing has."""
    where = {name: i for i, name in enumerate(current.names)}
    old = {name: place for place, name in enumerate(enrolled.names)}
    left = [place for name, place in old.items() if name not in where]
    both = [(i, old[name]) for name, i in where.items() if name in old]
    moved = {i for name, i in where.items() if name not in old}
    moved |= {i for i, place in both if current.examples[i] != enrolled.examples[place]}
    if both:
        mine, theirs = (torch.tensor(x) for x in zip(*both, strict=True))
        for table, its in current.index.items():
            moved |= _differing(its, mine, enrolled.index[table], theirs)
    if not left and not moved:
        return None
    kept = [name for name in enrolled.names if name in where]
    order = kept + [current.names[i] for i in sorted(moved) if current.names[i] not in old]
    return EnrolmentChanges(
        left, current.select(sorted(moved)), current.select([where[name] for name in order])
    )


def fit_to_enrolled(
    data: FederatedData, current: EnrolledClients, enrolled: EnrolledClients
) -> tuple[LocalData, Tensor]:
    """Examples that the rows the server knows of are enough for, and where the clients are in data.

    Raises `StateLost` if a client has gone, or has no such example.
    """
    where = {name: i for i, name in enumerate(current.names)}
    if any(name not in where for name in enrolled.names):
        raise StateLost
    position = torch.tensor([where[name] for name in enrolled.names], dtype=torch.int64)
    same = True
    for table, its in current.index.items():
        mine, theirs = its.select(position), enrolled.index[table]
        same &= torch.equal(mine.splits, theirs.splits) and torch.equal(mine.ids, theirs.ids)
    if same:
        return local_data(data, position), position
    left = narrow(data, position, enrolled.index)
    if len(left.clients) < len(position):
        raise StateLost
    return left.local, position


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
