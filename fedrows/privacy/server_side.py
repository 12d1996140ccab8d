"""What the server does in a private round, whoever carries its messages.

    union           `union_plan`: how the cohort's rows are found
    index           `RowSpace.index` of what each party asks for
    coding          a mechanism's own, from the largest correction of the algorithm
    sum → mean      a mechanism's own, out of `SumLayout.opened`
    mean → upload   `pseudo_upload`: as of one client with everybody's weight

So the round loop and the algorithms know nothing of any of this.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from fedrows.client import Upload
from fedrows.privacy import union
from fedrows.privacy.distributed_mean import DistributedMean
from fedrows.privacy.noisy_mean import NoisyMean
from fedrows.privacy.options import Privacy
from fedrows.privacy.row_space import RowSpace
from fedrows.privacy.weighted_mean import Mean, WeightedMean
from fedrows.rows.heat import Heat
from fedrows.rows.index import Index
from fedrows.rows.params import Submodels

MISSED = 1e-6  # the odds, at most, that a Bloom filter misses a row


# A mean out of a secure sum: what parties put into it, and what the server makes of it.
SumMechanism = WeightedMean | NoisyMean | DistributedMean


def union_plan(
    privacy: Privacy, space: RowSpace, parties: int, most: int, name: str
) -> union.UnionPlan:
    """How a union is found: a word per row, or a Bloom filter for sets of at most `most` rows."""
    direct = union.Direct(space.rows)
    if privacy.union == "direct":
        return direct
    # Rounded up, or the filter's size would tell the size of the largest set.
    held = 1 << max(most - 1, 1).bit_length()
    bloom = union.Bloom.for_sets(space.rows, parties, held, missed=MISSED, salt=name)
    if privacy.union == "bloom":
        return bloom
    return direct if plan_bytes(direct) <= plan_bytes(bloom) else bloom


def plan_bytes(plan: union.UnionPlan) -> int:
    """What a party sends for a union."""
    return plan.length * np.dtype(plan.word).itemsize


def heat_from(counts: np.ndarray, space: RowSpace, clients: int) -> dict[str, Heat]:
    """The heat of every table, from the sum of the heat vectors of so many clients.

    No row is held by more clients than there are. A node that says otherwise would stop the row.
    """
    sums, heat = torch.from_numpy(counts.astype("int64")).clamp(0, clients).double(), {}
    for table, start in space.starts.items():
        own = sums[start : start + space.sizes[table]]
        held = own.nonzero().view(-1)
        heat[table] = Heat(held, own[held], float(clients))
    return heat


def pseudo_upload(
    clients: Tensor,
    mean: Mean | None,
    dtype: torch.dtype,
    device: torch.device,
    local: Submodels | None = None,
) -> Upload:
    """A mean as the upload of one client; without one, nobody has answered.

    local: rows of local tables that the clients keep, where the server stores them for them.
    """
    if mean is None:
        nothing = torch.ones(0, dtype=torch.float64)
        return Upload(clients[:0], Submodels({}, {}, {}), nothing, {}, None)
    index: dict[str, Index] = {} if local is None else dict(local.index)
    rows = {} if local is None else dict(local.rows)
    for table, (ids, values) in mean.rows.items():
        index[table] = Index(ids.to(device), torch.tensor([0, len(ids)]))
        rows[table] = values.to(device, dtype)
    dense = {name: x.to(device, dtype)[None] for name, x in mean.dense.items()}
    weight = torch.tensor([mean.weight], dtype=torch.float64)
    # A sum does not tell how many steps its clients took, and no summable algorithm asks.
    return Upload(clients, Submodels(index, rows, dense), torch.ones(1).double(), {}, None, weight)
