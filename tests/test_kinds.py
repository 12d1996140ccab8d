"""Kinds of examples: numbers beside ids, weights, classes and numbers as labels."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import nn

from fedrows.data.federation import FederatedData
from fedrows.errors import DataError, ModelError
from fedrows.lifting.lifted import Lifted
from fedrows.notebook.simulate import simulate

SETTINGS = {"rounds": 40, "clients_per_round": 10, "lr": 0.5, "device": "cpu"}


def federation(label, **more) -> FederatedData:
    """Twenty clients; item and price say what the label is."""
    rng = np.random.default_rng(0)
    count = 1_000
    item, price = rng.integers(0, 12, count), rng.normal(size=count)
    return FederatedData.build(
        client=rng.integers(0, 20, count),
        ids={"item": item},
        numbers={"price": price, "both": np.stack([price, price**2], 1)},
        label=label(item, price),
        test=np.arange(count) % 5 == 0,
        tables={"item": 12},
        **more,
    )


class Head(nn.Module):
    """An item's vector and two numbers into one score, or into one per class."""

    def __init__(self, classes: int = 0) -> None:
        super().__init__()
        self.item = nn.Embedding(12, 4)
        self.out = nn.Linear(4 + 3, max(classes, 1))
        self.classes = classes

    def forward(self, item, price, both):
        scores = self.out(torch.cat([self.item(item), price[:, None], both], 1))
        return scores if self.classes else scores[:, 0]


def test_numbers_reach_the_module():
    torch.manual_seed(0)
    data = federation(lambda item, price: price > 0)
    last = simulate(data, Head(), **SETTINGS).history[-1]
    assert last["test_auc"] > 0.95


def test_classes_are_learnt_and_have_no_auc():
    torch.manual_seed(0)
    data = federation(lambda item, price: item % 3, labels="classes")
    last = simulate(data, Head(3), **SETTINGS).history[-1]
    assert last["test_accuracy"] > 0.9
    assert last["test_loss"] < math.log(3)
    assert math.isnan(last["test_auc"])
    assert all(math.isnan(bucket["auc"]) for bucket in last["buckets"])


def test_numbers_are_learnt_as_labels():
    torch.manual_seed(0)
    data = federation(lambda item, price: item / 6 + price, labels="numbers")
    last = simulate(data, Head(), **{**SETTINGS, "lr": 0.1}).history[-1]
    prior = float(data.test.label.var() / 2)  # of always saying the mean
    assert last["test_loss"] < prior / 20
    assert math.isnan(last["test_accuracy"])


def test_an_example_of_weight_0_has_no_say():
    """Half of the labels are wrong, and weigh nothing."""
    torch.manual_seed(0)
    wrong = np.arange(1_000) % 2 == 1
    data = federation(lambda item, price: (price > 0) ^ wrong, weight=~wrong)
    result = simulate(data, Head(), **SETTINGS)
    scores = result.model.scores(result.params, data.test.fields(torch.arange(len(data.test))))
    right = data.test.numbers["price"] > 0
    assert ((scores > 0) == right).float().mean() > 0.95


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        ({"labels": "binary"}, "'label' is 2 in example .*, but binary labels are 0 or 1"),
        ({"labels": "colours"}, "labels is 'colours', but must be one of binary, classes, numbers"),
        ({"labels": "classes", "weight": -np.ones(1_000)}, "'weight' is -1.0 in example 0"),
    ],
)
def test_bad_kinds_are_named(more, sentence):
    with pytest.raises(DataError, match=sentence):
        federation(lambda item, price: item % 3, **more)


def test_classes_need_a_score_each():
    data = federation(lambda item, price: item % 3, labels="classes")
    with pytest.raises(ModelError, match=r"shape \(2,\) for 2 examples.*\(2, classes\)"):
        Lifted(Head(), data)
