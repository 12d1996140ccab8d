"""How high rankings put what was right: hit rate, NDCG, reciprocal rank.

    rank = |{others that score higher}| + ½ |{others that score the same}|          from 0
    HR@k = P(rank < k)      NDCG@k = E[1 / log₂(rank + 2); rank < k]      MRR = E[1 / (rank + 1)]

Ties count in the middle: a model that gives all items one score must not come out first. A metric
of your own is a plain function from ranks (n,) to a value per example (n,).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

Metric = Callable[[Tensor], Tensor]


def rank_of(scores: Tensor, target: Tensor, counted: Tensor | None = None) -> Tensor:
    """The rank of each target score (n,) among those of the other items (n, C): (n,) float64.

    counted (n, C): which of the others count. NaN where any score is NaN: such a model has no rank.
    """
    higher, same = scores > target[:, None], scores == target[:, None]
    bad = scores.isnan()
    if counted is not None:
        higher, same, bad = higher & counted, same & counted, bad & counted
    rank = higher.sum(1, dtype=torch.float64) + same.sum(1, dtype=torch.float64) / 2
    return torch.where(bad.any(1) | target.isnan(), torch.nan, rank)


def hit(rank: Tensor, k: int = 10) -> Tensor:
    """1 where the rank is among the first k, else 0."""
    return torch.where(rank.isnan(), torch.nan, (rank < k).to(rank.dtype))


def discounted_gain(rank: Tensor, k: int = 10) -> Tensor:
    """1 / log₂(rank + 2) where the rank is among the first k, else 0: NDCG of one right item."""
    return hit(rank, k) / torch.log2(rank + 2)


def reciprocal(rank: Tensor) -> Tensor:
    """1 / (rank + 1)."""
    return 1 / (rank + 1)


METRICS: Mapping[str, Metric] = {"hr10": hit, "ndcg10": discounted_gain, "mrr": reciprocal}


def summed_up(rank: Tensor) -> dict[str, float]:
    """The mean of each metric over all examples; NaN without examples."""
    means = [metric(rank).to(torch.float64).mean() for metric in METRICS.values()]
    values = torch.stack(means).tolist()  # one wait for a GPU
    return dict(zip(METRICS, values, strict=True))
