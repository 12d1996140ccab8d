"""A federation's examples: flat columns, client after client, with index sets and slots.

    column   [ client 0 … | client 1 … | … ]     splits (N+1,)
    ids      feature ids, one column per field: (n,), (n, L), or n lists
    slots    the same, as places inside the client's own S(i): slot + splits[k] addresses a block
    numbers  features that are not ids, (n,) or (n, D)

In a padded table id 0 means "nothing here": it is in no index set, has slot −1 and no heat.

N counts the clients with at least one training example. Others keep their test examples, behind
the N, and never train.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedrows.columns import (
    as_labels,
    as_marks,
    as_numbers,
    as_weights,
    check,
    check_target,
    number_clients,
    number_ids,
)
from fedrows.errors import DataError
from fedrows.heat import Heat, heat_of
from fedrows.index import Index, index_and_slots
from fedrows.ragged import Column, Ragged, look_up
from fedrows.seeds import SPLIT, choose


@dataclass(frozen=True, eq=False)
class Examples:
    """Examples of many clients: client i has the rows splits[i] … splits[i+1]−1."""

    splits: Tensor  # (clients+1,), on the CPU
    ids: dict[str, Column]  # field → (n,), (n, L) or n lists
    label: Tensor  # (n,), float, or int64 for classes
    numbers: dict[str, Tensor] = field(default_factory=dict)  # field → (n,) or (n, D)
    weight: Tensor | None = None  # (n,), what an example counts in its client's mean; None: 1

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
            {
                name: column.pick(positions) if isinstance(column, Ragged) else column[positions]
                for name, column in self.ids.items()
            },
            self.label[positions],
            {name: column[positions] for name, column in self.numbers.items()},
            None if self.weight is None else self.weight[positions],
        )

    def fields(self, positions: Tensor) -> dict[str, Tensor]:
        """What a model is given for some examples (m,): ids, lists filled up with 0, numbers."""
        ids = {name: look_up(column, positions) for name, column in self.ids.items()}
        return ids | {name: column[positions] for name, column in self.numbers.items()}

    def to(self, device: torch.device, dtype: torch.dtype) -> Examples:
        """The same examples on another device, what is no id in the model's dtype."""
        return Examples(
            self.splits,
            {name: column.to(device) for name, column in self.ids.items()},
            self.label.to(device, dtype if self.label.is_floating_point() else None),
            {name: column.to(device, dtype) for name, column in self.numbers.items()},
            None if self.weight is None else self.weight.to(device, dtype),
        )


@dataclass(frozen=True, eq=False)
class FederatedData:
    """Training and test examples of a federation, ready to be trained on."""

    name: str
    tables: Mapping[str, int]  # table → rows
    fields: Mapping[str, str]  # field → the table it reads
    train: Examples
    test: Examples
    index: Mapping[str, Index]  # table → S(i) of the N training clients
    slots: Mapping[str, Column]  # field → slots of the training examples, −1 for nothing
    target: tuple[str, int | None] | None  # what an example is about: a field, and a column of it
    padded: frozenset[str] = frozenset()  # tables whose row 0 means "nothing here"
    local: frozenset[str] = frozenset()  # tables whose rows stay on the one client that holds them
    groups: Mapping[str, Mapping[str, tuple[int, int]]] = field(default_factory=dict)
    vocabulary: Mapping[str, np.ndarray] = field(default_factory=dict)
    client_names: np.ndarray | None = None
    labels: str = "binary"  # or classes, or numbers
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
        index, _ = _index(self.tables, self.fields, self.padded, clients, [self.train, self.test])
        return {table: heat_of(its, torch.ones(clients)) for table, its in index.items()}

    def targets(self, examples: Examples) -> Tensor:
        """The id of what each example is about: (n,)."""
        assert self.target is not None, "these data have no target"
        name, column = self.target
        ids = examples.ids[name]
        assert isinstance(ids, Tensor), "a list is not a target"
        return ids if column is None else ids[:, column].contiguous()

    def pooled(self) -> FederatedData:
        """The same data in the hands of one client: what centralised training sees."""
        splits = torch.tensor([0, len(self.train)])
        train = replace(self.train, splits=splits)
        index, slots = _index(self.tables, self.fields, self.padded, 1, [train])
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
        ids: Mapping[str, np.ndarray | Ragged],
        label: np.ndarray,
        test: np.ndarray,
        tables: Mapping[str, int],
        fields: Mapping[str, str] | None = None,
        numbers: Mapping[str, np.ndarray] | None = None,
        weight: np.ndarray | None = None,
        labels: str = "binary",
        padded: Collection[str] = (),
        local: Collection[str] = (),
        name: str = "data",
        target: tuple[str, int | None] | None = None,
        **about: Any,
    ) -> FederatedData:
        """Sorts columns by client, checks them, and works out index sets and slots.

        client (n,) is anything sortable; ids are (n,) or (n, L) integers or lists (`ragged`) per
        field; test (n,) says which examples are held out; fields maps a field to its table, by
        default of its own name; numbers are features that are no ids, (n,) or (n, D); weight (n,)
        is what an example counts; labels are binary (0 or 1), classes (0, 1, 2, …) or numbers. In
        the tables named in `padded`, and in those that lists read, id 0 means "nothing here". The
        rows of the tables named in `local` never leave the one client that holds each of them.
        """
        ids = {n: c if isinstance(c, Ragged) else np.asarray(c) for n, c in ids.items()}
        fields = dict(fields or {name: name for name in ids})
        names, owner = number_clients("client", client)
        label, test = as_labels("label", label, labels), as_marks("test", test)
        check(len(owner), ids, label, test, tables, fields)
        more = {n: as_numbers(n, c, len(owner)) for n, c in (numbers or {}).items()}
        if weight is not None:
            weight = as_weights("weight", weight, len(owner))
        lists = {fields[name] for name, column in ids.items() if isinstance(column, Ragged)}
        padded = frozenset(padded) | lists
        trains = np.bincount(owner[~test], minlength=len(names)) > 0
        if not trains.any():
            raise DataError(f"{name} has no training example: hold out fewer of them.")
        order = np.argsort(~trains, kind="stable")  # clients that train come first
        rank = np.empty_like(order)
        rank[order] = np.arange(len(order))
        owner = rank[owner]
        count = int(trains.sum())
        columns = (ids, label, more, weight)
        train = _examples(owner, *columns, ~test, count)
        held_out = _examples(owner, *columns, test, len(names))
        index, slots = _index(tables, fields, padded, count, [train])
        for table in local:
            _check_local(table, index, names[order])
        notes = tuple(about.pop("notes", ()))
        if count < len(names):
            left = len(names) - count
            notes += (f"{left} of {len(names)} clients have no training data: left out of N.",)
        arrays = {n: column for n, column in ids.items() if not isinstance(column, Ragged)}
        if target is None and arrays:
            first = next(iter(arrays))
            target = (first, None if arrays[first].ndim == 1 else 0)
        if target is not None:
            check_target(target, arrays)
        return cls(
            name=name,
            tables=dict(tables),
            fields=fields,
            train=train,
            test=held_out,
            index=index,
            slots=slots,
            target=target,
            padded=padded,
            local=frozenset(local),
            labels=labels,
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
        labels: str = "binary",
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
            label=as_labels(label, frame[label].to_numpy(), labels),
            labels=labels,
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
    ids: Mapping[str, np.ndarray | Ragged],
    label: np.ndarray,
    numbers: Mapping[str, np.ndarray],
    weight: np.ndarray | None,
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
        {
            name: column.pick(torch.from_numpy(rows))
            if isinstance(column, Ragged)
            else torch.from_numpy(column[rows].astype(np.int64))
            for name, column in ids.items()
        },
        torch.from_numpy(label[rows]),
        {name: torch.from_numpy(column[rows]) for name, column in numbers.items()},
        None if weight is None else torch.from_numpy(weight[rows]),
    )


def _index(
    tables: Mapping[str, int],
    fields: Mapping[str, str],
    padded: Collection[str],
    clients: int,
    parts: list[Examples],
) -> tuple[dict[str, Index], dict[str, Column]]:
    """Each table's index sets over all parts, and each field's slots in the first of them."""
    index: dict[str, Index] = {}
    slots: dict[str, Column] = {}
    for table in tables:
        mine = [name for name, its in fields.items() if its == table]
        if not mine:
            raise DataError(f"No field reads table {table!r}: leave it out.")
        flat = [_flat(part, name) for name in mine for part in parts]
        real = [ids != 0 if table in padded else np.ones(len(ids), dtype=bool) for _, ids in flat]
        whole, found = index_and_slots(
            clients,
            [owner[keep] for (owner, _), keep in zip(flat, real, strict=True)],
            [ids[keep] for (_, ids), keep in zip(flat, real, strict=True)],
        )
        device = parts[0].label.device
        index[table] = whole.to(device)
        for name, its, keep in zip(mine, found[:: len(parts)], real[:: len(parts)], strict=True):
            values = np.full(len(keep), -1)
            values[keep] = its
            column, places = parts[0].ids[name], torch.from_numpy(values).to(device)
            slots[name] = (
                replace(column, values=places)
                if isinstance(column, Ragged)
                else places.view(column.shape)
            )
    return index, slots


def _check_local(table: str, index: Mapping[str, Index], names: np.ndarray) -> None:
    """Raises a DataError unless every row of a table has one holder."""
    if table not in index:
        raise DataError(f"local names {table!r}, but the tables are {', '.join(index)}.")
    ids, owner = index[table].ids.cpu(), index[table].owner.cpu()
    row, order = torch.sort(ids, stable=True)
    twice = (row.diff() == 0).nonzero()
    if len(twice):
        at = int(twice[0])
        first, second = names[owner[order[at : at + 2]].numpy()].tolist()
        raise DataError(
            f"Row {int(row[at])} of table {table!r} is held by clients {first!r} and {second!r}: "
            "a local table has rows of one client each."
        )


def _flat(part: Examples, name: str) -> tuple[np.ndarray, np.ndarray]:
    """The owner and the id of every entry of a field."""
    column, owner = part.ids[name], part.owner.cpu().numpy()
    if isinstance(column, Ragged):
        return np.repeat(owner, column.sizes.cpu().numpy()), column.values.cpu().numpy()
    ids = column.reshape(len(part), -1).cpu().numpy()  # (n, L)
    return np.repeat(owner, ids.shape[1]), ids.ravel()
