"""EASE (Steck 2019): every item as a ridge regression on all others, in closed form.

    P = (XᵀX + λI)⁻¹,   B = I − P / diag P,   scores X B

X (clients, items) has a 1 for every positive training example. Scores order items; they are no
logits.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fedrows.data.examples import Examples
from fedrows.data.federation import FederatedData
from fedrows.errors import DataError
from fedrows.measure.anchors import ExampleScorer

MOST = 2e8  # numbers in a matrix


def ease(data: FederatedData, ridge: float = 300.0) -> ExampleScorer:
    """The scores of the target of every example, given what its client likes in training.

    Examples may have several candidates each: then the scores are (n, C).
    """
    table = ease_scores(data, ridge)

    def scorer(part: Examples) -> Tensor:
        client, item = part.owner.cpu(), data.targets(part).cpu()
        return table[client.view(-1, *[1] * (item.dim() - 1)), item]

    return scorer


def ease_scores(data: FederatedData, ridge: float = 300.0) -> Tensor:
    """The score of every client and item: (clients, items)."""
    if data.target is None:
        raise DataError(f"The examples of {data.name} have no target: leave EASE out.")
    clients, items = len(data.test.splits) - 1, data.tables[data.fields[data.target[0]]]
    if items * max(items, clients) > MOST:
        raise DataError(
            f"EASE has matrices of {items:,} × {items:,} and {clients:,} × {items:,} numbers on "
            f"{data.name}, which is too much: leave it out."
        )
    train = data.train
    liked = train.label.cpu() > 0.5
    x = torch.zeros(clients, items)
    x[train.owner.cpu()[liked], data.targets(train).cpu()[liked]] = 1
    gram = (x.T @ x).double()
    inverse = torch.linalg.inv(gram + ridge * torch.eye(items, dtype=torch.float64))
    weights = -inverse / inverse.diagonal()  # column m divided by P_mm
    weights.fill_diagonal_(0)
    return x @ weights.float()
