"""A federation's examples: flat columns, client after client, with index sets and slots.

    column   [ client 0 … | client 1 … | … ]     splits (N+1,)
    ids      feature ids, one column per field, (n,) or (n, L)
    slots    the same, as places inside the client's own S(i): slot + splits[k] addresses a block

N counts the clients with at least one training example. Others keep their test examples, behind
the N, and never train.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedrows.columns import (
    as_labels,
    as_marks,
    check,
    check_target,
    number_clients,
    number_ids,
)
from fedrows.errors import DataError
from fedrows.heat import Heat, heat_of
from fedrows.index import Index, index_and_slots
from fedrows.seeds import SPLIT, choose


@dataclass(frozen=True, eq=False)
class Examples:
    """Examples of many clients: client i has the rows splits[i] … splits[i+1]−1."""

    splits: Tensor  # (clients+1,), on the CPU
    ids: dict[str, Tensor]  # field → (n,) or (n, L)
    label: Tensor  # (n,)

    def __len__(self) -> int:
        return len(self.label)

    @property
    def owner(self) -> Tensor:
        """Which client each example belongs to: (n,)."""
        sizes = self.splits.diff()
        return torch.repeat_interleave(torch.arange(len(sizes)), sizes).to(self.label.device)

    def pick(self, positions: Tensor) -> Examples:
        """Some of the examples, as if they belonged to one client."""
        return Examples(
            torch.tensor([0, len(positions)]),
            {name: column[positions] for name, column in self.ids.items()},
            self.label[positions],
        )

    def to(self, device: torch.device, dtype: torch.dtype) -> Examples:
        """The same examples on another device, labels in the model's dtype."""
        ids = {name: column.to(device) for name, column in self.ids.items()}
        return Examples(self.splits, ids, self.label.to(device, dtype))


@dataclass(frozen=True, eq=False)
class FederatedData:
    """Training and test examples of a federation, ready to be trained on."""

    name: str
    tables: Mapping[str, int]  # table → rows
    fields: Mapping[str, str]  # field → the table it reads
    train: Examples
    test: Examples
    index: Mapping[str, Index]  # table → S(i) of the N training clients
    slots: Mapping[str, Tensor]  # field → slots of the training examples
    target: tuple[str, int | None]  # what an example is about: a field, and a column if it has L
    groups: Mapping[str, Mapping[str, tuple[int, int]]] = field(default_factory=dict)
    vocabulary: Mapping[str, np.ndarray] = field(default_factory=dict)
    client_names: np.ndarray | None = None
    best_loss: float | None = None
    notes: tuple[str, ...] = ()

    @property
    def clients(self) -> int:
        """N, the number of clients with training examples."""
        return len(self.train.splits) - 1

    @property
    def clients_without_training_data(self) -> int:
        """How many clients have test examples only."""
        return len(self.test.splits) - 1 - self.clients

    @property
    def sizes(self) -> Tensor:
        """|D_i|, the training examples of each client: (N,), on the CPU."""
        return self.train.splits.diff()

    def weights(self, weighting: str) -> Tensor:
        """w_i by name: `examples` gives |D_i|, `uniform` gives 1; (N,) float64."""
        if weighting == "examples":
            return self.sizes.to(torch.float64)
        return torch.ones(self.clients, dtype=torch.float64)

    def heat(self, weighting: str = "uniform") -> dict[str, Heat]:
        """The heat of every table under one choice of weights."""
        weights = self.weights(weighting)
        return {table: heat_of(index, weights) for table, index in self.index.items()}

    def heat_over_all(self) -> dict[str, Heat]:
        """How many clients hold each row in training and test examples together, by table.

        This is how papers describe a data set; training knows the heat of its own examples only.
        """
        clients = len(self.test.splits) - 1
        index, _ = _index(self.tables, self.fields, clients, [self.train, self.test])
        return {table: heat_of(its, torch.ones(clients)) for table, its in index.items()}

    def targets(self, examples: Examples) -> Tensor:
        """The id of what each example is about: (n,)."""
        name, column = self.target
        ids = examples.ids[name]
        return ids if column is None else ids[:, column].contiguous()

    def pooled(self) -> FederatedData:
        """The same data in the hands of one client: what centralised training sees."""
        splits = torch.tensor([0, len(self.train)])
        train = Examples(splits, self.train.ids, self.train.label)
        index, slots = _index(self.tables, self.fields, 1, [train])
        return replace(self, train=train, index=index, slots=slots)

    def to(self, device: torch.device, dtype: torch.dtype) -> FederatedData:
        """The same data on another device, labels in the model's dtype."""
        return replace(
            self,
            train=self.train.to(device, dtype),
            test=self.test.to(device, dtype),
            index={table: index.to(device) for table, index in self.index.items()},
            slots={name: column.to(device) for name, column in self.slots.items()},
        )

    @classmethod
    def build(
        cls,
        *,
        client: np.ndarray,
        ids: Mapping[str, np.ndarray],
        label: np.ndarray,
        test: np.ndarray,
        tables: Mapping[str, int],
        fields: Mapping[str, str] | None = None,
        name: str = "data",
        target: tuple[str, int | None] | None = None,
        **about: Any,
    ) -> FederatedData:
        """Sorts columns by client, checks them, and works out index sets and slots.

        client (n,) is anything sortable; ids are (n,) or (n, L) integers per field; test (n,) says
        which examples are held out; fields maps a field to its table, by default of its own name.
        """
        ids = {name: np.asarray(column) for name, column in ids.items()}
        fields = dict(fields or {name: name for name in ids})
        names, owner = number_clients("client", client)
        label, test = as_labels("label", label), as_marks("test", test)
        check(len(owner), ids, label, test, tables, fields)
        trains = np.bincount(owner[~test], minlength=len(names)) > 0
        if not trains.any():
            raise DataError(f"{name} has no training example: hold out fewer of them.")
        order = np.argsort(~trains, kind="stable")  # clients that train come first
        rank = np.empty_like(order)
        rank[order] = np.arange(len(order))
        owner = rank[owner]
        count = int(trains.sum())
        train = _examples(owner, ids, label, ~test, count)
        held_out = _examples(owner, ids, label, test, len(names))
        index, slots = _index(tables, fields, count, [train])
        notes = tuple(about.pop("notes", ()))
        if count < len(names):
            left = len(names) - count
            notes += (f"{left} of {len(names)} clients have no training data: left out of N.",)
        if target is None:
            first = next(iter(ids))
            target = (first, None if ids[first].ndim == 1 else 0)
        check_target(target, ids)
        return cls(
            name=name,
            tables=dict(tables),
            fields=fields,
            train=train,
            test=held_out,
            index=index,
            slots=slots,
            target=target,
            client_names=names[order],
            notes=notes,
            **about,
        )

    @classmethod
    def from_frame(
        cls,
        frame: Any,
        *,
        client: str,
        label: str,
        features: list[str] | Mapping[str, str],
        tables: Mapping[str, int] | None = None,
        test: float | str = 0.2,
        seed: int = 0,
        name: str = "data",
    ) -> FederatedData:
        """A federation from a pandas or polars data frame with a row per example.

        features: the columns that hold feature ids, each with a table of its own name, or a
        mapping from column to table. A table listed in `tables` has that many rows and its columns
        hold ids 0 … rows−1; any other gets a vocabulary of the values that occur.
        test: the share held out at random, or the column that marks test rows.
        """
        if isinstance(features, str) or not features:
            raise DataError(
                f"features is {features!r}, but must list columns, or map columns to tables."
            )
        fields = dict(features) if isinstance(features, Mapping) else {f: f for f in features}
        held = [test] if isinstance(test, str) else []
        for column in [client, label, *fields, *held]:
            if column not in frame.columns:
                known = ", ".join(map(str, frame.columns))
                raise DataError(f"The frame has no column {column!r}; it has {known}.")
        columns = {c: frame[c].to_numpy() for c in fields}
        ids, sizes, vocabulary = number_ids(columns, fields, dict(tables or {}))
        if isinstance(test, str):
            marked = as_marks(test, frame[test].to_numpy())
        else:
            marked = split_at_random(len(frame), test, seed)
        names, owner = number_clients(client, frame[client].to_numpy())
        return cls.build(
            client=names[owner],
            ids=ids,
            label=as_labels(label, frame[label].to_numpy()),
            test=marked,
            tables=sizes,
            fields=fields,
            name=name,
            vocabulary=vocabulary,
        )


def split_at_random(count: int, share: float, seed: int) -> np.ndarray:
    """Marks round(share · count) of the examples, at random, as test examples: (count,) bool."""
    if not isinstance(share, int | float) or not 0 <= share < 1:
        raise DataError(f"test is {share!r}, but must be a share from 0 up to, not including, 1.")
    marked = np.zeros(count, dtype=bool)
    marked[choose(seed, SPLIT, 0, count, round(share * count)).numpy()] = True
    return marked


def _examples(
    owner: np.ndarray,
    ids: Mapping[str, np.ndarray],
    label: np.ndarray,
    chosen: np.ndarray,
    clients: int,
) -> Examples:
    """The chosen examples, sorted by client and otherwise in their order."""
    rows = np.flatnonzero(chosen)
    rows = rows[np.argsort(owner[rows], kind="stable")]
    sizes = np.bincount(owner[rows], minlength=clients)
    splits = torch.from_numpy(np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64))
    return Examples(
        splits,
        {name: torch.from_numpy(column[rows].astype(np.int64)) for name, column in ids.items()},
        torch.from_numpy(label[rows]),
    )


def _index(
    tables: Mapping[str, int], fields: Mapping[str, str], clients: int, parts: list[Examples]
) -> tuple[dict[str, Index], dict[str, Tensor]]:
    """Each table's index sets over all parts, and each field's slots, part after part."""
    index: dict[str, Index] = {}
    slots: dict[str, Tensor] = {}
    owner = torch.cat([part.owner for part in parts]).cpu().numpy()
    device = parts[0].label.device
    for table in tables:
        mine = [name for name, its in fields.items() if its == table]
        if not mine:
            raise DataError(f"No field reads table {table!r}: leave it out.")
        columns = {n: torch.cat([part.ids[n] for part in parts]).cpu().numpy() for n in mine}
        owners = [np.repeat(owner, column[0].size) for column in columns.values()]
        flat = [column.ravel() for column in columns.values()]
        whole, found = index_and_slots(clients, owners, flat)
        index[table] = whole.to(device)
        for (name, column), its_slots in zip(columns.items(), found, strict=True):
            slots[name] = torch.from_numpy(its_slots.reshape(column.shape)).to(device)
    return index, slots
