"""Requests to train: which of its clients a node is to train, and the rows that it is sent."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedrows.flower.server.registry import Registry
from fedrows.flower.server.row_cache import RowCache, RowHashes
from fedrows.flower.wire.codings import ids_to_bytes, integers_to_bytes
from fedrows.flower.wire.contract import Contract
from fedrows.flower.wire.message import Message
from fedrows.flower.wire.submodels import encode_submodels
from fedrows.rows.params import Submodels


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
        node = self.registry.nodes[name]
        order = {client: i for i, client in enumerate(node.clients)}
        clients = [self.registry.clients[int(cohort[position])] for position in positions]
        positions_there = torch.tensor([order[one.name] for one in clients], dtype=torch.int64)
        parts = {
            "positions": ids_to_bytes(positions_there),
            "numbers": integers_to_bytes(cohort[positions].tolist()),
            "accepted": integers_to_bytes([one.accepted for one in clients]),
        }
        return Message("train", {"tag": tag, "version": node.version, **about_run}, parts)

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
