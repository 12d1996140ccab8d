"""Matrix factorisation trained in one place by Adam: the strongest plain anchor.

    score(u, m) = b + b_u + b_m + ⟨p_u, q_m⟩,   loss + (ridge / 2) · (|p_u|² + |q_m|²)

Batches go through all examples in a new order every epoch. The epoch with the least validation loss
wins, and training ends when it has not been beaten for a while.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fedrows.data.examples import Examples
from fedrows.data.federation import FederatedData
from fedrows.measure.anchors import ExampleScorer, check_labels, loss_of
from fedrows.model import logistic_loss

PATIENCE = 2  # epochs


def adam_mf(
    data: FederatedData,
    factors: int = 16,
    epochs: int = 20,
    lr: float = 0.01,
    ridge: float = 0.05,
    batch: int = 8192,
    seed: int = 0,
) -> ExampleScorer:
    """The factorisation of the training examples, at its best epoch on validation examples."""
    check_labels(data)
    assert data.target is not None
    draw = torch.Generator().manual_seed(seed)
    client, item = data.train.owner.cpu(), data.targets(data.train).cpu()
    label = data.train.label.float().cpu()
    sizes = len(data.test.splits) - 1, data.tables[data.fields[data.target[0]]]
    factors_of = [torch.randn(rows, factors, generator=draw) * 0.03 for rows in sizes]
    biases_of = [torch.zeros(rows) for rows in sizes]
    level = torch.logit(label.mean(), eps=1e-6)
    params = [x.requires_grad_() for x in (*factors_of, *biases_of, level)]
    optimiser = torch.optim.Adam(params, lr=lr)
    least, waited, chosen = float("inf"), 0, _scorer(data, params)
    for _ in range(epochs):
        for some in torch.randperm(len(label), generator=draw).split(batch):
            p, q = params[0][client[some]], params[1][item[some]]  # (b, f)
            scores = level + params[2][client[some]] + params[3][item[some]] + (p * q).sum(1)
            penalty = (p.square().sum(1) + q.square().sum(1)) * (ridge / 2)
            optimiser.zero_grad()
            (logistic_loss(scores, label[some]) + penalty).mean().backward()
            optimiser.step()
        now, waited = _scorer(data, params), waited + 1
        loss = loss_of(now, data.validation) if len(data.validation) else -1.0
        if loss < least or not len(data.validation):
            least, waited, chosen = loss, 0, now
        if waited > PATIENCE:
            break
    return chosen


def _scorer(data: FederatedData, params: list[Tensor]) -> ExampleScorer:
    """The present numbers as a scorer, in tensors of its own."""
    p, q, of_client, of_item, level = (x.detach().clone() for x in params)

    def scorer(part: Examples) -> Tensor:
        client, item = part.owner.cpu(), data.targets(part).cpu()
        return level + of_client[client] + of_item[item] + (p[client] * q[item]).sum(1)

    return scorer
