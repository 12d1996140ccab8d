"""A node's data, as they are and as the server knows them.

Data may change between two messages. Until the server knows of it, a client trains on the examples
that need no other rows than those it was enrolled with.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
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

    def select(self, positions: list[int]) -> EnrolledClients:
        """Some of the clients."""
        chosen = torch.tensor(positions, dtype=torch.int64)
        return EnrolledClients(
            [self.names[i] for i in positions],
            [self.examples[i] for i in positions],
            {table: index.select(chosen) for table, index in self.index.items()},
        )


def current_clients(data: FederatedData) -> EnrolledClients:
    """The clients as they are now."""
    names = data.client_names if data.client_names is not None else np.arange(data.clients)
    index = {table: rows for table, rows in data.index.items() if table not in data.local}
    return EnrolledClients(names[: data.clients].tolist(), data.sizes.tolist(), index)


def version_of(index: Mapping[str, Index]) -> str:
    """A digest of index sets: another one if any client's rows are others."""
    hash_ = hashlib.sha256()
    for table, rows in sorted(index.items()):
        for part in (table.encode(), rows.ids.numpy().tobytes(), rows.splits.numpy().tobytes()):
            hash_.update(len(part).to_bytes(8, "little") + part)
    return hash_.hexdigest()


@dataclass
class EnrolmentChanges:
    """How a node's clients differ from those that the server knows."""

    left: list[int]  # positions of clients that are gone
    moved: EnrolledClients  # clients that are new or have other data
    after: EnrolledClients  # all clients, in the order that the server will have them in


def changes_since(enrolled: EnrolledClients, current: EnrolledClients) -> EnrolmentChanges | None:
    """What has changed since enrolment; None if nothing has."""
    now = {name: i for i, name in enumerate(current.names)}
    before = {name: i for i, name in enumerate(enrolled.names)}
    left = [i for name, i in before.items() if name not in now]
    moved = {i for name, i in now.items() if name not in before}
    both = [(i, before[name]) for name, i in now.items() if name in before]
    moved |= {i for i, old in both if current.examples[i] != enrolled.examples[old]}
    if both:
        at_now, at_enrolment = (torch.tensor(positions) for positions in zip(*both, strict=True))
        for table, index in current.index.items():
            moved |= _differing(index, at_now, enrolled.index[table], at_enrolment)
    if not left and not moved:
        return None
    order = [name for name in enrolled.names if name in now]
    order += [current.names[i] for i in sorted(moved) if current.names[i] not in before]
    return EnrolmentChanges(
        left, current.select(sorted(moved)), current.select([now[name] for name in order])
    )


def fit_to_enrolled(
    data: FederatedData, current: EnrolledClients, enrolled: EnrolledClients
) -> tuple[LocalData, Tensor]:
    """The examples that need no row but those the server knows of, and the clients' positions.

    Raises `StateLost` if a client has gone, or has no such example.
    """
    now = {name: i for i, name in enumerate(current.names)}
    if any(name not in now for name in enrolled.names):
        raise StateLost
    position = torch.tensor([now[name] for name in enrolled.names], dtype=torch.int64)
    if all(
        _equal(index.select(position), enrolled.index[table])
        for table, index in current.index.items()
    ):
        return local_data(data, position), position
    narrowed = narrow(data, position, enrolled.index)
    if len(narrowed.clients) < len(position):
        raise StateLost
    return narrowed.local, position


def _equal(one: Index, other: Index) -> bool:
    return torch.equal(one.splits, other.splits) and torch.equal(one.ids, other.ids)


def _differing(current: Index, at_now: Tensor, enrolled: Index, at_enrolment: Tensor) -> set[int]:
    """Which clients, at these positions now and at enrolment, have another index set."""
    new, old = current.select(at_now), enrolled.select(at_enrolment)
    if _equal(new, old):
        return set()
    pairs = zip(at_now.tolist(), _sets(new), _sets(old), strict=True)
    return {i for i, ids, known in pairs if not torch.equal(ids, known)}


def _sets(index: Index) -> list[Tensor]:
    return list(index.ids.split(index.lengths.tolist()))
