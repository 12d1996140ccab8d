"""What a node puts into a sum of updates, as the arrays that it keeps until the sum is over."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from fedrows.flower.node.node_sums import Arrays
from fedrows.privacy.layout import Contribution
from fedrows.rows.index import Index
from fedrows.rows.params import Submodels


def contribution_arrays(sent: Contribution) -> Arrays:
    """The arrays of a contribution."""
    arrays = {"extra": sent.extra}
    for table, index in sent.rows.index.items():
        arrays[f"{table}/ids"] = index.ids.numpy()
        arrays[f"{table}/rows"] = sent.rows.rows[table].numpy()
        arrays[f"{table}/rest"] = sent.rest[table]
    return arrays


def read_contribution(arrays: Arrays, tables: Iterable[str]) -> Contribution:
    """The contribution that some arrays were made of."""
    index, rows = {}, {}
    for table in tables:
        ids = torch.from_numpy(arrays[f"{table}/ids"])
        index[table] = Index(ids, torch.tensor([0, len(ids)]))
        rows[table] = torch.from_numpy(arrays[f"{table}/rows"])
    rest = {table: arrays[f"{table}/rest"] for table in index}
    return Contribution(Submodels(index, rows, {}), arrays["extra"], rest)
