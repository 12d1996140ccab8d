"""Numbers are scaled alike in training, in stores, in new rows and in what is served."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor, nn

import fedrows
from fedrows import FederatedData, Scaled
from fedrows.data.encoder import Encoder
from fedrows.errors import DataError
from fedrows.runs.export import Trained
from fedrows.serving.bundle import save_bundle

PRICE = Scaled(center=4.0, spread=2.0)
COLUMNS: dict[str, Any] = {
    "client": "user", "label": "like", "features": ["item"], "test": "held",
    "numbers": {"price": PRICE, "age": None},
}  # fmt: skip


def log() -> pd.DataFrame:
    return pd.DataFrame(
        {
            "user": [1, 1, 2, 2, 3, 3],
            "item": [5, 7, 5, 9, 7, 9],
            "price": [1.0, 2.0, 3.0, 4.0, 5.0, 8.0],
            "age": [1, 2, 3, 4, 5, 6],
            "like": [1, 0, 1, 1, 0, 0],
            "held": [False] * 5 + [True],
        }
    )


class Priced(nn.Module):
    def __init__(self, items: int) -> None:
        super().__init__()
        self.item, self.top = nn.Embedding(items, 1), nn.Linear(2, 1)

    def forward(self, item: Tensor, price: Tensor, age: Tensor) -> Tensor:
        return self.item(item)[:, 0] + self.top(torch.stack([price, age], 1))[:, 0]


def test_numbers_reach_the_model_less_their_center_in_units_of_their_spread() -> None:
    data = FederatedData.from_frame(log(), **COLUMNS)
    assert data.train.numbers["price"].tolist() == [-1.5, -1.0, -0.5, 0.0, 0.5]
    assert data.test.numbers["price"].tolist() == [2.0]
    assert data.train.numbers["age"].tolist() == [1, 2, 3, 4, 5]
    new = data.encode({"item": ["5"], "price": ["9"], "age": [40]})  # also numbers that are text
    assert new.examples.numbers["price"].tolist() == [2.5]
    assert new.examples.numbers["age"].tolist() == [40]
    assert data.encoder is not None
    assert Encoder.from_facts(data.encoder.as_facts()) == data.encoder


def test_stores_and_files_scale_and_remember(tmp_path: Path) -> None:
    data = FederatedData.from_frame(log(), **COLUMNS)
    fedrows.save_data(data, tmp_path / "store")
    log().to_parquet(tmp_path / "log.parquet")
    for other in (
        fedrows.open_data(tmp_path / "store"),
        fedrows.read_parquet(tmp_path / "log.parquet", store=tmp_path / "read", **COLUMNS),
        fedrows.read_parquet(tmp_path / "log.parquet", store=tmp_path / "read", **COLUMNS),
    ):
        torch.testing.assert_close(other.train.numbers["price"], data.train.numbers["price"])
        assert other.encode(log()).examples.numbers["price"][0] == -1.5
    others = COLUMNS | {"numbers": {"price": Scaled(1.0, 2.0), "age": None}}
    again = fedrows.read_parquet(tmp_path / "log.parquet", store=tmp_path / "read", **others)
    assert again.train.numbers["price"][0] == 0.0  # not what the store was made with before


def test_a_bundle_scales_raw_numbers(tmp_path: Path) -> None:
    data = FederatedData.from_frame(log(), **COLUMNS)
    module = Priced(data.tables["item"])
    result = fedrows.simulate(data, module, rounds=2, clients_per_round=2, lr=0.1, device="cpu")
    save_bundle(Trained.of(result, data), tmp_path / "m.fedrows", onnx=False)
    served = fedrows.load(tmp_path / "m.fedrows", module)
    module.load_state_dict(result.state_dict())
    row = [data.vocabulary["item"].tolist().index(9)]
    with torch.no_grad():
        wanted = module(torch.tensor(row), torch.tensor([2.0]), torch.tensor([6.0]))
    found = served.predict(log().iloc[5:]).scores
    np.testing.assert_allclose(found, wanted.numpy(), atol=1e-6)


def test_mean_and_standard_deviation_of_some_values() -> None:
    assert Scaled.of([1.0, 3.0, float("nan")]) == Scaled(2.0, 1.0)
    assert Scaled.of(pd.Series([2, 6])) == Scaled(4.0, 2.0)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Scaled(spread=0), "spread of scaled numbers is 0, but must be above 0"),
        (lambda: Scaled(center=float("nan")), "center of scaled numbers is nan"),
        (lambda: Scaled(center="4"), "center of scaled numbers is '4'"),  # type: ignore[arg-type]
        (lambda: Scaled.of([5, 5]), "numbers that are all the same"),
        (lambda: Scaled.of(["a"]), "takes numbers"),
        (lambda: Scaled.of([]), "no number to go by"),
        (lambda: FederatedData.from_frame(log(), **COLUMNS | {"numbers": {"age": 3}}),
         "Column 'age' is to be scaled by 3"),
        (lambda: FederatedData.from_frame(log(), **COLUMNS | {"numbers": 3}),
         "numbers is 3, but must list columns, or map"),
    ],
)  # fmt: skip
def test_scales_that_cannot_be_are_named(make: Any, said: str) -> None:
    with pytest.raises(DataError) as caught:
        make()
    assert said in str(caught.value)
    assert str(caught.value).endswith(".")
