"""Examples in flat columns, client after client, and what is worked out from them at load."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedrows.data.vocabulary import value_of
from fedrows.errors import DataError
from fedrows.rows.index import Index, entries, index_and_slots
from fedrows.rows.ragged import Column, Ragged, look_up, pick


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
            {name: pick(column, positions) for name, column in self.ids.items()},
            self.label[positions],
            {name: column[positions] for name, column in self.numbers.items()},
            None if self.weight is None else self.weight[positions],
        )

    def of(self, clients: Tensor) -> Examples:
        """The examples of some clients, in the order given."""
        starts = self.splits[clients].numpy()
        sizes = self.splits[clients + 1].numpy() - starts
        splits, _, positions = entries(starts, sizes, self.label.device)
        return replace(self.pick(positions), splits=splits)

    def none(self) -> Examples:
        """No example, of the same clients and with the same fields."""
        nothing = self.pick(torch.empty(0, dtype=torch.int64, device=self.label.device))
        return replace(nothing, splits=torch.zeros_like(self.splits))

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


def sort_by_client(
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


def index_of(
    tables: Iterable[str],
    fields: Mapping[str, str],
    padded: Collection[str],
    clients: int,
    parts: list[Examples],
) -> tuple[dict[str, Index], dict[str, Column]]:
    """Each table's index sets over all parts, and each field's slots in the first of them."""
    index: dict[str, Index] = {}
    slots: dict[str, Column] = {}
    for table in tables:
        columns = [name for name, read in fields.items() if read == table]
        if not columns:
            raise DataError(f"No field reads table {table!r}: leave it out.")
        flat = [_flat(part, name) for name in columns for part in parts]
        real = [ids != 0 if table in padded else np.ones(len(ids), dtype=bool) for _, ids in flat]
        sets, slots_of = index_and_slots(
            clients,
            [owner[keep] for (owner, _), keep in zip(flat, real, strict=True)],
            [ids[keep] for (_, ids), keep in zip(flat, real, strict=True)],
        )
        device = parts[0].label.device
        index[table] = sets.to(device)
        every = len(parts)
        for name, own, keep in zip(columns, slots_of[::every], real[::every], strict=True):
            values = np.full(len(keep), -1)
            values[keep] = own
            column, flat_slots = parts[0].ids[name], torch.from_numpy(values).to(device)
            slots[name] = (
                replace(column, values=flat_slots)
                if isinstance(column, Ragged)
                else flat_slots.view(column.shape)
            )
    return index, slots


def _flat(part: Examples, name: str) -> tuple[np.ndarray, np.ndarray]:
    """The owner and the id of every entry of a field."""
    column, owner = part.ids[name], part.owner.cpu().numpy()
    if isinstance(column, Ragged):
        return np.repeat(owner, column.sizes.cpu().numpy()), column.values.cpu().numpy()
    return np.repeat(owner, prod(column.shape[1:])), column.reshape(-1).cpu().numpy()


def check_local(
    local: Collection[str],
    tables: Mapping[str, int],
    fields: Mapping[str, str],
    padded: Collection[str],
    parts: list[Examples],
    names: np.ndarray,
    vocabulary: Mapping[str, np.ndarray],
    unknown: Mapping[str, int | None],
) -> None:
    """Raises a DataError if a row of a local table has two holders.

    The row of unknown values is nobody's: test examples of clients that do not train read it as it
    started.
    """
    for table in local:
        if table not in tables:
            raise DataError(
                f"Table {table!r} is to be local, but the tables are {', '.join(tables)}."
            )
        columns = [name for name, read in fields.items() if read == table]
        nobodys = unknown.get(table) if not _reads(parts[0], columns, unknown.get(table)) else None
        index = index_of([table], fields, padded, len(names), parts)[0][table]
        assert index.place is not None
        assert index.held is not None
        holders = torch.bincount(index.place)
        if nobodys is not None:
            holders[index.held == nobodys] = 0
        if (holders > 1).any():
            shared = int(holders.argmax())
            first, second = index.owner[index.place == shared][:2].tolist()
            row = int(index.held[shared])
            raise shared_row(
                table, value_of(vocabulary, table, table in padded, row), names, first, second
            )


def _reads(part: Examples, columns: Iterable[str], row: int | None) -> bool:
    """Whether an example reads a row."""
    return row is not None and any((_flat(part, name)[1] == row).any() for name in columns)


def untrained_note(left: int, clients: int) -> str:
    """What is said about clients whose examples are all held out."""
    return f"{left} of {clients} clients have no training data: left out of N."


def shared_row(
    table: str, value: Any, names: np.ndarray, first: int, second: int
) -> DataError:  # fmt: skip
    """The error of a local table's row that two clients hold."""
    one, other = names[[first, second]].tolist()
    value = value.item() if isinstance(value, np.generic) else value
    return DataError(
        f"Table {table!r} is local, but {value!r} is held by client {one!r} and by client "
        f"{other!r}: a row that stays on its client has one holder."
    )
