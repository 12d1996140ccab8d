"""How good scores are: loss, accuracy, AUC, AUC within clients, and loss and AUC by heat.

    AUC  = P(s⁺ > s⁻) + ½ P(s⁺ = s⁻)     over pairs of a positive and a negative example
    GAUC = Σ_i n_i · AUC_i / Σ_i n_i      over the clients i that have both classes

A score above 0 predicts the positive class, a label above ½ belongs to it. Counts are int64 and
means float64. Scores that are NaN, from a model that diverged, give NaN.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import nan
from typing import Any

import torch
from torch import Tensor

_HALF_DECADES = [0] + [step * 10**power for power in range(18) for step in (3, 10)]


def measured(
    labels: str, scores: Tensor, losses: Tensor, label: Tensor, owner: Tensor
) -> dict[str, float]:
    """The metrics of some examples, by the names that follow the part of the data in a line."""
    metrics = {"loss": mean_loss(losses), "accuracy": nan, "auc": nan, "gauc": nan}
    if labels == "binary":
        metrics["accuracy"], metrics["auc"] = accuracy(scores, label), auc(scores, label)
        metrics["gauc"], _ = grouped_auc(scores, label, owner)
    elif labels == "classes":
        metrics["accuracy"] = class_accuracy(scores, label) if len(label) else nan
    else:
        metrics |= regression_errors(scores, label)
    return metrics


def mean_loss(losses: Tensor) -> float:
    """The mean of a loss per example; NaN without examples."""
    return float(losses.to(torch.float64).mean())


def accuracy(scores: Tensor, label: Tensor) -> float:
    """The share of examples whose class the score predicts; NaN without examples."""
    if bool(scores.isnan().any()):
        return float("nan")
    return float(((scores > 0) == _positive(label)).to(torch.float64).mean())


def class_accuracy(scores: Tensor, label: Tensor) -> float:
    """The share of examples whose class has the highest score; scores are (n, classes)."""
    if bool(scores.isnan().any()):
        return float("nan")
    return float((scores.argmax(-1) == label).to(torch.float64).mean())


def regression_errors(scores: Tensor, label: Tensor) -> dict[str, float]:
    """The root of the mean square and the mean size of scores − labels; NaN without examples."""
    error = (scores.flatten() - label).to(torch.float64)  # (n,), from (n,) or (n, 1)
    return {"rmse": float(error.square().mean().sqrt()), "mae": float(error.abs().mean())}


def auc(scores: Tensor, label: Tensor) -> float:
    """The area under the ROC curve, ties counting one half; NaN if there is one class only."""
    return float(group_auc(scores, label, torch.zeros_like(label, dtype=torch.int64), 1)[0])


def grouped_auc(scores: Tensor, label: Tensor, group: Tensor) -> tuple[float, int]:
    """The mean of every client's own AUC weighted by its examples, and how many were left out.

    group (n,) numbers the client of each example from 0 (below 2³⁰), in any order. Left out are the
    clients whose examples are all of one class; with nobody else the mean is NaN.
    """
    sizes = torch.bincount(group)
    positives = torch.bincount(group[_positive(label)], minlength=len(sizes))
    both = (positives > 0) & (positives < sizes)
    values = group_auc(scores, label, group, len(sizes))[both]
    weights = sizes[both].to(torch.float64)
    return float((values * weights).sum() / weights.sum()), int(((sizes > 0) & ~both).sum())


@dataclass(frozen=True, eq=False)
class Buckets:
    """Which examples are about cold features and which about hot ones, cold to hot.

    They are 0, 1–3, 4–10, 11–30, 31–100, 101–300 and so on for all data; those without an example
    are left out.
    """

    low: list[int]
    high: list[int]
    examples: list[int]
    of: Tensor  # (n,), the bucket of each example

    @classmethod
    def of_heat(cls, heat: Tensor) -> Buckets:
        """The buckets of examples, given how many clients hold the target of each: (n,)."""
        edges = torch.tensor(_HALF_DECADES, device=heat.device)
        bucket = torch.searchsorted(edges, heat.to(torch.int64).contiguous())
        buckets, of, examples = torch.unique(bucket, return_inverse=True, return_counts=True)
        at = buckets.tolist()
        return cls(
            [_HALF_DECADES[i - 1] + 1 if i else 0 for i in at],
            [_HALF_DECADES[i] for i in at],
            examples.tolist(),
            of,
        )

    def to(self, device: torch.device) -> Buckets:
        """The same buckets for examples on another device."""
        return Buckets(self.low, self.high, self.examples, self.of.to(device))


def by_bucket(
    scores: Tensor, label: Tensor, losses: Tensor, buckets: Buckets
) -> list[dict[str, Any]]:
    """The mean loss and the AUC in every bucket, cold to hot."""
    if not buckets.low:
        return []
    aucs = group_auc(scores, label, buckets.of, len(buckets.low)).tolist()
    return [
        {
            "low": buckets.low[i],
            "high": buckets.high[i],
            "examples": buckets.examples[i],
            "loss": mean_loss(losses[buckets.of == i]),
            "auc": aucs[i],
        }
        for i in range(len(aucs))
    ]


def _positive(label: Tensor) -> Tensor:
    return label > 0.5


def group_auc(scores: Tensor, label: Tensor, group: Tensor, groups: int) -> Tensor:
    """The AUC within each of the groups 0 … groups−1: (groups,) float64, NaN for one class only.

    With the examples of a group sorted by score, and z(·) the negatives before a place,

        2 · AUC · positives · negatives = Σ over positives (z(start of its tie) + z(end of its tie))

    One sort does it for all groups: group, score and class fit into one int64.
    """
    positive = _positive(label)
    key, _ = torch.sort((group << 33) | (_ordinal(scores) << 1) | positive)  # (n,)
    tie = key >> 1
    is_first = torch.ones_like(key, dtype=torch.bool)
    torch.ne(tie[1:], tie[:-1], out=is_first[1:])
    edges = torch.cat([is_first.nonzero().view(-1), key.new_tensor([len(key)])])
    start, end = edges[:-1], edges[1:]  # (T,), of each tie; most ties are of one example
    before = key.new_zeros(len(key) + 1)  # negatives before every place, over all groups
    torch.cumsum(1 - (key & 1), 0, out=before[1:])
    low, high = before[start], before[end]
    owner = key[start] >> 33
    sizes = torch.bincount(group, minlength=groups)
    positives = torch.bincount(group[positive], minlength=groups)
    negatives = sizes - positives
    earlier = torch.cumsum(negatives, 0) - negatives  # negatives in the groups before
    twice = torch.zeros_like(sizes)
    twice.index_add_(0, owner, (end - start - high + low) * (low + high - 2 * earlier[owner]))
    values = twice.to(torch.float64) / (2 * positives * negatives)  # 0 / 0 is NaN
    values[group[scores.isnan()]] = torch.nan
    return values


def _ordinal(scores: Tensor) -> Tensor:
    """An integer from 0 up to, not including, 2³² for each score, in the order of the scores.

    The bits of a float32 are such an integer but for the sign; −0 and 0 become equal. A float64
    has too many bits, so its rank takes their place.
    """
    if scores.dtype in (torch.float32, torch.float16, torch.bfloat16):
        bits = scores.to(torch.float32).view(torch.int32).to(torch.int64)
        return torch.where(bits < 0, -bits, bits + 2**31)
    return torch.unique(scores, return_inverse=True)[1]
