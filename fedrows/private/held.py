"""What clients hold back: rows that were not opened, kept by each client for its next upload.

Each client keeps its own; a simulation has them all in flat arrays, an entry per client and row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from fedrows.rows.index import Index
from fedrows.rows.params import Submodels

Entries = tuple[np.ndarray, np.ndarray, np.ndarray]  # client (E,), id (E,), row (E, width)


class HeldBack:
    """Table → entries: explicit state that survives a killed process."""

    def __init__(self, widths: Mapping[str, int]) -> None:
        none = np.empty(0, dtype=np.int64)
        self._held: dict[str, Entries] = {
            table: (none, none, np.empty((0, width))) for table, width in widths.items()
        }

    def __len__(self) -> int:
        """Rows that all clients together hold back."""
        return sum(len(clients) for clients, _, _ in self._held.values())

    def of(self, client: int, table: str) -> tuple[np.ndarray, np.ndarray]:
        """What one client holds back of one table: ids, ascending, and their rows."""
        clients, ids, rows = self._held[table]
        mine = np.flatnonzero(clients == client)
        order = mine[np.argsort(ids[mine])]
        return ids[order], rows[order]

    def put_(self, table: str, clients: np.ndarray, ids: np.ndarray, rows: np.ndarray) -> None:
        """Replaces what clients hold back of some rows; zeros are not kept. (E,), (E,), (E, w)"""
        before, old, values = self._held[table]
        size = int(max(old.max(initial=0), ids.max(initial=0))) + 1
        maybe = np.flatnonzero(np.isin(before, clients))
        gone = maybe[np.isin(before[maybe] * size + old[maybe], clients * size + ids)]
        stays = np.ones(len(before), dtype=bool)
        stays[gone] = False
        some = rows.any(1)
        self._held[table] = (
            np.concatenate([before[stays], clients[some]]),
            np.concatenate([old[stays], ids[some]]),
            np.concatenate([values[stays], rows[some]]),
        )

    def joined(
        self, update: Submodels, cohort: Sequence[int], union: Mapping[str, np.ndarray]
    ) -> Submodels:
        """An update (float64, on the CPU) with what each client holds back of a union added."""
        index, rows = {}, {}
        names, places = np.array(cohort), np.arange(len(cohort))
        order = np.argsort(names)
        for table, its in update.index.items():
            clients, ids, values = self._held[table]
            mine = np.flatnonzero(np.isin(clients, names))
            mine = mine[np.isin(ids[mine], union[table])]
            whose = places[order][np.searchsorted(names[order], clients[mine])]
            owner = np.concatenate([its.owner.numpy(), whose])
            which = np.concatenate([its.ids.numpy(), ids[mine]])
            sums = np.concatenate([update.rows[table].numpy(), values[mine]])
            if len(mine):
                owner, which, sums = _merged(owner, which, sums)
            splits = np.searchsorted(owner, np.arange(len(cohort) + 1))
            index[table] = Index(torch.from_numpy(which), torch.from_numpy(splits))
            rows[table] = torch.from_numpy(sums)
        return Submodels(index, rows, update.dense)

    def tensors(self) -> dict[str, Tensor]:
        """All of it, by name."""
        return {
            f"held/{table}/{name}": torch.from_numpy(part)
            for table, entries in self._held.items()
            for name, part in zip(("client", "id", "rows"), entries, strict=True)
        }

    def restore_(self, tensors: Mapping[str, Tensor]) -> None:
        """Takes back what `tensors` gave."""
        for table in self._held:
            names = [f"held/{table}/{name}" for name in ("client", "id", "rows")]
            clients, ids, rows = (tensors[name].numpy().copy() for name in names)
            self._held[table] = clients, ids, rows


def _merged(
    owner: np.ndarray, ids: np.ndarray, rows: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Entries sorted by owner and id, those of one owner and id added up."""
    order = np.lexsort((ids, owner))
    owner, ids = owner[order], ids[order]
    first = np.r_[True, (np.diff(owner) != 0) | (np.diff(ids) != 0)]
    sums = np.add.reduceat(rows[order], np.flatnonzero(first), axis=0)
    return owner[first], ids[first], sums
