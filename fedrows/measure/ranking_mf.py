"""Matrix factorisation in one place by Adam, for rankings: how well a plain model ranks.

    score(u, m) = b_m + ⟨p_u, q_m⟩

Every epoch gives each positive `negatives` items that its client does not hold in training, drawn
anew, and lowers the cross-entropy of all of them by themselves. The epoch with the best NDCG@10 on
validation examples wins, and training ends when it has not been beaten for a while.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fedrows.data.federation import FederatedData
from fedrows.data.fresh_negatives import items_of
from fedrows.measure.ranked_items import Candidates, RankedItems, RankScorer
from fedrows.measure.ranking import METRICS
from fedrows.model import logistic_loss

PATIENCE = 3  # epochs
CHOOSES = METRICS["ndcg10"]


class RankingMF:
    """Factors of clients and items, and biases of items."""

    def __init__(self, data: FederatedData, factors: int, seed: int) -> None:
        self.draw = torch.Generator().manual_seed(seed)
        clients, items = len(data.test.splits) - 1, data.tables[items_of(data)[0]]
        self.p, self.q = (
            torch.randn(rows, factors, generator=self.draw) * 0.03 for rows in (clients, items)
        )
        self.bias = torch.zeros(items)

    def scorer(self, owner: Tensor) -> RankScorer:
        """The scores of candidates (b, C), or (1, C) for all, of examples with these clients."""

        def score(some: Tensor, candidates: Tensor) -> Tensor:
            p = self.p[owner[some]]  # (b, f)
            q, bias = self.q[candidates], self.bias[candidates]  # (b, C, f) or (1, C, f)
            if len(candidates) == 1:
                return p @ q[0].T + bias
            return torch.einsum("bf,bcf->bc", p, q) + bias

        return score

    def copy_of(self) -> tuple[Tensor, ...]:
        """The numbers as they are now."""
        return tuple(x.detach().clone() for x in (self.p, self.q, self.bias))


def ranking_mf(
    data: FederatedData,
    factors: int = 64,
    epochs: int = 30,
    lr: float = 0.01,
    ridge: float = 0.01,
    negatives: int = 4,
    batch: int = 8192,
    seed: int = 0,
) -> RankingMF:
    """The factorisation of the training examples, at its best epoch on validation examples."""
    model = RankingMF(data, factors, seed)
    owner, item = data.train.owner.cpu(), data.targets(data.train).cpu()
    held, (low, high) = _held(data, owner, item), items_of(data)[1]
    params = [x.requires_grad_() for x in (model.p, model.q, model.bias)]
    optimiser = torch.optim.Adam(params, lr=lr)
    cpu = torch.device("cpu")
    validation = RankedItems(data, "validation", cpu, Candidates(data, cpu))
    best, waited, chosen = -1.0, 0, model.copy_of()
    for _ in range(epochs):
        for some in torch.randperm(len(item), generator=model.draw).split(batch):
            client = owner[some]
            drawn = torch.randint(low, high, (len(some), negatives), generator=model.draw)
            pairs = client[:, None] * high + drawn
            position = torch.searchsorted(held, pairs).clamp(max=len(held) - 1)
            real = held[position] != pairs  # what a client holds is no negative
            candidates = torch.cat([item[some, None], drawn], 1)  # (b, 1 + r)
            p, q = model.p[client], model.q[candidates]  # (b, f), (b, 1 + r, f)
            scores = torch.einsum("bf,bcf->bc", p, q) + model.bias[candidates]
            label = torch.zeros_like(scores)
            label[:, 0] = 1
            counts = torch.cat([torch.ones_like(real[:, :1]), real], 1)
            penalty = p.square().sum(1) + q.square().sum((1, 2))
            optimiser.zero_grad()
            losses = (logistic_loss(scores, label) * counts).sum(1) + ridge / 2 * penalty
            losses.mean().backward()
            optimiser.step()
        with torch.no_grad():
            ranks, _ = validation.among_sampled(model.scorer(validation.owner))
        now, waited = float(CHOOSES(ranks).mean()), waited + 1
        if now > best or not validation.count:
            best, waited, chosen = now, 0, model.copy_of()
        if waited > PATIENCE:
            break
    model.p, model.q, model.bias = chosen
    return model


def _held(data: FederatedData, owner: Tensor, item: Tensor) -> Tensor:
    """Every pair of a client and an item that it holds in training, as a number each, sorted."""
    _, high = items_of(data)[1]
    return torch.unique(owner * high + item)
