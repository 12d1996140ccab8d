"""The two models in plain PyTorch, for the peers that train PyTorch."""

from __future__ import annotations

import torch
from peers.worker import Federation
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits


class Logistic(nn.Module):
    """A weight for every feature, and a bias."""

    def __init__(self, rows: int) -> None:
        super().__init__()
        self.weight = nn.Embedding(rows, 1, sparse=True)
        self.bias = nn.Parameter(torch.zeros(1))
        nn.init.zeros_(self.weight.weight)

    def forward(self, ids: Tensor) -> Tensor:
        return self.weight(ids).sum(1)[:, 0] + self.bias


class Text(nn.Module):
    """Embedding 25, two layers of 100, the last word's output."""

    def __init__(self, rows: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(rows, 25, sparse=True)
        self.lstm = nn.LSTM(25, 100, 2, batch_first=True)
        self.output = nn.Linear(100, 1)

    def forward(self, ids: Tensor) -> Tensor:
        hidden, _ = self.lstm(self.embedding(ids))
        return self.output(hidden[:, -1])[:, 0]


def module_for(federation: Federation) -> nn.Module:
    """A fresh model, the same each time."""
    torch.manual_seed(0)
    return {"lr": Logistic, "lstm": Text}[federation.model](federation.rows)


@torch.no_grad()
def loss(module: nn.Module, federation: Federation) -> float:
    """The mean loss on some examples."""
    ids, label = map(torch.from_numpy, federation.some())
    return float(binary_cross_entropy_with_logits(module(ids), label))
