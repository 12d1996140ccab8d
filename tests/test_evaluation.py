"""The evaluator on a federation small enough to work out by hand."""

import json
import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from fedrows.data.federation import FederatedData
from fedrows.measure import evaluation
from fedrows.measure.evaluation import Evaluator
from fedrows.models.logistic import Logistic
from fedrows.plan import Plan
from fedrows.rows.params import Params

NAN = pytest.approx(math.nan, nan_ok=True)
PLAN = Plan(device="cpu")
KEYS = ["train_loss", "test_loss", "test_accuracy", "test_auc", "test_gauc", "buckets"]

# client, item, label, held out
ROWS = [
    ("ann", 0, 1, False),
    ("ann", 1, 0, False),
    ("ann", 0, 1, True),
    ("ann", 1, 0, True),
    ("bob", 0, 1, False),
    ("bob", 0, 1, True),
    ("bob", 2, 1, True),
    ("cem", 0, 0, False),
    ("cem", 0, 0, False),
    ("dot", 0, 0, False),
    ("eve", 0, 1, True),  # eve has nothing to train on
    ("eve", 1, 0, True),
    ("eve", 0, 0, True),
]


def federation(rows: list[tuple[str, int, int, bool]] = ROWS, **about: Any) -> FederatedData:
    client, item, label, test = (np.array(column) for column in zip(*rows, strict=True))
    return FederatedData.build(
        client=client, ids={"item": item}, label=label, test=test, tables={"item": 5}, **about
    )


def items(*weights: float, bias: float = 0.0) -> Params:
    return Params({"item": torch.tensor(weights)[:, None]}, {"bias": torch.tensor(bias)})


def softplus(x: float) -> float:
    return math.log1p(math.exp(x))


def test_metrics_by_hand() -> None:
    data = federation()
    found = Evaluator(Logistic(data), data, PLAN)(items(2, -1, 1, 0, 0))
    assert list(found) == KEYS
    # Training examples: item 0 liked by ann and bob, disliked twice by cem and once by dot;
    # item 1 disliked by ann. The loss of a liked item is softplus(−score), else softplus(score).
    train = 2 * softplus(-2) + 3 * softplus(2) + softplus(-1)
    assert found["train_loss"] == pytest.approx(train / 6)
    # Test examples: item 0 liked three times and disliked once, item 1 disliked twice, item 2
    # liked once.
    hot, cold, never = 3 * softplus(-2) + softplus(2), 2 * softplus(-1), softplus(-1)
    assert found["test_loss"] == pytest.approx((hot + cold + never) / 7)
    assert found["test_accuracy"] == pytest.approx(6 / 7)
    # Positives 2, 2, 2, 1 against negatives 2, −1, −1: 3·(½ + 1 + 1) + (0 + 1 + 1) of 12 pairs.
    assert found["test_auc"] == pytest.approx(9.5 / 12)
    # ann: 1, two examples. eve: ½ and 1 make ¾, three examples. bob likes all he has seen.
    assert found["test_gauc"] == pytest.approx((2 * 1 + 3 * 0.75) / 5)
    # Item 2 is in nobody's training data, item 1 in ann's, item 0 in those of four.
    assert found["buckets"] == [
        {"low": 0, "high": 0, "examples": 1, "loss": pytest.approx(never), "auc": NAN},
        {"low": 1, "high": 3, "examples": 2, "loss": pytest.approx(cold / 2), "auc": NAN},
        {"low": 4, "high": 10, "examples": 4, "loss": pytest.approx(hot / 4), "auc": 0.5},
    ]


def test_facts_by_hand() -> None:
    data = federation(best_loss=0.5)
    facts = Evaluator(Logistic(data), data, PLAN).facts()
    assert facts == {
        "clients": 4,
        "clients_without_training_data": 1,
        "train_examples": 6,
        "test_examples": 7,
        "examples_per_client": 13 / 4,
        "best_loss": 0.5,
        "unseen_target_share": 1 / 7,
        "one_class_clients": 1,
        "bytes_full_model": 4 * (5 + 1),
        "heat": [
            {
                "table": "item",
                "group": "item",
                "features": 2,
                "smallest": 1,
                "largest": 4,
                "dispersion": 4.0,
                "histogram": [[1, 1], [4, 1]],
            }
        ],
    }
    assert json.loads(json.dumps(facts)) == facts
    double = Evaluator(Logistic(data), data, replace(PLAN, dtype="float64"))
    assert double.facts()["bytes_full_model"] == 8 * (5 + 1)


def test_heat_is_told_group_by_group() -> None:
    data = federation(groups={"item": {"old": (0, 2), "new": (2, 5), "first": (0, 1)}})
    old, new, first = Evaluator(Logistic(data), data, PLAN).facts()["heat"]
    assert [old["group"], new["group"], first["group"]] == ["old", "new", "first"]
    assert old["histogram"] == [[1, 1], [4, 1]]
    assert first["histogram"] == [[4, 1]]
    assert new == {
        "table": "item",
        "group": "new",
        "features": 0,
        "smallest": None,
        "largest": None,
        "dispersion": None,
        "histogram": [],
    }


def test_the_target_may_be_one_column_of_a_field() -> None:
    data = FederatedData.build(
        client=np.array([0, 0, 1, 1]),
        ids={"seen": np.array([[0, 1], [0, 2], [0, 1], [0, 3]])},
        label=np.array([1, 0, 0, 1]),
        test=np.array([False, True, False, True]),
        tables={"seen": 4},
        target=("seen", 1),
    )
    evaluator = Evaluator(Logistic(data), data, PLAN)
    assert evaluator.facts()["unseen_target_share"] == 1
    (never,) = evaluator(evaluator.model.start())["buckets"]
    expected = {"low": 0, "high": 0, "examples": 2, "loss": pytest.approx(math.log(2)), "auc": 0.5}
    assert never == expected


def test_an_empty_test_set() -> None:
    data = federation([row for row in ROWS if not row[3]])
    evaluator = Evaluator(Logistic(data), data, PLAN)
    found = evaluator(items(0, 0, 0, 0, 0))
    assert list(found) == KEYS
    assert found["train_loss"] == pytest.approx(math.log(2))
    assert all(math.isnan(found[key]) for key in KEYS[1:5])
    assert found["buckets"] == []
    facts = evaluator.facts()
    assert facts["unseen_target_share"] is None
    assert (facts["test_examples"], facts["one_class_clients"]) == (0, 0)


def test_a_diverged_model_gets_nan() -> None:
    data = federation()
    found = Evaluator(Logistic(data), data, PLAN)(items(0, 0, 0, 0, 0, bias=math.nan))
    assert all(math.isnan(found[key]) for key in KEYS[:5])
    assert all(math.isnan(bucket["loss"]) for bucket in found["buckets"])


def random_federation(count: int = 3000) -> FederatedData:
    rng = np.random.default_rng(0)
    item = (rng.pareto(1.0, count) * 5).astype(int) % 200
    rows = (rng.integers(0, 60, count), item, rng.integers(0, 2, count), rng.random(count) < 0.3)
    client, item, label, test = rows
    return FederatedData.build(
        client=client, ids={"item": item}, label=label, test=test, tables={"item": 200}
    )


def test_the_sample_does_not_depend_on_the_seed() -> None:
    data = random_federation()
    params = Params({"item": torch.randn(200, 1)}, {"bias": torch.tensor(0.1)})
    model = Logistic(data)
    few = [Evaluator(model, data, Plan(device="cpu", seed=s, train_sample=50)) for s in (0, 1)]
    assert len(few[0].train) == 50
    assert few[0].train.ids["item"].equal(few[1].train.ids["item"])
    assert few[0](params) == few[1](params)
    assert few[0].train_loss(params) == few[0](params)["train_loss"]
    every = Evaluator(model, data, PLAN)
    assert len(every.train) == len(data.train) < PLAN.train_sample
    assert every.train.ids["item"].equal(data.train.ids["item"])


def test_a_model_of_the_pooled_data_is_measured_alike() -> None:
    data = random_federation()
    params = Params({"item": torch.randn(200, 1)}, {"bias": torch.tensor(0.1)})
    federated, central = Logistic(data), Logistic(data.pooled())
    expected = Evaluator(federated, data, PLAN)
    assert Evaluator(central, data, PLAN)(params) == expected(params)
    assert Evaluator(central, data, PLAN).facts() == expected.facts()
    # Even the pooled data would only lose the heat, and with it the buckets.
    pooled = Evaluator(central, data.pooled(), PLAN)(params)
    assert pooled | {"buckets": None} == expected(params) | {"buckets": None}


class Watched(Logistic):
    """Logistic regression that remembers how many examples it was asked about at once."""

    def __init__(self, data: FederatedData) -> None:
        super().__init__(data)
        self.asked: list[int] = []

    def scores(self, params: Params, ids: Mapping[str, Tensor]) -> Tensor:
        self.asked.append(len(ids["item"]))
        return super().scores(params, ids)


def test_slices_do_not_change_the_result(monkeypatch: pytest.MonkeyPatch) -> None:
    data = random_federation()
    params = Params({"item": torch.randn(200, 1)}, {"bias": torch.tensor(0.1)})
    whole = Evaluator(Logistic(data), data, PLAN)(params)
    for name, value, most in (("_EXAMPLES", 7, 7), ("_IDS", 100, 100), ("_IDS", 0, 1)):
        with monkeypatch.context() as patch:
            patch.setattr(evaluation, name, value)
            model = Watched(data)
            assert Evaluator(model, data, PLAN)(params) == whole
            assert max(model.asked) == most
            assert sum(model.asked) == len(data.train) + len(data.test)


@pytest.mark.gpu
def test_a_gpu_gives_the_same_metrics() -> None:
    if not torch.cuda.is_available():
        pytest.skip("needs a GPU")
    data = random_federation()
    params = Params({"item": torch.randn(200, 1).double()}, {"bias": torch.tensor(0.1).double()})
    plan = Plan(device="cuda", dtype="float64")
    model = Logistic(data)
    there = Evaluator(model, data, plan)(params.map(Tensor.cuda))
    here = Evaluator(model, data, replace(plan, device="cpu"))(params)
    buckets = zip(there.pop("buckets"), here.pop("buckets"), strict=True)
    assert there == pytest.approx(here, rel=1e-12)
    for found, expected in buckets:
        assert found == pytest.approx(expected, rel=1e-12, nan_ok=True)
    moved = Evaluator(model, data.to(torch.device("cuda"), torch.float64), plan)
    assert moved.facts() == Evaluator(model, data, plan).facts()
