"""The trivial baselines, on counts small enough to do by hand."""

from __future__ import annotations

from dataclasses import replace
from math import log

import numpy as np
import pytest
import torch

from fedrows.data.federation import FederatedData
from fedrows.errors import DataError
from fedrows.measure.trivial_baselines import PSEUDO, baselines, scores


def logit(share: float) -> float:
    return log(share / (1 - share))


@pytest.fixture
def data() -> FederatedData:
    """Two clients and two items; 4 of 8 training examples are positive, so p = ½."""
    return FederatedData.build(
        client=np.array([0] * 5 + [1] * 5),
        ids={"item": np.array([0, 0, 0, 1, 1, 0, 1, 1, 1, 2])},
        label=np.array([1, 1, 1, 0, 0, 1, 0, 0, 0, 1]),
        test=np.array([0, 0, 0, 0, 1, 0, 0, 0, 0, 1]),
        tables={"item": 3},
        target=("item", None),
    )


def test_means_are_pulled_towards_the_prior_by_five_examples(data):
    found = {name: test.tolist() for name, (_, test) in scores(data).items()}
    client = [logit((3 + PSEUDO / 2) / (4 + PSEUDO)), logit((1 + PSEUDO / 2) / (4 + PSEUDO))]
    item = [logit((0 + PSEUDO / 2) / (4 + PSEUDO)), 0.0]  # nobody trained on item 2: the prior
    assert PSEUDO == 5
    assert found["prior"] == pytest.approx([0.0, 0.0])
    assert found["client"] == pytest.approx(client)
    assert found["item"] == pytest.approx(item)
    assert found["both"] == pytest.approx([client[0] + item[0], client[1] + item[1]])


def test_training_examples_get_the_means_of_their_own_client_and_item(data):
    train = scores(data)["item"][0]
    liked = logit((4 + 2.5) / 9)
    assert train.tolist() == pytest.approx(
        [liked, liked, liked, -liked, liked, -liked, -liked, -liked]
    )


def test_metrics_of_the_prior_are_those_of_a_constant(data):
    prior = baselines(data)["prior"]
    assert prior["test_loss"] == pytest.approx(log(2))
    assert prior["train_loss"] == pytest.approx(log(2))
    assert prior["test_auc"] == 0.5
    assert prior["test_accuracy"] == 0.5  # a score of 0 predicts the negative class


def test_metrics_of_the_items_mean(data):
    item = baselines(data)["item"]
    cold = logit(2.5 / 9)
    wanted = (-log(1 - 1 / (1 + np.exp(-cold))) + log(2)) / 2
    assert item["test_loss"] == pytest.approx(wanted)
    assert item["test_auc"] == 1.0


def test_train_loss_is_over_the_sample_that_runs_are_measured_on(data):
    one = baselines(data, train_sample=1)["client"]["train_loss"]
    assert one != pytest.approx(baselines(data)["client"]["train_loss"])


def test_without_a_target_there_is_no_items_mean(data):
    assert list(baselines(replace(data, target=None))) == ["prior", "client"]


def test_labels_of_one_class_give_finite_scores():
    data = FederatedData.build(
        client=np.array([0, 0, 1]),
        ids={"item": np.array([0, 1, 1])},
        label=np.ones(3),
        test=np.array([False, True, False]),
        tables={"item": 2},
        target=("item", None),
    )
    assert all(torch.isfinite(part).all() for both in scores(data).values() for part in both)


def test_other_labels_than_binary_are_refused(data):
    with pytest.raises(DataError, match="binary"):
        baselines(replace(data, labels="classes"))


def test_amazon_is_decided_by_counting(data_folder):
    """Half of what a model seems to know there is who asks: AUC 0.704, and 0.73 with the item."""
    from fedrows.data.amazon_log import AmazonOptions, read

    found = baselines(
        read(data_folder / "amazon" / "authors_train.tsv.gz", "authors", AmazonOptions())
    )
    assert found["client"]["test_auc"] == pytest.approx(0.704, abs=0.001)
    assert found["both"]["test_auc"] == pytest.approx(0.7325, abs=0.001)
