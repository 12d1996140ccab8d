"""Data and modules to be exported, and the scores that they must have."""

from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

from fedrows import FederatedData, Vocabulary
from fedrows.rows.ragged import Ragged
from fedrows.runs.export import (
    Trained,
)


class Tied(nn.Module):
    """One weight under two names, a buffer, and a number of the example."""

    scale: Tensor

    def __init__(self, items: int) -> None:
        super().__init__()
        self.item = nn.Embedding(items, 4)
        self.one = nn.Linear(4, 4)
        self.other = nn.Linear(4, 4)
        self.other.weight = self.one.weight
        self.register_buffer("scale", torch.tensor(2.0))

    def forward(self, item: Tensor, price: Tensor) -> Tensor:
        x = self.other(torch.relu(self.one(self.item(item))))
        return (x * price[:, None]).sum(1) * self.scale


def ratings(users: int = 20, **more: Any) -> FederatedData:
    rng = np.random.default_rng(0)
    count = 200
    user = np.concatenate([np.arange(users), rng.integers(0, users, count - users)])
    frame = pd.DataFrame(
        {
            "user": user,
            "who": user,
            "item": [f"i{x}" for x in rng.integers(0, 30, count)],
            "price": rng.normal(size=count),
            "before": [rng.integers(1, 9, n).tolist() for n in rng.integers(0, 5, count)],
            "liked": rng.integers(0, 2, count),
        }
    )
    return FederatedData.from_frame(frame, client="user", label="liked", **more)


def items() -> FederatedData:
    table = {"item": Vocabulary(min_count=5)}
    return ratings(features=["item"], numbers=["price"], tables=table)


def expected(trained: Trained) -> Tensor:
    test = trained.data.test
    fields = test.to(torch.device("cpu"), torch.float32).fields(torch.arange(len(test)))
    return trained.model.scores(trained.params, fields)


def history() -> FederatedData:
    """Data for DIN: a user, an item, and a list of earlier items."""
    rng = np.random.default_rng(1)
    count = 120
    sizes = rng.integers(0, 6, count)
    return FederatedData.build(
        client=np.arange(count) % 12,
        ids={
            "user": np.arange(count) % 12,
            "item": rng.integers(1, 40, count),
            "history": Ragged(
                torch.from_numpy(rng.integers(1, 40, sizes.sum())),
                torch.from_numpy(np.concatenate([[0], np.cumsum(sizes)])),
                6,
            ),
        },
        label=rng.integers(0, 2, count),
        test=np.arange(count) % 4 == 0,
        tables={"user": 12, "item": 40},
        fields={"user": "user", "item": "item", "history": "item"},
    )
