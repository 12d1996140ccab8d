"""What nodes have of the model: the server's side of `row-cache`.

A row is known by a mark of its numbers, not by a version, so this holds whatever an algorithm does
to rows that nobody touched. What a node was sent counts once it has answered.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fedrows.flower.wire import ids_to_bytes
from fedrows.rows.params import Submodels
from fedrows.seeds import mix

Marks = dict[str, tuple[Tensor, Tensor]]  # table → ids, sorted, and the mark of each


class Had:
    """Which rows each node has."""

    def __init__(self) -> None:
        self._rows: dict[str, Marks] = {}
        self._tags: dict[str, int] = {}

    def base(self, node: str) -> int:
        """The tag of what a node has; 0 if nothing is known."""
        return self._tags.get(node, 0)

    def spare_(self, node: str, model: Submodels) -> tuple[dict[str, bytes], Marks, int]:
        """Sets rows to zero that the node has as they are, so that they are not sent.

        Gives parts that name them, the marks of what the node will have, and their number.
        """
        parts, marks, spared = {}, dict[str, tuple[Tensor, Tensor]](), 0
        known = self._rows.get(node, {})
        for table, rows in model.rows.items():
            ids, mark = model.index[table].ids, _marks(rows)
            same = _same(ids, mark, known.get(table))
            same = same[rows[same].ne(0).any(1)]  # rows of zeros are not sent anyway
            parts[f"same/{table}"] = ids_to_bytes(same)
            spared += len(same)
            rows[same] = 0
            marks[table] = _merged(known.get(table), ids, mark)
        return parts, marks, spared

    def answered(self, node: str, marks: Marks, tag: int) -> None:
        """The node has what it was sent."""
        if marks:
            self._rows[node], self._tags[node] = marks, tag

    def forget(self, node: str) -> None:
        """Counts on nothing that a node might still have."""
        self._rows.pop(node, None)
        self._tags.pop(node, None)


def _marks(rows: Tensor) -> Tensor:
    """A 64-bit mark of each row's numbers: (R,)."""
    words = rows.contiguous().view(torch.int32).to(torch.int64)
    place = torch.arange(words.shape[1])
    return mix(words * 0x10001 + place * 0x9E3779B1 + 1).sum(1)


def _same(ids: Tensor, marks: Tensor, had: tuple[Tensor, Tensor] | None) -> Tensor:
    """Which of some rows a node has as they are."""
    if had is None or not len(had[0]):
        return ids[:0]
    place = torch.searchsorted(had[0], ids).clamp_(max=len(had[0]) - 1)
    return ((had[0][place] == ids) & (had[1][place] == marks)).nonzero().view(-1)


def _merged(
    had: tuple[Tensor, Tensor] | None, ids: Tensor, marks: Tensor
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """What a node has after it got some rows."""
    if had is None:
        return ids, marks
    every = torch.unique(torch.cat([had[0], ids]))
    now = torch.zeros_like(every)
    now[torch.searchsorted(every, had[0])] = had[1]
    now[torch.searchsorted(every, ids)] = marks
    return every, now
