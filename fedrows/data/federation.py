"""A federation's examples: flat columns, client after client, with index sets and slots.

    column   [ client 0 … | client 1 … | … ]     splits (N+1,)
    ids      feature ids, one column per field: (n,), (n, L), or n lists
    slots    the same, as places inside the client's own S(i): slot + splits[k] addresses a block
    numbers  features that are not ids, (n,) or (n, D)

In a padded table id 0 means "nothing here": it is in no index set, has slot −1 and no heat.

Training, validation and test examples have the same clients in the same order. N counts the
clients with at least one training example. Others keep their validation and test examples, behind
the N, and never train.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedrows.data import frame_sources, frames
from fedrows.data.column_checks import (
    as_labels,
    as_marks,
    as_numbers,
    as_target,
    as_weights,
    check,
    check_ranked,
    number_clients,
)
from fedrows.data.column_layout import Layout
from fedrows.data.encode_rows import EncodedRows, KnownValues, encode
from fedrows.data.encoder import Encoder, encoder_of_rows
from fedrows.data.examples import Examples, check_local, index_of, sort_by_client, untrained_note
from fedrows.data.html_table import shown
from fedrows.data.scaled import Scaled
from fedrows.data.splits import Split, check_apart
from fedrows.data.vocabulary import TableRows
from fedrows.errors import DataError
from fedrows.options import known_keywords
from fedrows.rows.heat import Heat, ceiling, heat_of
from fedrows.rows.index import Index
from fedrows.rows.ragged import Column, Ragged


@dataclass(frozen=True, eq=False)
class FederatedData:
    """Training, validation and test examples of a federation, ready to be trained on."""

    name: str
    tables: Mapping[str, int]  # table → rows
    fields: Mapping[str, str]  # field → the table it reads
    train: Examples
    validation: Examples  # what choices are made on; empty if none were held out for it
    test: Examples
    index: Mapping[str, Index]  # table → S(i) of the N training clients
    slots: Mapping[str, Column]  # field → slots of the training examples, −1 for nothing
    target: tuple[str, int | None] | None  # what an example is about: a field, and a column of it
    padded: frozenset[str] = frozenset()  # tables whose row 0 means "nothing here"
    local: frozenset[str] = frozenset()  # tables whose rows stay on their one client
    groups: Mapping[str, Mapping[str, tuple[int, int]]] = field(default_factory=dict)
    vocabulary: Mapping[str, np.ndarray] = field(default_factory=dict)
    client_names: np.ndarray | None = None
    labels: str = "binary"  # or classes, numbers, ranking
    best_loss: float | None = None
    notes: tuple[str, ...] = ()
    encoder: Encoder | None = None  # how the columns became ids; None: nobody remembers

    def __repr__(self) -> str:
        parts = [(name, len(getattr(self, name))) for name in ("train", "validation", "test")]
        examples = ", ".join(f"{count:,} {name}" for name, count in parts if count)
        tables = ", ".join(f"{table}: {rows:,} rows" for table, rows in self.tables.items())
        return (
            f"FederatedData({self.name}: {self.clients:,} clients, {examples} examples; {tables})"
        )

    def _repr_html_(self) -> str:
        """A small table, for notebooks."""
        return shown(self)

    @property
    def clients(self) -> int:
        """N, the number of clients with training examples."""
        return len(self.train.splits) - 1

    @property
    def clients_without_training_data(self) -> int:
        """How many clients have validation or test examples only."""
        return len(self.test.splits) - 1 - self.clients

    @property
    def sizes(self) -> Tensor:
        """|D_i|, the training examples of each client: (N,), on the CPU."""
        return self.train.splits.diff()

    def weights(self, weighting: str, quantile: float | None = None) -> Tensor:
        """w_i by name: `examples` gives |D_i|, `uniform` gives 1; (N,) float64.

        quantile: of all |D_i|, at which each is capped.
        """
        if weighting == "examples":
            return self.sizes.to(torch.float64).clamp(max=ceiling(self.sizes, quantile))
        return torch.ones(self.clients, dtype=torch.float64)

    def heat(
        self, weighting: str = "uniform", quantile: float | None = None
    ) -> dict[str, Heat]:  # fmt: skip
        """The heat of every table under one choice of weights."""
        weights = self.weights(weighting, quantile)
        return {table: heat_of(index, weights) for table, index in self.index.items()}

    def heat_over_all(self) -> dict[str, Heat]:
        """How many clients hold each row in any of their examples, by table.

        This is how papers describe a data set; training knows the heat of its own examples only.
        """
        clients = len(self.test.splits) - 1
        parts = [self.train, self.validation, self.test]
        index, _ = index_of(self.tables, self.fields, self.padded, clients, parts)
        return {table: heat_of(sets, torch.ones(clients)) for table, sets in index.items()}

    def targets(self, examples: Examples) -> Tensor:
        """The id of what each example is about: (n,)."""
        assert self.target is not None, "these data have no target"
        name, column = self.target
        ids = examples.ids[name]
        assert isinstance(ids, Tensor), "a list is not a target"
        return ids if column is None else ids[:, column].contiguous()

    def encode(self, frame: Any) -> EncodedRows:
        """New rows, encoded as these data were: new clients and unseen values included.

        frame: a pandas or polars frame, or a mapping of columns, with the columns of the features;
        others are ignored. Labels, weights and clients are read where they are there.
        """
        if self.encoder is None:
            raise DataError(f"{self.name} does not say how it was encoded: make the data again.")
        return encode(frame, self.encoder, KnownValues(self.encoder, self.vocabulary))

    def pooled(self) -> FederatedData:
        """The same data in the hands of one client: what centralised training sees."""
        splits = torch.tensor([0, len(self.train)])
        train = replace(self.train, splits=splits)
        index, slots = index_of(self.tables, self.fields, self.padded, 1, [train])
        return replace(self, train=train, index=index, slots=slots)

    def select(self, clients: Tensor | Sequence[int]) -> FederatedData:
        """The same data with some of the N clients only, such as those that one node hosts."""
        chosen = torch.as_tensor(clients, dtype=torch.int64)
        train = self.train.of(chosen)
        index, slots = index_of(self.tables, self.fields, self.padded, len(chosen), [train])
        names = None if self.client_names is None else self.client_names[chosen.numpy()]
        return replace(
            self,
            train=train,
            validation=self.validation.of(chosen),
            test=self.test.of(chosen),
            index=index,
            slots=slots,
            client_names=names,
            best_loss=None,
            notes=(),
        )

    def to(self, device: torch.device, dtype: torch.dtype) -> FederatedData:
        """The same data on another device, labels in the model's dtype."""
        return replace(
            self,
            train=self.train.to(device, dtype),
            validation=self.validation.to(device, dtype),
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
        validation: np.ndarray | None = None,
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
        field; test and validation (n,) say which examples are held out for what, none for both;
        fields maps a field to its table, by default of its own name; numbers are features that are
        no ids, (n,) or (n, D); weight (n,) is what an example counts; labels are binary (0 or 1),
        classes (0, 1, 2, …), numbers, or ranking (all 1: items of the target field, to be ranked
        against fresh negatives). In the tables named in `padded`, and in those that lists read, id
        0 means "nothing here". The rows of the tables named in `local` stay on their client, so
        each must have just one.
        """
        ids = {n: c if isinstance(c, Ragged) else np.asarray(c) for n, c in ids.items()}
        fields = dict(fields or {name: name for name in ids})
        names, owner = number_clients("client", client)
        label, test = as_labels("label", label, labels), as_marks("test", test)
        check(len(owner), ids, label, test, tables, fields)
        if labels == "ranking":
            check_ranked(target, fields, local)
        more = {n: as_numbers(n, c, len(owner)) for n, c in (numbers or {}).items()}
        if weight is not None:
            weight = as_weights("weight", weight, len(owner))
            if not weight.any():
                raise DataError("Every weight is 0, so nothing would be learned: leave weight out.")
        lists = {fields[name] for name, column in ids.items() if isinstance(column, Ragged)}
        padded = frozenset(padded) | lists
        held = test
        if validation is not None:
            validation = as_marks("validation", validation)
            if len(validation) != len(test):
                raise DataError(
                    f"validation marks {len(validation)} examples, but there are {len(test)}."
                )
            check_apart(validation, test, "validation")
            held = test | validation
        trains = np.bincount(owner[~held], minlength=len(names)) > 0
        if not trains.any():
            raise DataError(f"{name} has no training example: hold out fewer of them.")
        order = np.argsort(~trains, kind="stable")  # clients that train come first
        rank = np.empty_like(order)
        rank[order] = np.arange(len(order))
        owner = rank[owner]
        count = int(trains.sum())
        columns = (ids, label, more, weight)
        train = sort_by_client(owner, *columns, ~held, count)
        tested = sort_by_client(owner, *columns, test, len(names))
        chosen_on = (
            tested.none()
            if validation is None
            else sort_by_client(owner, *columns, validation, len(names))
        )
        index, slots = index_of(tables, fields, padded, count, [train])
        shapes = {n: column.shape for n, column in ids.items() if not isinstance(column, Ragged)}
        target = as_target(target, shapes)
        words = about.get("vocabulary") or {}
        encoder = about.pop("encoder", None) or encoder_of_rows(
            ids, fields, tables, padded, local, more, labels, target, words
        )
        unknown = {name: table.unknown for name, table in encoder.tables.items()}
        parts = [train, chosen_on, tested]
        check_local(local, tables, fields, padded, parts, names[order], words, unknown)
        notes = tuple(about.pop("notes", ()))
        if count < len(names):
            notes += (untrained_note(len(names) - count, len(names)),)
        return cls(
            name=name,
            tables=dict(tables),
            fields=fields,
            train=train,
            validation=chosen_on,
            test=tested,
            index=index,
            slots=slots,
            target=target,
            padded=padded,
            local=frozenset(local),
            labels=labels,
            client_names=names[order],
            notes=notes,
            encoder=encoder,
            **about,
        )

    @classmethod
    @known_keywords
    def from_frame(
        cls,
        frame: Any,
        *,
        client: str,
        label: str,
        features: Sequence[str] | Mapping[str, str],
        tables: Mapping[str, TableRows] | None = None,
        numbers: Sequence[str] | Mapping[str, Scaled | None] = (),
        weight: str | None = None,
        max_length: int | Mapping[str, int] | None = None,
        test: float | str | Split = 0.2,
        validation: float | str | Split = 0.0,
        labels: str = "binary",
        local: Collection[str] = (),
        target: tuple[str, int | None] | None = None,
        seed: int = 0,
        name: str = "data",
    ) -> FederatedData:
        """A federation from a frame with a row per example.

        frame: of pandas or polars (lazy ones too), an Arrow table, a data set of Hugging Face, a
        mapping of columns, or the path of a CSV file with a header.
        features: the columns that hold feature ids or lists of them, each with a table of its own
        name, or a mapping from column to table.
        tables: a table's rows: a number, if its columns hold ids 0 … rows−1; a `Vocabulary`, with a
        minimum count and a row for values that training never saw; or `Hashed`. A table that is
        not listed gets a `Vocabulary()`: a row for each value of training, and the unknown row.
        numbers: the columns of features that are no ids, or a mapping from column to how it is
        `Scaled` (None: not). weight: what an example counts.
        max_length: how many entries of a list are kept, the last; for all columns, or by column.
        test: the share held out at random, the column that marks test rows, or a `Split`.
        validation: likewise, from what is left: the examples on which choices are made, such as
        that of a learning rate. None are held out by default; 0.1 is a good share.
        local: tables whose rows stay on their one client.
        """
        columns = Layout(
            client=client,
            label=label,
            features=features,
            tables=tables,
            numbers=numbers,
            weight=weight,
            max_length=max_length,
            test=test,
            validation=validation,
            labels=labels,
            local=local,
            target=target,
            seed=seed,
            name=name,
        )
        return cls.build(**frames.from_frame(frame, columns))

    @classmethod
    def from_hf(
        cls,
        source: Any,
        *,
        label: str,
        features: Sequence[str] | Mapping[str, str],
        client: str | None = None,
        **options: Any,
    ) -> FederatedData:
        """A federation from a data set of Hugging Face, from its splits, or from a partitioner.

        source: a `Dataset`; a `DatasetDict` with the splits train, validation and test, of which
        the last two are held out; or a partitioner of flwr-datasets, each part of which is a
        client. client: the column that names the client, of the first two. Options are those of
        `from_frame`.
        """
        if frame_sources.is_partitioner(source):
            if client is not None:
                raise DataError(
                    f"client is {client!r}, but each part of a partitioner is a client: leave it "
                    "out, or give the data set itself."
                )
            parts = frame_sources.parts_of(source)
            return cls.from_clients(parts, label=label, features=features, **options)
        if client is None:
            raise DataError("Name the column of the clients, as in client='user'.")
        frame, options = frame_sources.joined_splits(source, options)
        return cls.from_frame(frame, client=client, label=label, features=features, **options)

    @classmethod
    def from_clients(
        cls,
        clients: Mapping[Any, Any] | Iterable[tuple[Any, Any]],
        *,
        label: str,
        features: Sequence[str] | Mapping[str, str],
        client: str = "client",
        **options: Any,
    ) -> FederatedData:
        """A federation from one piece per client: a mapping, or (name, piece) pairs.

        A piece is a mapping of columns, a list of examples (mappings), or a data frame. The column
        called `client` is made of the names. Options are those of `from_frame`.
        """
        columns = Layout(client=client, label=label, features=features, **options)
        return cls.build(**frames.from_clients(clients, columns))
