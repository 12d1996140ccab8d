"""A row of its own for every client: the table that personal parts of a model live in.

The table is local, so its rows stay on their clients. Client i has row i, and every example of its
reads that row through a field of the same name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from fedrows.data.examples import Examples, index_of
from fedrows.data.federation import FederatedData
from fedrows.errors import DataError, ModelError

PERSONAL = "personal"  # the table, and the field that reads it


def with_personal(data: FederatedData) -> FederatedData:
    """The same data with a local table that has one row per client; as they are if they have it."""
    if PERSONAL in data.local:
        return data
    if PERSONAL in data.tables or PERSONAL in data.fields:
        raise DataError(
            f"The data have a table or a field {PERSONAL!r} already, which is the name of the one "
            "for personal parts: rename it."
        )
    clients = max(len(data.train.splits), len(data.test.splits)) - 1
    return _with_rows(data, clients, lambda examples: examples.owner)


def rows_per_client(data: FederatedData) -> int:
    """The rows of the table for personal parts; a ModelError if the data do not have it."""
    if PERSONAL not in data.local:
        raise ModelError(
            "The model has personal parts, but the data have no row for each client: call "
            "fedrows.with_personal(data) first, and use what it returns for the model and the run."
        )
    return data.tables[PERSONAL]


def in_one_row(data: FederatedData) -> FederatedData:
    """The same data for a deployment, where every client has row 0 of a table of its own.

    A node then knows a client by its name alone, whoever else it hosts.
    """
    if PERSONAL not in data.local:
        return data
    return _with_rows(data, 1, lambda examples: torch.zeros_like(examples.owner))


def without_personal(data: FederatedData) -> FederatedData:
    """The same data without that table, for a model that is built before it has personal parts."""
    if PERSONAL not in data.local:
        return data

    def rest(named: Mapping[str, Any]) -> dict[str, Any]:
        return {name: x for name, x in named.items() if name != PERSONAL}

    return replace(
        data,
        **_parts(data, lambda examples: rest(examples.ids)),
        tables=rest(data.tables),
        fields=rest(data.fields),
        index=rest(data.index),
        slots=rest(data.slots),
        local=data.local - {PERSONAL},
    )


def _with_rows(
    data: FederatedData, rows: int, ids_of: Callable[[Examples], Tensor]
) -> FederatedData:
    """The data with a column of ids in all their examples, and what follows from it."""
    parts = _parts(data, lambda examples: {**examples.ids, PERSONAL: ids_of(examples)})
    reads = {PERSONAL: PERSONAL}
    index, slots = index_of([PERSONAL], reads, (), data.clients, [parts["train"]])
    return replace(
        data,
        **parts,
        tables={**data.tables, PERSONAL: rows},
        fields={**data.fields, **reads},
        index={**data.index, **index},
        slots={**data.slots, **slots},
        local=data.local | {PERSONAL},
    )


def _parts(data: FederatedData, ids_of: Callable[[Examples], dict[str, Any]]) -> dict[str, Any]:
    """The training, validation and test examples with other ids, by name."""
    parts = {"train": data.train, "validation": data.validation, "test": data.test}
    return {name: replace(part, ids=ids_of(part)) for name, part in parts.items()}
