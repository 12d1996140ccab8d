"""A small recommender with every kind of column, trained in a moment, to be served."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from served_module import Shop, build

from fedrows import FederatedData, simulate
from fedrows.runs.export import Trained

COLUMNS: dict[str, Any] = {
    "client": "user", "label": "liked",
    "features": {"user": "user", "item": "item", "past": "item"},
    "numbers": ["price"], "local": ["user"], "target": ("item", None), "max_length": 3,
    "name": "shop",
}  # fmt: skip


def shop(users: int = 20, seed: int = 0) -> pd.DataFrame:
    """Who liked what: a user, an item, the items before it, and a price."""
    rng = np.random.default_rng(seed)
    count = 12 * users
    return pd.DataFrame(
        {
            "user": [f"u{i}" for i in np.repeat(np.arange(users), 12)],
            "item": rng.integers(100, 130, count),
            "past": [rng.integers(100, 130, n).tolist() for n in rng.integers(0, 5, count)],
            "price": rng.normal(size=count).round(3),
            "liked": rng.integers(0, 2, count),
        }
    )


def trained(dtype: str = "float32") -> Trained:
    data = FederatedData.from_frame(shop(), **COLUMNS)
    module = build(data, 0).to(getattr(torch, dtype))
    result = simulate(
        data, module, rounds=3, clients_per_round=8, lr=0.1, dtype=dtype, device="cpu"
    )
    return Trained.of(result, data)


def scores_by_hand(one: Trained, frame: pd.DataFrame) -> np.ndarray:
    """The scores of a frame's rows by the plain module, in a slow loop."""
    state = one.state_dict()
    module = Shop(*(one.data.tables[name] for name in ("user", "item")))
    module = module.to(state["top.bias"].dtype)
    module.load_state_dict(state)
    users, items = (one.data.vocabulary[name].tolist() for name in ("user", "item"))

    def item(value: Any) -> int:
        return items.index(int(value)) + 1 if int(value) in items else len(items) + 1

    scores = []
    for row in frame.to_dict("records"):
        user = users.index(row["user"]) if row["user"] in users else len(users)
        past = [item(x) for x in row["past"]][-3:] or [0]
        columns = [[user], [item(row["item"])], [past]]
        price = torch.tensor([row["price"]], dtype=state["top.bias"].dtype)
        with torch.no_grad():
            scores.append(float(module(*map(torch.tensor, columns), price)))
    return np.array(scores)


def write_builder(path: Path) -> str:
    """A file with the module's builder; gives its reference."""
    shutil.copy(Path(__file__).with_name("served_module.py"), path)
    return f"{path}:build"
