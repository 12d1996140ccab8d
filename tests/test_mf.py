"""Matrix factorisation: its scores, by item and by candidates, and what it can be trained on."""

import numpy as np
import pytest
import torch

from fedrows import FederatedData, simulate
from fedrows.errors import ModelError
from fedrows.models import mf


def ratings(**more) -> FederatedData:
    """Users who like the items on their own side of a line."""
    rng = np.random.default_rng(0)
    user, item = rng.integers(0, 30, 1_500), rng.integers(0, 40, 1_500)
    side_of_user, side_of_item = rng.normal(size=30), rng.normal(size=40)
    given = {
        "client": user,
        "ids": {"user": user, "item": item},
        "label": side_of_user[user] * side_of_item[item] > 0,
        "test": rng.random(1_500) < 0.2,
        "tables": {"user": 30, "item": 40},
        "local": ["user"],
        "target": ("item", None),
    }
    return FederatedData.build(**{**given, **more})


def test_a_score_is_biases_and_the_product_of_factors():
    model = mf.build(ratings(), seed=3, factors=2)
    params = model.start().map(torch.Tensor.double)
    user, item = params.tables["user"], params.tables["item"]
    assert not user[:, 0].any()  # biases start from 0, factors do not
    assert item[:, 1:].abs().min() > 0
    user[:, 0], item[:, 0] = torch.arange(30) / 10, torch.arange(40) / 100
    params.dense["bias"] += 5
    found = model.scores(params, {"user": torch.tensor([3, 4]), "item": torch.tensor([7, 9])})
    wanted = [5 + 0.3 + 0.07 + float(user[3, 1:] @ item[7, 1:])]
    wanted += [5 + 0.4 + 0.09 + float(user[4, 1:] @ item[9, 1:])]
    assert found.tolist() == pytest.approx(wanted)


def test_candidates_score_as_items_do_and_may_be_shared_by_all_users():
    model = mf.build(ratings(), factors=3)
    params = model.start().map(torch.Tensor.double)
    users, items = torch.tensor([0, 5, 9]), torch.tensor([4, 39])
    one_by_one = torch.tensor(
        [
            [
                float(model.scores(params, {"user": u.view(1), "item": m.view(1)}))
                for m in items.unbind()
            ]
            for u in users.unbind()
        ]
    )
    for candidates in (items.expand(3, 2), items.view(1, 2)):
        found = model.scores(params, {"user": users, "item": candidates})
        assert torch.allclose(found.float(), one_by_one)


def test_it_learns_what_no_bias_can_say():
    data = ratings()
    settings = {"rounds": 60, "clients_per_round": 15, "lr": 3.0, "batch_size": 16, "device": "cpu"}
    result = simulate(data, mf.build(data, factors=4), "fedsubavg", **settings)
    assert result.history[-1]["test_auc"] > 0.9


def test_data_without_a_user_and_an_item_are_refused():
    data = ratings()
    ids = {"item": np.arange(4)}
    alone = FederatedData.build(
        client=[0, 0, 1, 1], ids=ids, label=[0, 1, 0, 1], test=[0, 0, 0, 0], tables={"item": 4}
    )
    with pytest.raises(ModelError, match="reads a user and an item, but the data have item"):
        mf.build(alone)
    both = {"user": "item", "item": "item"}
    with pytest.raises(ModelError, match="both read item: give each a table of its own"):
        mf.build(ratings(fields=both, tables={"item": 40}, local=[]))
    assert mf.build(data).schema.tables["item"].width == 1 + mf.FACTORS
