"""Lists of ids: looked up, picked, trained on; nothing changes for what is only filling."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from fedrows.algorithms.fedsubavg import FedSubAvg
from fedrows.data.federation import FederatedData
from fedrows.errors import DataError
from fedrows.lifting.lifted import Lifted
from fedrows.models.logistic import Logistic
from fedrows.plan import Plan
from fedrows.rows.ragged import look_up, ragged
from fedrows.server import begin, rounds
from fedrows.simulator.simulated_fleet import SimulatedFleet

LISTS = st.lists(st.lists(st.integers(1, 9), max_size=5), min_size=1, max_size=8)


@given(LISTS, st.integers(1, 4), st.data())
def test_lists_come_back_filled_up(lists, most, draw):
    column = ragged(lists, most)
    picked = draw.draw(st.lists(st.integers(0, len(lists) - 1), max_size=6))
    expected = [lists[i][-most:] + [0] * (most - len(lists[i][-most:])) for i in picked]
    positions = torch.tensor(picked, dtype=torch.int64)
    assert column.fill(positions, 0).tolist() == expected
    again = column.pick(positions)
    assert len(again) == len(picked)
    assert again.fill(torch.arange(len(picked)), 0).tolist() == expected


def test_a_column_is_looked_up_in_any_shape():
    column = ragged([[1], [2, 3], []])
    assert look_up(column, torch.tensor([[1, 2], [0, 1]]), -1).tolist() == [
        [[2, 3], [-1, -1]],
        [[1, -1], [2, 3]],
    ]
    assert look_up(torch.tensor([5, 6, 7]), torch.tensor([[2], [0]])).tolist() == [[7], [5]]


def listed(most: int | None = None, **more) -> FederatedData:
    """Four clients with an item and a history each; one history is empty."""
    history = [[1, 2], [], [3], [2, 2, 4], [5], [1, 5, 6, 2], [6], [3, 1]]
    return FederatedData.build(
        client=np.array([0, 0, 1, 1, 2, 2, 3, 3]),
        ids={"item": np.array([1, 3, 3, 4, 6, 2, 1, 5]), "history": ragged(history, most)},
        label=np.array([1, 0, 1, 1, 0, 0, 1, 0]),
        test=np.zeros(8, dtype=bool),
        tables={"item": 7},
        fields={"item": "item", "history": "item"},
        **more,
    )


def test_index_sets_hold_what_lists_hold_and_never_0():
    data = listed()
    sets = [data.index["item"].slice(k, k + 1).ids.tolist() for k in range(4)]
    assert sets == [[1, 2, 3], [2, 3, 4], [1, 2, 5, 6], [1, 3, 5, 6]]
    assert data.padded == {"item"}
    assert data.slots["history"].fill(torch.arange(2), -1).tolist() == [[0, 1, -1, -1], [-1] * 4]
    assert data.heat()["item"].of(torch.tensor([0, 2])).tolist() == [0, 3]


def test_an_id_of_a_list_outside_its_table_is_named():
    with pytest.raises(DataError, match=r"'h' of example 1 has id 9, outside table 'h' of 5 rows"):
        FederatedData.build(
            client=np.array([0, 1]),
            ids={"h": ragged([[1], [2, 9]])},
            label=np.array([0, 1]),
            test=np.zeros(2, dtype=bool),
            tables={"h": 5},
        )


class Plain(nn.Module):
    """Logistic regression over item and history, as a plain module with padding."""

    def __init__(self) -> None:
        super().__init__()
        self.item = nn.Embedding(7, 1, padding_idx=0)
        self.bias = nn.Parameter(torch.zeros(()))
        nn.init.zeros_(self.item.weight)

    def forward(self, item, history):
        seen = (self.item(history)[..., 0] * (history != 0)).sum(1)
        return self.item(item)[:, 0] + seen + self.bias


PLAN = Plan(
    rounds=6, clients_per_round=3, local_steps=3, batch_size=3, lr=0.5,
    device="cpu", dtype="float64",
)  # fmt: skip


def trained(data, model, plan):
    algorithm = FedSubAvg()
    progress = begin(model, algorithm, plan)
    for _ in rounds(SimulatedFleet(model, algorithm, data, plan), plan, progress):
        pass
    return progress.whole().tables["item"]


@pytest.mark.parametrize("batches", ["draw", "epoch"])
def test_hand_batched_and_lifted_agree_on_lists_and_weights(batches):
    data = listed(weight=np.array([1, 2, 0.5, 1, 1, 3, 1, 0.25]))
    plan = replace(PLAN, batches=batches)
    hand, lifted = trained(data, Logistic(data), plan), trained(data, Lifted(Plain(), data), plan)
    torch.testing.assert_close(hand, lifted, rtol=0, atol=1e-12)
    assert hand[0] == 0
    assert (hand[1:] != 0).all()


def test_filling_has_no_effect():
    short, long = listed(), listed(most=9)
    for model in (Logistic, lambda data: Lifted(Plain(), data)):
        torch.testing.assert_close(
            trained(short, model(short), PLAN), trained(long, model(long), PLAN), rtol=0, atol=1e-12
        )
