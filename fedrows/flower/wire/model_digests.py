"""The model that a sum of updates is about, as digests: all its nodes train on one model.

A server that sends real rows to one node, and to all others rows on which they learn nothing, reads
the one node's update in the sum. So every node gets the same list, bound into the sum's name:

    32 bytes    SHA-256 of the dense tensors
    16 bytes    of SHA-256, for each row of the union; random for rows that nobody asked for

A node has some of the rows, and compares those. The place of a row and the union's name are part of
its digest, so two rows with one digest (2⁶⁴ tries) serve for one row in one round.
"""

from __future__ import annotations

import hashlib
import secrets
import struct
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedrows.privacy.messages import digest
from fedrows.privacy.protocol import ProtocolError
from fedrows.privacy.row_space import RowSpace
from fedrows.rows.heat import Heat
from fedrows.rows.params import Submodels

DIGESTS = "digests"  # the part of a message that has them
_DENSE, _ROW = 32, 16  # bytes


def model_digests(
    name: str, start: Submodels, heat: Mapping[str, Heat], space: RowSpace, union: np.ndarray
) -> bytes:
    """The digests of a round's model. name: the union's; heat: what is sent with rows, if any."""
    rows = np.frombuffer(secrets.token_bytes(_ROW * len(union)), dtype=np.uint8).copy()
    places, own = _row_digests(name, start, heat, space)
    rows.reshape(-1, _ROW)[np.searchsorted(union, places)] = own
    return _dense_digest(start, heat) + rows.tobytes()


def model_name(digests: bytes) -> str:
    """What a model is called in the facts of a sum."""
    return digest(digests).hex()


def check_model(
    facts: Mapping[str, Any],
    digests: bytes,
    sent: Submodels,
    heat: Mapping[str, Heat],
    space: RowSpace,
    union: np.ndarray,
) -> None:
    """Refuses rows or dense tensors other than those of the model that the sum is about."""
    places, own = _row_digests(facts["union"], sent, heat, space)
    right = facts["model"] == model_name(digests) and len(digests) == _DENSE + _ROW * len(union)
    if right:
        rows = np.frombuffer(digests, dtype=np.uint8, offset=_DENSE).reshape(-1, _ROW)
        right = np.array_equal(rows[np.searchsorted(union, places)], own)
    if not right or digests[:_DENSE] != _dense_digest(sent, heat):
        raise ProtocolError(
            "The rows that came are not of the model that all nodes train on: the node drops out."
        )


def _row_digests(
    name: str, submodels: Submodels, heat: Mapping[str, Heat], space: RowSpace
) -> tuple[np.ndarray, np.ndarray]:
    """The places of all rows, each once, and the digests of what is at them."""
    begun = hashlib.sha256(digest(b"fedrows row", name.encode()))
    every, digests = [np.empty(0, dtype=np.int64)], bytearray()
    for table, first in space.starts.items():
        ids, at = np.unique(submodels.index[table].ids.cpu().numpy(), return_index=True)
        lines = [(first + ids)[:, None], _numbers(submodels.rows[table][torch.from_numpy(at)])]
        if heat:
            lines.append(_numbers(heat[table].of(torch.from_numpy(ids)))[:, None])
        for line in np.concatenate(lines, axis=1, dtype="<f8"):
            hash_ = begun.copy()
            hash_.update(line.tobytes())
            digests += hash_.digest()[:_ROW]
        every.append(first + ids)
    return np.concatenate(every), np.frombuffer(bytes(digests), dtype=np.uint8).reshape(-1, _ROW)


def _dense_digest(submodels: Submodels, heat: Mapping[str, Heat]) -> bytes:
    """The digest of the dense tensors, and of how many clients the heat is of."""
    parts = [b"fedrows dense"]
    for name, tensor in sorted(submodels.dense.items()):
        parts += [name.encode(), _numbers(tensor[0]).astype("<f8").tobytes()]
    for table, counts in sorted(heat.items()):
        parts += [table.encode(), struct.pack("<d", counts.total)]
    return digest(*parts)


def _numbers(tensor: Tensor) -> np.ndarray:
    """Numbers in float64, without −0, which a message does not tell from 0."""
    return tensor.detach().cpu().double().numpy() + 0.0
