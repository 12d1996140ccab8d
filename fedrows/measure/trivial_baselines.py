"""What counting alone is worth: the baselines that a trained model must beat to be called one.

    prior    p                              the share of positives in training
    client   (positives of i + a·p) / (examples of i + a)
    item     (positives of m + a·p) / (examples of m + a)
    both     logit(client) + logit(item) − logit(p)

All counts are of training examples, a = 5 pseudo-examples at the prior keep small counts tame, and
a client or an item without training examples gets p. An item is what an example is about
(`FederatedData.target`); data that do not say it have no item's mean. Train loss is taken on the
sample that runs are measured on, and knows the labels that it is measured on, as a run's does.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fedrows.data.federation import FederatedData
from fedrows.errors import DataError
from fedrows.measure.metrics import accuracy, auc, grouped_auc, mean_loss
from fedrows.model import logistic_loss
from fedrows.seeds import SAMPLE, choose

PSEUDO = 5.0  # a
NAMES = {
    "prior": "label prior",
    "client": "client's mean",
    "item": "item's mean",
    "both": "client's and item's mean",
}


def baselines(data: FederatedData, train_sample: int = 10_000) -> dict[str, dict[str, float]]:
    """Train loss, and test loss, accuracy, AUC and GAUC, by the names of `NAMES`."""
    chosen = choose(0, SAMPLE, 0, len(data.train), min(train_sample, len(data.train)))
    metrics = {}
    for name, (train, test) in scores(data).items():
        label = data.test.label
        metrics[name] = {
            "train_loss": _loss(train[chosen], data.train.label[chosen]),
            "test_loss": _loss(test, label),
            "test_accuracy": accuracy(test, label),
            "test_auc": auc(test, label),
            "test_gauc": grouped_auc(test, label, data.test.owner)[0],
        }
    return metrics


def scores(data: FederatedData) -> dict[str, tuple[Tensor, Tensor]]:
    """The score, a logit, of every training and every test example: (n,) float64 each."""
    if data.labels != "binary":
        raise DataError(
            f"The labels of {data.name} are {data.labels}, but counting positives wants binary "
            "ones: leave the trivial baselines out."
        )
    label = data.train.label.to(torch.float64)
    prior = float(label.mean())
    level = _logit(torch.tensor(prior, dtype=torch.float64))
    train, test = data.train, data.test
    client = _by(train.owner, test.owner, label, prior)
    scores_of = {"prior": (level.expand(len(train)), level.expand(len(test))), "client": client}
    if data.target is not None:
        item = _by(data.targets(train), data.targets(test), label, prior)
        scores_of["item"] = item
        scores_of["both"] = client[0] + item[0] - level, client[1] + item[1] - level
    return scores_of


def _by(train: Tensor, test: Tensor, label: Tensor, prior: float) -> tuple[Tensor, Tensor]:
    """The logit of the smoothed share of positives of what each example belongs to."""
    groups = int(max(train.max(), test.max() if len(test) else 0)) + 1
    examples = torch.bincount(train, minlength=groups)
    positives = torch.bincount(train, label, minlength=groups)
    level = _logit((positives + PSEUDO * prior) / (examples + PSEUDO))
    return level[train], level[test]


def _logit(share: Tensor) -> Tensor:
    """log(p / (1−p)); finite where all labels are the same, too."""
    return torch.logit(share, eps=1e-6)


def _loss(score: Tensor, label: Tensor) -> float:
    """The mean binary cross-entropy; NaN without examples."""
    return mean_loss(logistic_loss(score, label.to(score.dtype)))
