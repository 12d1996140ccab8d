"""Requests to train: which of its clients a node is to train, and the rows that it is sent.

With `row-cache` the server knows which rows of the model each node already has. A row is known by a
hash of its numbers and not by a version, so the cache is right whatever an algorithm does to rows
that nobody touched. What a node was sent counts once it has answered.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedrows.flower.server.registry import Registry
from fedrows.flower.wire.codings import ids_to_bytes, integers_to_bytes
from fedrows.flower.wire.contract import Contract
from fedrows.flower.wire.message import Message
from fedrows.flower.wire.submodels import encode_submodels
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


@dataclass
class TrainRequests:
    """Writes the requests of a run."""

    contract: Contract
    registry: Registry
    row_cache: RowCache

    def of(
        self,
        name: str,
        cohort: Tensor,
        positions: list[int],
        tag: int,
        about_run: dict[str, object],
    ) -> Message:
        """A message that says which of its clients a node is to train."""
        numbers = cohort[positions].tolist()
        places, accepted = self.registry.asked(name, numbers)
        parts = {
            "positions": ids_to_bytes(torch.tensor(places, dtype=torch.int64)),
            "numbers": integers_to_bytes(numbers),
            "accepted": integers_to_bytes(accepted),
        }
        version = self.registry.nodes[name].version
        return Message("train", {"tag": tag, "version": version, **about_run}, parts)

    def add_download_(
        self,
        message: Message,
        name: str,
        positions: list[int],
        start: Submodels,
        sent: Submodels | None,
    ) -> tuple[RowHashes, int]:
        """Adds a node's rows to its message.

        Returns the hashes of the rows that the node will have, and how many rows are not sent
        because it has them.
        """
        exact = self.contract.plan.dtype
        model, hashes, spared = distinct_rows(start, positions), RowHashes(), 0
        if self.contract.options.row_cache:
            model = model.map(Tensor.clone)
            message.facts["base"] = self.row_cache.tag(name)
            same, hashes, spared = self.row_cache.blank_known_(name, model)
            message.parts |= same
        message.parts |= encode_submodels("model", model, exact)
        if sent is not None:
            message.parts |= encode_submodels("sent", distinct_rows(sent, positions), exact)
        return hashes, spared


def distinct_rows(submodels: Submodels, positions: list[int]) -> Submodels:
    """A node's part of a download: its rows stand, each once, at the first of its clients."""
    return submodels.slice(positions[0], positions[0] + 1)


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
