"""Updates that are under way: trained already, and not yet come in.

Rows lie one client after another in buffers that are filled from the front and packed when they are
full, so that adding and taking costs what is added and taken. A client has at most one update here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedrows.client import Upload
from fedrows.rows.index import Index
from fedrows.rows.params import Submodels


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
            self.columns[name][self.end : self.end + count] = x
        self.starts[slots], self.lengths[slots] = self.end + splits[:-1], np.diff(splits)
        self.end += count

    def take(self, slots: np.ndarray) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        """The parts of some slots: splits (K+1,), owner (R,), and every column."""
        lengths = self.lengths[slots]
        ends = np.cumsum(lengths)
        splits = torch.from_numpy(np.concatenate([[0], ends]))
        size = int(ends[-1]) if len(ends) else 0
        both = torch.from_numpy(np.stack([lengths, self.starts[slots] - ends + lengths]))
        both = both.to(next(iter(self.columns.values())).device, non_blocking=True)
        owner = torch.repeat_interleave(both[0], output_size=size)
        source = both[1].index_select(0, owner)
        source += torch.arange(size, device=source.device)
        return splits, owner, {name: x.index_select(0, source) for name, x in self.columns.items()}

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
    """At most so many updates."""

    def __init__(self, most: int) -> None:
        self._slot: dict[int, int] = {}  # of each client
        self._free = list(range(most - 1, -1, -1))
        self._began = np.zeros(most, dtype=np.int64)
        self._steps = torch.zeros(most, dtype=torch.float64)
        self._rows: dict[str, _Rows] = {}
        self._dense: dict[str, Tensor] = {}
        self._held: dict[str, Tensor | None] = {}
        self._most = most

    def __len__(self) -> int:
        return len(self._slot)

    @property
    def clients(self) -> list[int]:
        """Whose updates are here, ascending."""
        return sorted(self._slot)

    def add(self, upload: Upload, began: Tensor, moves: Mapping[str, Tensor]) -> None:
        """Keeps updates until they come in."""
        free = len(self._free) - len(upload.clients)
        slots = np.array(self._free[free:], dtype=np.int64)
        del self._free[free:]
        self._slot |= dict(zip(upload.clients.tolist(), slots.tolist(), strict=True))
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

    def take(self, clients: Sequence[int]) -> Arrival:
        """The updates of some clients, in this order; they stay here until they are released."""
        slots = np.array([self._slot[x] for x in clients], dtype=np.int64)
        where = torch.from_numpy(slots)
        index, rows, moves, marks = {}, {}, {}, {}
        for table, kept in self._rows.items():
            splits, owner, columns = kept.take(slots)
            rows[table], held, place = columns["rows"], self._held[table], columns.get("place")
            if held is None or place is None:
                index[table] = Index(columns["ids"], splits, known_owner=owner)
            else:
                ids = held.index_select(0, place)
                index[table] = Index(ids, splits, place, held, known_owner=owner)
            if "moves" in columns:
                moves[table] = columns["moves"]
            if "occurred" in columns:
                marks[table] = columns["occurred"]
        dense = {name: x.index_select(0, where.to(x.device)) for name, x in self._dense.items()}
        who = torch.tensor(list(clients), dtype=torch.int64)
        update = Submodels(index, rows, dense)
        steps = self._steps.index_select(0, where)
        upload = Upload(who, update, steps, {}, None, occurred=marks or None)
        return Arrival(upload, torch.from_numpy(self._began[slots]), moves)

    def release(self, clients: Sequence[int]) -> None:
        """Forgets the updates of some clients."""
        slots = np.array([self._slot.pop(x) for x in clients], dtype=np.int64)
        self._free += slots.tolist()[::-1]
        for kept in self._rows.values():
            kept.free(slots)

    def tensors(self) -> dict[str, Tensor]:
        """Everything in it, by name."""
        if not self._slot:
            return {}
        all_ = self.take(self.clients)
        upload = all_.upload
        found = {"clients": upload.clients, "steps": upload.steps, "began": all_.began}
        found |= {f"dense/{name}": x for name, x in upload.update.dense.items()}
        found |= {f"moves/{table}": x for table, x in all_.moves.items()}
        found |= {f"occurred/{table}": x for table, x in (upload.occurred or {}).items()}
        for table, rows in upload.update.rows.items():
            index = upload.update.index[table]
            found |= {f"rows/{table}": rows, f"ids/{table}": index.ids}
            found |= {f"splits/{table}": index.splits}
        return found

    def restore_(
        self, tensors: Mapping[str, Tensor], whole: Mapping[str, Index], device: torch.device
    ) -> None:
        """Takes in what `tensors` gave, in place of what is here; whole: the federation's index."""
        self.__init__(self._most)  # type: ignore[misc]
        if "clients" not in tensors:
            return

        def part(kind: str, to: Callable[[Tensor], Tensor]) -> dict[str, Tensor]:
            head = f"{kind}/"
            return {x[len(head) :]: to(y) for x, y in tensors.items() if x.startswith(head)}

        there = lambda x: x.to(device)  # noqa: E731
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
    place = torch.searchsorted(whole.held, ids).clamp_(max=max(len(whole.held) - 1, 0))
    if not torch.equal(whole.held[place], ids):  # negatives, which nobody holds
        return Index(ids, splits)
    return Index(ids, splits, place, whole.held)


def _room(like: Tensor, length: int) -> Tensor:
    """An empty buffer of so many entries of the same kind."""
    return like.new_empty(length, *like.shape[1:])
