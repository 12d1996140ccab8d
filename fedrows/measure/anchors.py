"""Centralised anchors: what models of known quality make of the same examples in one place.

They stand beside a federated curve, so that nobody takes a weak model for the cost of federation.

    logistic   a bias per client and per id of every field, by Newton's steps
    als        biases and factors of clients and items, by alternating least squares (`als`)
    adam-mf    the same by Adam on the loss (`adam_mf`)
    ease       a ridge regression of every item on all others (`ease`)

Each takes data and gives an `ExampleScorer`: a function of examples. Fits read training examples
only. How strongly they are smoothed, and when Adam stops, is chosen on validation examples if there
are any.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from fedrows.data.examples import Examples
from fedrows.data.federation import FederatedData
from fedrows.errors import DataError
from fedrows.measure.metrics import accuracy, auc, grouped_auc, mean_loss
from fedrows.model import logistic_loss

ExampleScorer = Callable[[Examples], Tensor]  # a score for each example: (n,)

RIDGES = (1.0, 3.0, 10.0)  # that are tried
SWEEPS = 20  # of Newton's steps


def check_labels(data: FederatedData) -> None:
    """Raises a DataError if the data have no items or other labels than 0 and 1."""
    if data.target is None or data.labels != "binary":
        instead = "no target" if data.target is None else f"{data.labels} as labels"
        raise DataError(
            f"The examples of {data.name} have {instead}, but anchors are fitted to clients, items "
            "and binary labels: leave them out."
        )


def logistic(data: FederatedData, ridge: float | None = None) -> ExampleScorer:
    """Logistic regression on the client and all ids, each weight pulled to 0 by a ridge.

    Lists are left out, and so are local tables: a client has its bias already.
    """
    check_labels(data)
    tried = RIDGES if ridge is None else (ridge,)
    return best([_fit_logistic(data, each) for each in tried], data)


def _fit_logistic(data: FederatedData, ridge: float) -> ExampleScorer:
    """Newton's steps with a diagonal Hessian, one column after another."""

    def columns(part: Examples) -> list[tuple[str, Tensor]]:
        """What each example reads: a table, and an id (n,), for every column of every field."""
        read = [("", part.owner.cpu())]
        for name, table in data.fields.items():
            ids = part.ids[name]
            if isinstance(ids, Tensor) and table not in data.local:
                read += [(table, x) for x in ids.cpu().reshape(len(part), -1).T]  # (L, n)
        return read

    known, label = columns(data.train), data.train.label.double().cpu()
    sizes = {"": len(data.test.splits) - 1, **data.tables}
    weights = {table: torch.zeros(sizes[table], dtype=torch.float64) for table, _ in known}
    level = torch.logit(label.mean(), eps=1e-6)
    score = level.expand(len(label)).clone()
    for _ in range(SWEEPS):
        for table, ids in known:
            own, p = weights[table], torch.sigmoid(score)
            slope = torch.bincount(ids, label - p, minlength=len(own)) - ridge * own
            curve = torch.bincount(ids, p * (1 - p), minlength=len(own)) + ridge
            step = slope / curve
            if table in data.padded:
                step[0] = 0
            step[torch.bincount(ids, minlength=len(own)) == 0] = 0  # rows of other columns
            own += step
            score += step[ids]

    def scorer(part: Examples) -> Tensor:
        return level + sum(weights[table][ids] for table, ids in columns(part))

    return scorer


def best(scorers: Sequence[ExampleScorer], data: FederatedData) -> ExampleScorer:
    """The one with the least loss on validation examples; without any, the middle one."""
    if len(scorers) == 1 or not len(data.validation):
        return scorers[len(scorers) // 2]
    losses = [loss_of(scorer, data.validation) for scorer in scorers]
    return scorers[losses.index(min(losses))]


def loss_of(scorer: ExampleScorer, part: Examples) -> float:
    """The mean loss of some examples, scores being logits."""
    return mean_loss(logistic_loss(scorer(part).double(), part.label.double().cpu()))


def measure(data: FederatedData, scorer: ExampleScorer, logits: bool = True) -> dict[str, float]:
    """Loss, accuracy, AUC and GAUC on validation and test examples, by the keys of a run's.

    logits: whether scores are logits; if not, there is no loss and no accuracy.
    """
    metrics = {}
    for name, part in (("validation", data.validation), ("test", data.test)):
        if not len(part):
            continue
        scores, label = scorer(part).double(), part.label.double().cpu()
        if logits:
            metrics[f"{name}_loss"] = mean_loss(logistic_loss(scores, label))
            metrics[f"{name}_accuracy"] = accuracy(scores, label)
        metrics[f"{name}_auc"] = auc(scores, label)
        metrics[f"{name}_gauc"] = grouped_auc(scores, label, part.owner.cpu())[0]
    return metrics
