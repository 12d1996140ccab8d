"""Federations in the shapes that models are timed at, and the models for them.

lr     MovieLens, or made data of its size: five features an example; K = 50, I = 10, B = 5
lstm   texts of 30 words; embedding 25, two layers of 100; K = 50, I = 10, B = 5
din    a user, an item and a history of 100, 18 wide (Amazon's shapes); K = 100, I = 10, B = 4
own    a module with no layer of fedrows in it: two embeddings and an MLP; K = 50, I = 10, B = 5
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedrows import catalogue
from fedrows.data.federation import FederatedData
from fedrows.errors import DataError
from fedrows.lifting.lifted import Lifted
from fedrows.model import Model
from fedrows.models import din, lstm
from fedrows.models.logistic import Logistic
from fedrows.plan import Plan

CLIENTS, EXAMPLES = 1_000, 40


@dataclass(frozen=True)
class Shape:
    """A model, data for it, and how many clients take how many steps of how many examples."""

    data: FederatedData
    model: Callable[[], Model]
    plan: Plan


class TwoTower(nn.Module):
    """What a user might write: a user's and an item's embedding, and an MLP over both."""

    def __init__(self, users: int, items: int, width: int = 16, sparse: bool = False) -> None:
        super().__init__()
        self.user = nn.Embedding(users, width, sparse=sparse)
        self.item = nn.Embedding(items, width, sparse=sparse)
        self.mlp = nn.Sequential(
            nn.Linear(3 * width, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 1)
        )

    def forward(self, user: Tensor, item: Tensor) -> Tensor:
        u, i = self.user(user), self.item(item)
        return self.mlp(torch.cat([u, i, u * i], -1))[:, 0]


def replace_plan(shape: Shape, **changes: Any) -> Shape:
    """The same with other numbers in its plan."""
    return replace(shape, plan=replace(shape.plan, **changes))


def ratings(device: str) -> Shape:
    """MovieLens' shapes."""
    data = movielens_or_alike()
    return Shape(data, lambda: Logistic(data), Plan(rounds=10**9, device=device))


def movielens_or_alike() -> FederatedData:
    """MovieLens if the file is there, else made data with as many clients, items and examples."""
    task = catalogue.task("movielens")
    try:
        return task.load(task.options())
    except DataError:
        task = catalogue.task("synthetic")
        size = {"clients": 6040, "items": 3706, "examples_per_client": 165}
        return task.load(task.options(**size))


def texts(device: str) -> Shape:
    """Sent140's shapes."""
    rng, words = np.random.default_rng(0), 10_000
    ids = np.minimum(rng.zipf(1.3, (CLIENTS * EXAMPLES, 30)), words - 1)
    mood = rng.normal(0.1, 0.3, words)  # a word's part in what a text is labelled
    data = FederatedData.build(
        client=_owner(),
        ids={"text": ids},
        tables={"text": words},
        label=(mood[ids].sum(1) > rng.logistic(size=len(ids))).astype(int),
        test=_no_test(),
        padded=["text"],
    )
    plan = Plan(rounds=10**9, clients_per_round=50, local_steps=10, batch_size=5, device=device)
    return Shape(data, lambda: lstm.build(data), plan)


def clicks(device: str) -> Shape:
    """Amazon's shapes."""
    rng, items = np.random.default_rng(0), 20_000
    seen = rng.integers(1, items, (CLIENTS, 120))  # what a client's histories are made of
    which = rng.integers(0, 120, (CLIENTS * EXAMPLES, 100))
    data = FederatedData.build(
        client=_owner(),
        ids={
            "user": _owner(),
            "item": rng.integers(1, items, CLIENTS * EXAMPLES),
            "history": seen[_owner()[:, None], which],
        },
        tables={"user": CLIENTS, "item": items},
        fields={"user": "user", "item": "item", "history": "item"},
        label=_label(rng),
        test=_no_test(),
        padded=["item"],
    )
    plan = Plan(rounds=10**9, clients_per_round=100, local_steps=10, batch_size=4, device=device)
    return Shape(data, lambda: din.build(data), plan)


def own(device: str) -> Shape:
    """A user's module."""
    rng, items = np.random.default_rng(0), 20_000
    data = FederatedData.build(
        client=_owner(),
        ids={"user": _owner(), "item": rng.integers(0, items, CLIENTS * EXAMPLES)},
        tables={"user": CLIENTS, "item": items},
        label=_label(rng),
        test=_no_test(),
    )
    torch.manual_seed(0)
    module = TwoTower(CLIENTS, items)
    plan = Plan(rounds=10**9, clients_per_round=50, local_steps=10, batch_size=5, device=device)
    return Shape(data, lambda: Lifted(module, data), plan)


def _owner() -> np.ndarray:
    return np.repeat(np.arange(CLIENTS), EXAMPLES)


def _label(rng: np.random.Generator) -> np.ndarray:
    return rng.integers(0, 2, CLIENTS * EXAMPLES)


def _no_test() -> np.ndarray:
    return np.zeros(CLIENTS * EXAMPLES, dtype=bool)
