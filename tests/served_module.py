"""The module that tests serve, in a file that a bundle may be loaded with."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fedrows import FederatedData


class Shop(nn.Module):
    """A row of the user's own, an item, the mean of the items before it, and a price."""

    def __init__(self, users: int, items: int) -> None:
        super().__init__()
        self.user = nn.Embedding(users, 4)
        self.item = nn.Embedding(items, 4, padding_idx=0)
        self.top = nn.Linear(5, 1)

    def forward(self, user: Tensor, item: Tensor, past: Tensor, price: Tensor) -> Tensor:
        seen = (past != 0).to(price.dtype)[..., None]  # (B, L, 1)
        mean = (self.item(past) * seen).sum(1) / seen.sum(1).clamp(min=1)  # (B, w)
        x = torch.cat([(self.user(user) + mean) * self.item(item), price[:, None]], 1)
        return self.top(x)[:, 0]


def build(data: FederatedData, seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return Shop(data.tables["user"], data.tables["item"])
