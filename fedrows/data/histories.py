"""What logs of items have in common: histories of users, and how unevenly items are held."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from fedrows.data.federation import FederatedData
from fedrows.rows.ragged import Ragged


def histories(values: np.ndarray, stop: np.ndarray, size: np.ndarray, most: int) -> Ragged:
    """For every example the last `most` of values[stop − size] … values[stop − 1]."""
    size = np.minimum(size, most)
    offsets = np.concatenate([[0], np.cumsum(size)])
    entries = np.arange(offsets[-1]) + np.repeat(stop - offsets[1:], size)
    length = max(int(size.max(initial=0)), 1)  # a batch is filled up to it: no longer than needed
    return Ragged(torch.from_numpy(values[entries]), torch.from_numpy(offsets), length)


def starts_of(sorted_: np.ndarray) -> np.ndarray:
    """For every entry of a sorted array the place where its like begin: (n,)."""
    return np.searchsorted(sorted_, sorted_)


def dispersion(client: np.ndarray, item: np.ndarray) -> float:
    """max n_m / min n_m over items, n_m being the number of clients that have the item."""
    rows = int(item.max()) + 1
    pairs = np.sort(client * rows + item)
    pairs = pairs[np.diff(pairs, prepend=-1) > 0]  # np.unique's way of hashing takes far longer
    _, counts = np.unique(pairs % rows, return_counts=True)
    return float(counts.max() / counts.min())


def build_with_histories(ids: Mapping[str, np.ndarray | Ragged], **columns: Any) -> FederatedData:
    """Examples about an item, with the fields user, item and history; histories are of items."""
    fields = {"user": "user", "item": "item", "history": "item"}
    return FederatedData.build(ids=ids, fields=fields, target=("item", None), **columns)
