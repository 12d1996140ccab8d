"""The row cache, on the server: which rows of the model each node already has (`row-cache`).

A row is known by a hash of its numbers and not by a version, so the cache is right whatever an
algorithm does to rows that nobody touched. What a node was sent counts once it has answered.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fedrows.flower.wire.codings import ids_to_bytes
from fedrows.rows.params import Submodels
from fedrows.seeds import mix

RowHashes = dict[str, tuple[Tensor, Tensor]]  # table → sorted ids, and the hash of each row


class RowCache:
    """Which rows each node has."""

    def __init__(self) -> None:
        self._rows: dict[str, RowHashes] = {}
        self._tags: dict[str, int] = {}

    def tag(self, node: str) -> int:
        """The tag of what a node has; 0 if nothing is known."""
        return self._tags.get(node, 0)

    def blank_known_(self, node: str, model: Submodels) -> tuple[dict[str, bytes], RowHashes, int]:
        """Sets rows to zero that the node has already, so that they are not sent.

        Returns parts that name these rows, the hashes of what the node will have, and how many
        rows are saved.
        """
        parts, hashes, saved = {}, dict[str, tuple[Tensor, Tensor]](), 0
        known = self._rows.get(node, {})
        for table, rows in model.rows.items():
            ids, hash_ = model.index[table].ids, _hash(rows)
            same = _unchanged(ids, hash_, known.get(table))
            same = same[rows[same].ne(0).any(1)]  # rows of zeros are not sent anyway
            parts[f"same/{table}"] = ids_to_bytes(same)
            saved += len(same)
            rows[same] = 0
            hashes[table] = _merged(known.get(table), ids, hash_)
        return parts, hashes, saved

    def confirm(self, node: str, hashes: RowHashes, tag: int) -> None:
        """Notes that the node has what it was sent."""
        if hashes:
            self._rows[node], self._tags[node] = hashes, tag

    def forget(self, node: str) -> None:
        """Counts on nothing that a node might still have."""
        self._rows.pop(node, None)
        self._tags.pop(node, None)


def _hash(rows: Tensor) -> Tensor:
    """A 64-bit hash of each row's numbers: (R,)."""
    words = rows.contiguous().view(torch.int32).to(torch.int64)
    column = torch.arange(words.shape[1])
    return mix(words * 0x10001 + column * 0x9E3779B1 + 1).sum(1)


def _unchanged(ids: Tensor, hashes: Tensor, known: tuple[Tensor, Tensor] | None) -> Tensor:
    """The positions of the rows that a node has with the same numbers."""
    if known is None or not len(known[0]):
        return ids[:0]
    at = torch.searchsorted(known[0], ids).clamp_(max=len(known[0]) - 1)
    return ((known[0][at] == ids) & (known[1][at] == hashes)).nonzero().view(-1)


def _merged(
    known: tuple[Tensor, Tensor] | None, ids: Tensor, hashes: Tensor
) -> tuple[Tensor, Tensor]:
    """What a node has after it got some rows."""
    if known is None:
        return ids, hashes
    merged = torch.unique(torch.cat([known[0], ids]))
    values = torch.zeros_like(merged)
    values[torch.searchsorted(merged, known[0])] = known[1]
    values[torch.searchsorted(merged, ids)] = hashes
    return merged, values
