"""Updates that are under way: trained already, and not yet come in.

Rows lie one client after another in buffers that are filled from the front and packed when they are
full, so that adding and taking costs what is added and taken. A client has at most one update here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedrows.client import Upload
from fedrows.rows.index import Index, entries
from fedrows.rows.params import Submodels, index_select


@dataclass
class Arrival:
    """Updates that come in together."""

    upload: Upload
    began: Tensor  # (K,), the step that each client began before
    moves: dict[str, Tensor]  # how often each row had been moved when it was read, by table (R,)


class _Rows:
    """The rows of one table: columns of equal length, and where each slot's part lies."""

    def __init__(self, slots: int) -> None:
        self.columns: dict[str, Tensor] = {}
        self.starts = np.zeros(slots, dtype=np.int64)
        self.lengths = np.zeros(slots, dtype=np.int64)
        self.end = 0

    def add(self, slots: np.ndarray, splits: np.ndarray, columns: Mapping[str, Tensor]) -> None:
        """Puts parts, cut by `splits`, into free slots."""
        count = int(splits[-1])
        if not self.columns:
            self.columns = {name: _room(x, 2 * count + 64) for name, x in columns.items()}
        if self.end + count > len(next(iter(self.columns.values()))):
            self._pack(count)
        for name, x in columns.items():
            self.columns[name].narrow(0, self.end, count).copy_(x)
        self.starts[slots], self.lengths[slots] = self.end + splits[:-1], splits[1:] - splits[:-1]
        self.end += count

    def take(self, slots: np.ndarray) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        """The parts of some slots: splits (K+1,), owner (R,), and every column."""
        columns = self.columns
        device = next(iter(columns.values())).device
        splits, owner, source = entries(self.starts[slots], self.lengths[slots], device)
        return splits, owner, {name: _pick(x, source) for name, x in columns.items()}

    def free(self, slots: np.ndarray) -> None:
        """Empties slots."""
        self.lengths[slots] = 0

    def _pack(self, count: int) -> None:
        """Moves what is there to the front, into buffers with room for at least `count` more."""
        used = np.flatnonzero(self.lengths)
        splits, _, columns = self.take(used)
        size = int(splits[-1])
        for name, x in columns.items():
            self.columns[name] = _room(x, max(2 * (size + count), 64))
            self.columns[name][:size] = x
        self.starts[used], self.end = splits[:-1].numpy(), size


class PendingUpdates:
    """At most so many updates, of so many clients."""

    def __init__(self, most: int, clients: int) -> None:
        self._most = most
        self._empty_(clients)

    def _empty_(self, clients: int) -> None:
        most = self._most
        self._slot = np.full(clients, -1, dtype=np.int32)  # of each client; -1: it has none here
        self._free = np.arange(most - 1, -1, -1)  # slots, of which the first `_left` are free
        self._left = most
        self._began = np.zeros(most, dtype=np.int64)
        self._steps = torch.zeros(most, dtype=torch.float64)
        self._rows: dict[str, _Rows] = {}
        self._dense: dict[str, Tensor] = {}
        self._held: dict[str, Tensor | None] = {}

    def __len__(self) -> int:
        return self._most - self._left

    @property
    def clients(self) -> np.ndarray:
        """Whose updates are here, ascending."""
        return np.flatnonzero(self._slot >= 0)

    def add(self, upload: Upload, began: Tensor, moves: Mapping[str, Tensor]) -> None:
        """Keeps updates until they come in."""
        left = self._left - len(upload.clients)
        slots = self._free[left : self._left].copy()
        self._slot[upload.clients.numpy()], self._left = slots, left
        where = torch.from_numpy(slots)
        self._began[slots] = began.numpy()
        self._steps.index_copy_(0, where, upload.steps.double())
        for name, x in upload.update.dense.items():
            if name not in self._dense:
                self._dense[name] = _room(x, self._most)
            self._dense[name].index_copy_(0, where.to(x.device), x)
        for table, rows in upload.update.rows.items():
            index = upload.update.index[table]
            held = index.held if index.place is not None else None
            if table not in self._rows:
                self._rows[table], self._held[table] = _Rows(self._most), held
            columns = {"rows": rows}
            if self._held[table] is None:
                columns["ids"] = index.ids
            else:  # so that heat is read by one gather
                assert index.place is not None, "all cohorts select from one index"
                columns["place"] = index.place
            if table in moves:
                columns["moves"] = moves[table]
            if upload.occurred is not None and table in upload.occurred:
                columns["occurred"] = upload.occurred[table]
            self._rows[table].add(slots, index.splits.numpy(), columns)

    def take(self, clients: np.ndarray) -> Arrival:
        """The updates of some clients, in this order; they stay here until they are released."""
        slots = self._slot[clients].astype(np.int64)
        where = torch.from_numpy(slots)
        index, rows, moves, marks = {}, {}, {}, {}
        for table, kept in self._rows.items():
            splits, owner, columns = kept.take(slots)
            rows[table], held, position = columns["rows"], self._held[table], columns.get("place")
            if held is None or position is None:
                index[table] = Index(columns["ids"], splits, known_owner=owner)
            else:
                ids = held.index_select(0, position)
                index[table] = Index(ids, splits, position, held, known_owner=owner)
            if "moves" in columns:
                moves[table] = columns["moves"]
            if "occurred" in columns:
                marks[table] = columns["occurred"]
        dense = {name: x.index_select(0, where.to(x.device)) for name, x in self._dense.items()}
        who = torch.from_numpy(clients)
        update = Submodels(index, rows, dense)
        steps = self._steps.index_select(0, where)
        upload = Upload(who, update, steps, {}, None, occurred=marks or None)
        return Arrival(upload, torch.from_numpy(self._began[slots]), moves)

    def release(self, clients: np.ndarray) -> None:
        """Forgets the updates of some clients."""
        slots, left = self._slot[clients], self._left + len(clients)
        self._free[self._left : left], self._left = slots[::-1], left
        self._slot[clients] = -1
        for kept in self._rows.values():
            kept.free(slots)

    def tensors(self) -> dict[str, Tensor]:
        """Everything in it, by name."""
        if not len(self):
            return {}
        all_ = self.take(self.clients)
        upload = all_.upload
        tensors = {"clients": upload.clients, "steps": upload.steps, "began": all_.began}
        tensors |= {f"dense/{name}": x for name, x in upload.update.dense.items()}
        tensors |= {f"moves/{table}": x for table, x in all_.moves.items()}
        tensors |= {f"occurred/{table}": x for table, x in (upload.occurred or {}).items()}
        for table, rows in upload.update.rows.items():
            index = upload.update.index[table]
            tensors |= {f"rows/{table}": rows, f"ids/{table}": index.ids}
            tensors |= {f"splits/{table}": index.splits}
        return tensors

    def restore_(
        self, tensors: Mapping[str, Tensor], whole: Mapping[str, Index], device: torch.device
    ) -> None:
        """Takes in what `tensors` gave, in place of what is here; whole: the federation's index."""
        self._empty_(len(self._slot))
        if "clients" not in tensors:
            return

        def part(kind: str, to: Callable[[Tensor], Tensor]) -> dict[str, Tensor]:
            head = f"{kind}/"
            return {x[len(head) :]: to(y) for x, y in tensors.items() if x.startswith(head)}

        def there(x: Tensor) -> Tensor:
            return x.to(device)

        ids, splits = part("ids", there), part("splits", Tensor.cpu)
        index = {table: _placed(x, splits[table], whole[table]) for table, x in ids.items()}
        update = Submodels(index, part("rows", there), part("dense", there))
        marks = part("occurred", there) or None
        upload = Upload(tensors["clients"], update, tensors["steps"], {}, None, occurred=marks)
        self.add(upload, tensors["began"], part("moves", there))


def _placed(ids: Tensor, splits: Tensor, whole: Index) -> Index:
    """An index as the federation's own, whose heat is read by one gather."""
    if whole.held is None or whole.place is None:
        return Index(ids, splits)
    position = torch.searchsorted(whole.held, ids).clamp_(max=max(len(whole.held) - 1, 0))
    if not torch.equal(whole.held[position], ids):  # negatives, which nobody holds
        return Index(ids, splits)
    return Index(ids, splits, position, whole.held)


def _pick(column: Tensor, source: Tensor) -> Tensor:
    """Some entries of a column: (R,) or (R, width)."""
    if column.dim() == 1:
        return column.index_select(0, source)
    return index_select(column, source)


def _room(like: Tensor, length: int) -> Tensor:
    """An empty buffer of so many entries of the same kind."""
    return like.new_empty(length, *like.shape[1:])
