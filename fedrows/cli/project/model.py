"""The model, in ordinary PyTorch, written for one client. Change it to your own."""

import torch
from torch import Tensor, nn

from fedrows import FederatedData


class Recommender(nn.Module):
    """How much an item is liked: a vector per item, and a small network."""

    def __init__(self, items: int, width: int = 8) -> None:
        super().__init__()
        self.item = nn.Embedding(items, width)  # the table of the column "item"
        self.mlp = nn.Sequential(nn.Linear(width, 16), nn.ReLU(), nn.Linear(16, 1))

    def forward(self, item: Tensor) -> Tensor:
        return torch.squeeze(self.mlp(self.item(item)), 1)  # one score per example


def build(data: FederatedData, seed: int) -> Recommender:
    """The model for some data, its start values drawn with a seed."""
    torch.manual_seed(seed)
    return Recommender(data.tables["item"])
