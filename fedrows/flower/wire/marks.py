"""Which rows occurred in clients' batches, as parts of a message: one bit for every row.

occurred/TABLE    the bits of all entries of the index, the last byte filled up with zeros
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from fedrows.flower.wire.message import WireError
from fedrows.rows.index import Index

_PART = "occurred/"


def encode_marks(marks: Mapping[str, Tensor]) -> dict[str, bytes]:
    """Marks (R,) by table as parts."""
    return {f"{_PART}{table}": np.packbits(x.numpy()).tobytes() for table, x in marks.items()}


def decode_marks(parts: Mapping[str, bytes], index: Mapping[str, Index]) -> dict[str, Tensor]:
    """Marks for the entries of an index, or a WireError."""
    marks = {}
    for table, rows in index.items():
        count, data = len(rows.ids), parts.get(f"{_PART}{table}", b"")
        if len(data) != (count + 7) // 8:
            raise WireError(
                f"The part {_PART + table!r} has {len(data)} bytes, but {count} rows have "
                f"{(count + 7) // 8}."
            )
        bits = np.unpackbits(np.frombuffer(data, dtype=np.uint8), count=count)
        marks[table] = torch.from_numpy(bits.astype(bool))
    return marks


def mark_names(index: Mapping[str, Index]) -> set[str]:
    """Every part that marks may have."""
    return {f"{_PART}{table}" for table in index}
