"""`Index.select` on a GPU as one kernel: `select.cu`. A launch costs more than its work."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from fedrows.nn.kernels import launch
from fedrows.rows.index import Index

_THREADS = 256


def select(index: Index, clients: Tensor) -> Index:
    """The index sets of some of the clients, in the order given."""
    assert index.place is not None
    assert index.held is not None
    which, whole = clients.numpy(), index.splits.numpy()
    starts = whole[which]
    splits = np.zeros(len(which) + 1, dtype=np.int64)
    np.cumsum(whole[which + 1] - starts, out=splits[1:])
    size, device = int(splits[-1]), index.ids.device
    facts = torch.from_numpy(np.stack([splits[1:], starts - splits[:-1]]))
    ends, shift = facts.to(device, non_blocking=True)
    owner, source, position, ids = torch.empty(4, size, dtype=torch.int64, device=device)
    if size:
        given = [ends, shift, index.place, index.held, owner, source, position, ids]
        blocks = -(-size // _THREADS)
        launch("select_entries", {}, [blocks], _THREADS, [*given, len(which), size])
    return Index(ids, torch.from_numpy(splits), position, index.held, source, owner)
