"""Plain modules, and three clients' examples for them: what the tests of lifting share."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from fedrows import Simulation
from fedrows.algorithms.fedsubavg import FedSubAvg
from fedrows.data.federation import FederatedData
from fedrows.lifting.lifted import Lifted
from fedrows.plan import Plan
from fedrows.rows.params import Params


def federation(kinds: int = 2) -> FederatedData:
    return FederatedData.build(
        client=np.array([0, 0, 1, 1, 2]),
        ids={
            "item": np.array([[0, 1], [1, 2], [2, 2], [3, 0], [4, 1]]),
            "kind": np.array([0, 1, 0, 1, 1]),
        },
        label=np.array([0, 1, 1, 0, 1]),
        test=np.array([False, False, False, False, False]),
        tables={"item": 5, "kind": kinds},
    )


def trained(data: FederatedData, model: Lifted, **changes) -> Params:
    """The model's numbers after three rounds, or as the changes to the plan say."""
    plan = {"rounds": 3, "clients_per_round": 2, "lr": 0.5, "device": "cpu", **changes}
    simulation = Simulation(data, model, FedSubAvg(), Plan(**plan))
    for _ in simulation:
        simulation.evaluate()
    return simulation.progress.whole()


class Net(nn.Module):
    """An ordinary module: two embeddings and a dense layer."""

    def __init__(self, rows: int = 5, **embedding) -> None:
        super().__init__()
        self.item = nn.Embedding(rows, 3, **embedding)
        self.kind = nn.Embedding(2, 2)
        self.layer = nn.Linear(5, 1)

    def features(self, item: Tensor, kind: Tensor) -> Tensor:
        return torch.cat([self.item(item).mean(1), self.kind(kind)], 1)  # (B, 5)

    def forward(self, item: Tensor, kind: Tensor) -> Tensor:
        return self.layer(self.features(item, kind))[:, 0]


class Renamed(nn.Module):
    """The tables' embeddings under other names, one of them inside another module."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Net()
        self.kinds = nn.Embedding(2, 1)
        del self.inner.kind, self.inner.layer

    def forward(self, item: Tensor, kind: Tensor) -> Tensor:
        return self.inner.item(item).sum((1, 2)) + self.kinds(kind)[:, 0]


class Twice(Net):
    """Two embeddings of one feature, as in factorisation machines."""

    def __init__(self, bag: bool = False) -> None:
        super().__init__()
        self.item = nn.EmbeddingBag(5, 1, mode="sum") if bag else nn.Embedding(5, 1)
        self.factors = nn.Embedding(5, 2)
        self.bag = bag

    def forward(self, item, kind):
        linear = self.item(item)[:, 0] if self.bag else self.item(item).sum((1, 2))
        return linear + self.factors(item).prod(1).sum(1) + self.kind(kind).sum(1)


class Dropping(Net):
    def __init__(self) -> None:
        super().__init__()
        self.drop = nn.Dropout(0.5)

    def forward(self, item, kind):
        return self.layer(self.drop(self.features(item, kind)))[:, 0]


class Recurrent(Net):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(3, 3, batch_first=True)

    def forward(self, item, kind):
        last = self.lstm(self.item(item))[0][:, -1]
        return self.layer(torch.cat([last, self.kind(kind)], 1))[:, 0]


class Normed(Net):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(5)

    def forward(self, item, kind):
        return self.layer(self.norm(self.features(item, kind)))[:, 0]


class Branching(Net):
    def forward(self, item, kind):
        return super().forward(item, kind) * (2 if item.sum() > 3 else 1)


class Inner(nn.Module):
    """Does something to what goes through it."""

    def __init__(self, change) -> None:
        super().__init__()
        self.change = change

    def forward(self, x):
        return self.change(x)


class Around(Net):
    """A part deep inside does something that a cohort may not be able to."""

    def __init__(self, change) -> None:
        super().__init__()
        self.deep = nn.Sequential(nn.Identity(), Inner(change))

    def forward(self, item, kind):
        return self.layer(self.deep(self.features(item, kind)))[:, 0]


def positive(x: Tensor) -> Tensor:
    return x * (len(x[x > 0]) / x.numel())
