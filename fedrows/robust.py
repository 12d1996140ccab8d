"""Rules that bound what a few lying clients can do to a round, before its updates are added up.

    clip_norms_   Δ_k · min(1, bound / ‖Δ_k‖)                no client moves the model far
    trim          a row's holders send their trimmed mean     no few holders move a row at all

Both take and give the updates of a cohort, so that `params.total` stays the one aggregation.
Updates are taken to be finite. A row with few holders has nobody to outvote a liar: there only the
clipping and a cap on the correction N/n_m help.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from fedrows.errors import PlanError
from fedrows.rows.params import Submodels


def clip_norms_(update: Submodels, bound: float) -> Tensor:
    """Scales each client's update to a norm of at most `bound`; which clients it cut: (K,) bool."""
    if not (bound > 0 and math.isfinite(bound)):
        raise PlanError(f"The bound on an update's norm is {bound}: give a positive number.")
    norms = update.map(Tensor.double).norms()  # a liar's squares may not fit into float32
    clipped = norms > bound
    if bool(clipped.any()):
        update.scale_(torch.where(clipped, bound / norms, 1.0))
    return clipped


def trim(update: Submodels, share: float) -> Submodels:
    """The updates with every entry of a row replaced by the row's trimmed mean, by coordinate.

    Of the h entries of a row, floor(share · h) are dropped at each end, and of the K of a dense
    tensor floor(share · K). Where that is none the entries stay as they are. With no more liars
    among the holders than are dropped at one end, the mean lies between two honest entries.
    A trimmed row's mean is the plain one, because a weight would be one more thing to lie about.
    """
    if not 0 <= share < 0.5:
        raise PlanError(f"The share to trim at each end is {share}: give one from 0 to below 0.5.")
    rows = {table: _trim(x, update.index[table].ids, share) for table, x in update.rows.items()}
    dense = {}
    for name, x in update.dense.items():
        one = torch.zeros(len(x), dtype=torch.int64, device=x.device)  # all hold the same thing
        dense[name] = _trim(x.reshape(len(x), -1), one, share).view(x.shape)
    return Submodels(update.index, rows, dense)


def _trim(values: Tensor, ids: Tensor, share: float) -> Tensor:
    """Each entry's trimmed mean over the entries of the same id: (R, width), (R,) → (R, width)."""
    _, group, held = torch.unique(ids, return_inverse=True, return_counts=True)
    drop = _drops(held, share)
    result = values.clone()
    crowded = (drop[group] > 0).nonzero().squeeze(1)  # the entries of rows that drop some: (C,)
    if not len(crowded):
        return result
    values, group = values[crowded], group[crowded]
    # Sorted by value and then, stably, by group: every group's entries ascend, in each column.
    ascending, order = values.sort(0)
    ascending = ascending.gather(0, group[order].argsort(dim=0, stable=True))  # (C, width)
    group_of = group.sort().values  # (C,), the same in all columns
    size = torch.where(drop > 0, held, 0)
    start = size.cumsum(0) - size
    place = torch.arange(len(group_of), device=values.device) - start[group_of]  # in its group
    kept = (place >= drop[group_of]) & (place < (held - drop)[group_of])
    sums = values.new_zeros(len(held), values.shape[1])
    sums.index_add_(0, group_of[kept], ascending[kept])
    means = sums / (held - 2 * drop)[:, None].to(values.dtype)
    result[crowded] = means[group]
    return result


def _drops(held: Tensor, share: float) -> Tensor:
    """floor(share · h), as it is on paper: 0.29 · 100 is 29; and something is always left."""
    drop = (held.to(torch.float64) * share + 1e-9).floor().to(torch.int64)
    return torch.minimum(drop, torch.div(held - 1, 2, rounding_mode="floor"))
