"""What parties hold back: rows that were not opened, kept by each party for its next upload.

A party is whoever takes part in a secure sum: a client in a simulation, a node with its clients in
a deployment. Rows are in the units of the sum, which is times the weight of their client. A
simulation has all parties' rows in flat arrays, an entry per party and row; a node has its own.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from fedrows.privacy.values import Values
from fedrows.rows.index import Index
from fedrows.rows.params import Submodels

Entries = tuple[np.ndarray, np.ndarray, np.ndarray]  # party (E,), id (E,), row (E, width)
NOBODY = -1  # the name of a party that sends nothing


class HeldBack:
    """Table → entries: explicit state that survives a killed process."""

    def __init__(self, widths: Mapping[str, int]) -> None:
        none = np.empty(0, dtype=np.int64)
        self._held: dict[str, Entries] = {
            table: (none, none, np.empty((0, width))) for table, width in widths.items()
        }

    def __len__(self) -> int:
        """Rows that all parties together hold back."""
        return sum(len(parties) for parties, _, _ in self._held.values())

    def of(self, party: int, table: str) -> tuple[np.ndarray, np.ndarray]:
        """What one party holds back of one table: ids, ascending, and their rows."""
        parties, ids, rows = self._held[table]
        own = np.flatnonzero(parties == party)
        order = own[np.argsort(ids[own])]
        return ids[order], rows[order]

    def put_(self, table: str, parties: np.ndarray, ids: np.ndarray, rows: np.ndarray) -> None:
        """Replaces what parties hold back of some rows; zeros are not kept. (E,), (E,), (E, w)"""
        before, old, values = self._held[table]
        size = int(max(old.max(initial=0), ids.max(initial=0))) + 1
        maybe = np.flatnonzero(np.isin(before, parties))
        gone = maybe[np.isin(before[maybe] * size + old[maybe], parties * size + ids)]
        stays = np.ones(len(before), dtype=bool)
        stays[gone] = False
        some = rows.any(1)
        self._held[table] = (
            np.concatenate([before[stays], parties[some]]),
            np.concatenate([old[stays], ids[some]]),
            np.concatenate([values[stays], rows[some]]),
        )

    def joined(
        self,
        update: Submodels,
        party: np.ndarray,
        names: np.ndarray,
        union: Mapping[str, np.ndarray],
        made_of: Mapping[str, Values] | None = None,
    ) -> Submodels:
        """Clients' rows added up by party, with what each party holds back of a union.

        made_of: the values behind rows; a value with a row outside of the union stays held back.
        update: of A clients, float64 on the CPU. party: the place of each client's party (A,).
        names: of the parties (P,), by which rows are held back; `NOBODY` has none.
        """
        index, rows = {}, {}
        order = np.argsort(names)
        alone = bool((np.diff(party) > 0).all())  # no two clients share a party
        for table, sets in update.index.items():
            parties, ids, values = self._held[table]
            own = np.flatnonzero(np.isin(parties, names))
            inside = np.isin(ids[own], union[table])
            if made_of is not None and not inside.all():
                raw, _ = made_of[table].of(ids[own])
                _, value = np.unique(np.stack([parties[own], raw]), axis=1, return_inverse=True)
                inside = ~np.isin(value.reshape(-1), value.reshape(-1)[~inside])
            own = own[inside]
            whose = order[np.searchsorted(names[order], parties[own])]
            owner = np.concatenate([party[sets.owner.numpy()], whose])
            which = np.concatenate([sets.ids.numpy(), ids[own]])
            sums = np.concatenate([update.rows[table].numpy(), values[own]])
            if len(own) or not alone:
                owner, which, sums = _merged(owner, which, sums)
            splits = np.searchsorted(owner, np.arange(len(names) + 1))
            index[table] = Index(torch.from_numpy(which), torch.from_numpy(splits))
            rows[table] = torch.from_numpy(sums)
        return Submodels(index, rows, {})

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
            parties, ids, rows = (tensors[name].numpy().copy() for name in names)
            self._held[table] = parties, ids, rows


def _merged(
    owner: np.ndarray, ids: np.ndarray, rows: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Entries sorted by owner and id, those of one owner and id added up."""
    if not len(ids):
        return owner, ids, rows
    order = np.lexsort((ids, owner))
    owner, ids = owner[order], ids[order]
    first = np.r_[True, (np.diff(owner) != 0) | (np.diff(ids) != 0)]
    sums = np.add.reduceat(rows[order], np.flatnonzero(first), axis=0)
    return owner[first], ids[first], sums
