"""Validation examples: taken from what is not test, laid out like the test examples."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import test_amazon
import test_sent140
import test_taobao
import torch

from fedrows.data import amazon_log as amazon
from fedrows.data.federation import FederatedData
from fedrows.data.splits import Split, mark_validation
from fedrows.datasets import movielens, sent140, synthetic, taobao
from fedrows.datasets.synthetic import SyntheticOptions
from fedrows.errors import DataError
from fedrows.seeds import SPLIT, VALIDATION, choose

OWNER = np.array([0, 1, 0, 1, 0, 2])
TIME = np.array([30, 20, 10, 50, 20, 40])
TEST = np.array([1, 0, 0, 1, 0, 0], dtype=bool)


def marked(split: Split, column: np.ndarray | None = TIME) -> list[int]:
    return np.flatnonzero(mark_validation(split, TEST, OWNER, column, seed=3)).tolist()


def test_every_split_takes_from_what_is_left():
    """Left are rows 1, 2, 4 and 5: client 1 at 20; client 0 at 10 and 20; client 2 at 40."""
    assert marked(Split.last(1, "t")) == [1, 4, 5]
    assert marked(Split.latest(0.5, "t")) == [4, 5]
    assert marked(Split.after(15, "t")) == [1, 4, 5]
    assert marked(Split.given("x"), np.array([0, 1, 0, 0, 0, 1])) == [1, 5]
    assert marked(Split.random(0.0)) == []
    drawn = choose(3, VALIDATION, 0, 4, 2).tolist()
    assert marked(Split.random(0.5)) == [[1, 2, 4, 5][place] for place in drawn]


def test_the_draw_has_a_stream_of_its_own():
    nobody = np.zeros(1000, dtype=bool)
    drawn = mark_validation(Split.random(0.2), nobody, nobody, None, seed=0)
    same = int(drawn[choose(0, SPLIT, 0, 1000, 200).numpy()].sum())
    assert 20 <= same <= 60  # 200 of 1,000, twice: 40 expected


def test_the_last_is_test_and_the_one_before_validation():
    frame = pd.DataFrame({"who": [0, 0, 0, 1, 1, 1], "what": range(6), "y": 0})
    frame["t"] = [1, 3, 2, 6, 5, 4]
    data = FederatedData.from_frame(
        frame, client="who", label="y", features=["what"], tables={"what": 6},
        test=Split.last(1, "t"), validation=Split.last(1, "t"),
    )  # fmt: skip
    assert data.test.ids["what"].tolist() == [1, 3]
    assert data.validation.ids["what"].tolist() == [2, 4]
    assert data.train.ids["what"].tolist() == [0, 5]


def build(**changes) -> FederatedData:
    """Client 1 trains, tests and validates; client 2 trains; client 0 has validation only."""
    columns = {
        "client": np.array([1, 0, 1, 2, 1, 0]),
        "ids": {"item": np.arange(6)},
        "label": np.zeros(6),
        "test": np.array([0, 0, 1, 0, 0, 0]),
        "validation": np.array([1, 1, 0, 0, 0, 1]),
        "tables": {"item": 6},
    }
    return FederatedData.build(**(columns | changes))


def test_validation_is_laid_out_like_test():
    data = build()
    assert data.client_names.tolist() == [1, 2, 0]
    assert (data.clients, data.clients_without_training_data) == (2, 1)
    assert data.train.ids["item"].tolist() == [4, 3]
    assert data.validation.ids["item"].tolist() == [0, 1, 5]
    assert data.validation.splits.tolist() == [0, 1, 1, 3]
    assert data.test.splits.tolist() == [0, 1, 1, 1]
    assert data.index["item"].ids.tolist() == [4, 3]  # nobody downloads a row for validation
    assert data.heat_over_all()["item"].counts.tolist() == [1] * 6


def test_data_without_validation_have_none():
    data = build(validation=None)
    assert len(data.validation) == 0
    assert data.validation.splits.tolist() == [0] * 4
    assert data.validation.ids["item"].dtype == data.test.ids["item"].dtype


def test_validation_follows_the_data_everywhere():
    data = build()
    assert data.pooled().validation is data.validation
    one = data.select([1, 0])
    assert one.validation.splits.tolist() == [0, 0, 1]
    assert one.validation.ids["item"].tolist() == [0]
    moved = data.to(torch.device("cpu"), torch.float64)
    assert moved.validation.label.dtype == torch.float64


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        ({"validation": np.array([1, 0, 1, 0, 0, 0])}, ["1 of 6", "for one of the two"]),
        ({"validation": np.array([1, 0])}, ["2 examples", "6"]),
        ({"validation": np.array([2, 0, 0, 0, 0, 0])}, ["'validation'", "example 0"]),
        ({"test": np.zeros(6), "validation": np.ones(6)}, ["no training example"]),
        ({"local": ["item"], "ids": {"item": np.array([0, 0, 1, 2, 3, 4])}}, ["'item'", "held by"]),
    ],
)
def test_bad_marks_are_named(changes, names):
    with pytest.raises(DataError) as caught:
        build(**changes)
    assert all(name in str(caught.value) for name in names), caught.value


SMALL = SyntheticOptions(clients=30, items=20, examples_per_client=10)


def test_a_task_keeps_its_test_examples_and_takes_validation_from_training():
    whole = synthetic.load(SMALL)
    split = synthetic.load(SyntheticOptions(**{**vars(SMALL), "validation": 0.25}))
    assert len(whole.validation) == 0
    assert torch.equal(split.test.ids["features"], whole.test.ids["features"])
    assert len(split.validation) == round(0.25 * len(whole.train))
    assert len(split.train) + len(split.validation) == len(whole.train)
    assert split.best_loss == whole.best_loss


def test_amazon_validates_on_the_latest(tmp_path):
    file = test_amazon.made(tmp_path, "reviews", test_amazon.REVIEWS)
    options = amazon.AmazonOptions(fewest_samples=1, core=1, validation=0.5)
    data = amazon.read(file, "reviews", options)
    assert test_amazon.rows(data.test) == [(4, [1, 3, 2], 0)]
    assert test_amazon.rows(data.validation) == [(2, [1, 3], 1), (2, [], 1), (1, [2], 0)]
    file = test_amazon.made(tmp_path, "authors", test_amazon.AUTHORS)
    data = amazon.read(file, "authors", amazon.AmazonOptions(validation=0.5))
    assert data.test.ids["item"].tolist() == [5]
    assert data.validation.ids["item"].tolist() == [9, 2, 4]  # the last half of each client's rest
    assert data.train.ids["item"].tolist() == [8, 7, 8]


def test_taobao_validates_by_time_where_there_is_time(tmp_path):
    bought = f"3,80,1,buy,{taobao.START}\n4,81,1,buy,{taobao.START + 1}\n"
    file = test_taobao.made(tmp_path, "official", test_taobao.OFFICIAL + bought)
    options = taobao.TaobaoOptions(user_share=1.0, validation=0.25)
    data = taobao.read(file, "official", options)
    assert test_taobao.rows(data, data.validation) == [(9, 50, 0)]  # the latest before the last day


def test_a_tweet_of_every_client_trains(tmp_path):
    text = "".join(test_sent140.row("0", user, f"w{n}") for user in "ab" for n in range(4))
    options = sent140.Sent140Options(fewest_tweets=1, test_share=0.0, validation=0.9)
    data = sent140.read(test_sent140.official(tmp_path, text), "official", options)
    assert (data.sizes > 0).tolist() == [True, True]
    assert len(data.validation) == 6
    rows = data.validation.ids["tokens"].values.tolist()
    assert rows.count(sent140.UNKNOWN) >= 4  # only words of training have a row


def test_movielens_has_the_option():
    assert movielens.MovieLensOptions().validation == 0
