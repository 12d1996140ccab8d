"""What both sides share: where a node's data come from, and the model. Change it to your own."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import Tensor, nn

from fedrows import FederatedData, Hashed
from fedrows.flower.wire.contract import DeployedTask

ITEMS = 2_048  # rows of the table; every item is hashed to one, so no list of items is shared


def read(file: Path) -> FederatedData:
    """A file of ratings as clients: one per user, the last fifth of each held out."""
    frame = pd.read_csv(file)
    frame["liked"] = frame["stars"] >= 4
    return FederatedData.from_frame(
        frame,
        client="user",
        label="liked",
        features=["item"],
        tables={"item": Hashed(ITEMS)},
        test=0.2,
        name="ratings",
    )


def shard(config: Mapping[str, Any]) -> FederatedData:
    """On a node: the ratings that it holds, in the file that `--shard` names."""
    return read(Path(str(config["shard"])))


def server(config: Mapping[str, Any]) -> FederatedData:
    """On the server: a sample that may be shown to it, to evaluate on."""
    return read(Path(str(config["ratings-sample"])))


class Recommender(nn.Module):
    """How much an item is liked: a vector per item, and a small network."""

    def __init__(self, items: int, width: int = 8) -> None:
        super().__init__()
        self.item = nn.Embedding(items, width)  # the table of the column "item"
        self.mlp = nn.Sequential(nn.Linear(width, 16), nn.ReLU(), nn.Linear(16, 1))

    def forward(self, item: Tensor) -> Tensor:
        return torch.squeeze(self.mlp(self.item(item)), 1)  # one score per example


def model(data: FederatedData, seed: int) -> nn.Module:
    """The module that training starts from, the same on both sides."""
    torch.manual_seed(seed)
    return Recommender(data.tables["item"])


TASK = DeployedTask("ratings", shard, model, server)
