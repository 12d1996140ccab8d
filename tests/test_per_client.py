"""Results client by client agree with the metrics over all, and with a plain loop."""

from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

import fedrows
from fedrows.errors import UnknownNameError
from fedrows.measure.metrics import auc


class Net(nn.Module):
    def __init__(self, classes: int | None) -> None:
        super().__init__()
        self.item, self.classes = nn.Embedding(10, classes or 1), classes

    def forward(self, item: torch.Tensor) -> torch.Tensor:
        return self.item(item) if self.classes else self.item(item)[:, 0]


@pytest.mark.parametrize("labels", ["binary", "classes", "numbers"])
def test_means_over_clients_are_the_metrics_over_all(labels: str) -> None:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"user": rng.integers(0, 9, 300), "item": rng.integers(0, 10, 300)})
    frame["y"] = rng.integers(0, 2 if labels == "binary" else 3, 300)
    data = fedrows.FederatedData.from_frame(
        frame, client="user", label="y", features=["item"], tables={"item": 10}, labels=labels,
        test=0.4,
    )  # fmt: skip
    net = Net(3 if labels == "classes" else None)
    result = fedrows.simulate(data, net, rounds=3, lr=0.1)
    found = pd.DataFrame(result.per_client())
    assert found["examples"].sum() == len(data.test)
    assert set(found["client"]) <= set(range(9))
    means: dict[str, Any] = {"loss": "test_loss", "accuracy": "test_accuracy", "mae": "test_mae"}
    checked = [name for name in means if name in found]
    assert checked == {"binary": ["loss", "accuracy"], "classes": ["loss", "accuracy"],
                       "numbers": ["loss", "mae"]}[labels]  # fmt: skip
    assert result.metrics is not None
    for name in checked:
        mean = np.average(found[name], weights=found["examples"])
        assert mean == pytest.approx(result.metrics[means[name]], rel=1e-5)
    if labels == "numbers":
        square = np.average(found["rmse"] ** 2, weights=found["examples"])
        assert np.sqrt(square) == pytest.approx(result.metrics["test_rmse"], rel=1e-5)
    if labels == "binary":
        first = data.test.of(torch.tensor([0]))
        net.load_state_dict(result.state_dict())
        scores = net(first.fields(torch.arange(len(first)))["item"])
        assert found["auc"][0] == pytest.approx(auc(scores.detach(), first.label))


def test_other_examples_can_be_asked_for() -> None:
    data = fedrows.FederatedData.from_frame(
        {"user": [0, 0, 1, 1, 1], "item": [0, 1, 2, 3, 4], "y": [0, 1, 0, 1, 1]},
        client="user", label="y", features=["item"], tables={"item": 10}, test=0.0,
    )  # fmt: skip
    result = fedrows.simulate(data, Net(None), rounds=1, lr=0.1)
    assert result.per_client("train")["examples"].tolist() == [2, 3]
    assert result.per_client()["client"].tolist() == []
    with pytest.raises(UnknownNameError, match="did you mean train"):
        result.per_client("trian")
