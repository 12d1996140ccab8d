"""Small device programs for tests: of a plain embedding with an MLP, and of `mf`.

python tests/device_programs.py FOLDER writes FOLDER/mlp and FOLDER/mf.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import torch
from torch import nn

from fedrows import catalogue
from fedrows.data.federation import FederatedData
from fedrows.device.program import DeviceProgram, build
from fedrows.lifting.lifted import Lifted
from fedrows.model import Model
from fedrows.models import mf
from fedrows.plan import Plan

ITEMS, KINDS, USERS = 40, 6, 12


class Plain(nn.Module):
    """An embedding of each feature and an MLP."""

    def __init__(self) -> None:
        super().__init__()
        self.item, self.kind = nn.Embedding(ITEMS, 4), nn.Embedding(KINDS, 3)
        self.deep = nn.Sequential(nn.Linear(7, 8), nn.ReLU(), nn.Linear(8, 1))

    def forward(self, item, kind):
        return self.deep(torch.cat([self.item(item), self.kind(kind)], 1))[:, 0]


def examples() -> dict[str, np.ndarray]:
    """Columns of a dozen clients, of 1 to 12 examples each."""
    rng = np.random.default_rng(0)
    user = np.repeat(np.arange(USERS), np.arange(1, USERS + 1))
    item = rng.integers(0, ITEMS, len(user))
    return {"user": user, "item": item, "kind": item % KINDS, "label": (item + user) % 2}


def plain() -> tuple[Model, FederatedData]:
    """The MLP, lifted over data of two fields."""
    own = examples()
    data = FederatedData.build(
        client=own["user"],
        ids={"item": own["item"], "kind": own["kind"]},
        label=own["label"].astype(float),
        test=np.zeros(len(own["user"]), dtype=bool),
        tables={"item": ITEMS, "kind": KINDS},
    )
    torch.manual_seed(0)
    return Lifted(Plain(), data), data


def factors() -> tuple[Model, FederatedData]:
    """Matrix factorisation, whose users stay on their clients."""
    own = examples()
    data = FederatedData.build(
        client=own["user"],
        ids={"user": own["user"], "item": own["item"]},
        label=own["label"].astype(float),
        test=np.zeros(len(own["user"]), dtype=bool),
        tables={"user": USERS, "item": ITEMS},
        local=["user"],
    )
    return mf.build(data, 0, factors=4), data


def program(
    made: tuple[Model, FederatedData], algorithm: str = "fedsubavg", **settings: object
) -> DeviceProgram:
    """The program of a model and its data."""
    plan = Plan(device="cpu", **settings)  # type: ignore[arg-type]
    return build(*made, plan, catalogue.algorithm(algorithm)())


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    program(plain()).save(folder / "mlp")
    program(factors()).save(folder / "mf")
