"""How much a coin is liked: a vector per coin and a linear layer, in plain PyTorch."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fedrows import FederatedData


class Taste(nn.Module):
    """One score per example."""

    def __init__(self, coins: int, width: int = 4) -> None:
        super().__init__()
        self.coin = nn.Embedding(coins, width)  # the table of the field "coin"
        self.score = nn.Linear(width, 1)

    def forward(self, coin: Tensor) -> Tensor:
        return self.score(self.coin(coin))[:, 0]


def build(data: FederatedData, seed: int) -> Taste:
    """The model for some data, its start values drawn with a seed."""
    torch.manual_seed(seed)
    return Taste(data.tables["coin"])
