"""Every client's examples in every step, whatever the cohort around it."""

from __future__ import annotations

from dataclasses import replace
from itertools import chain

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedrows.data.batches import Batch, batches, local_data
from fedrows.data.federation import FederatedData
from fedrows.plan import Plan

DRAW = Plan(local_steps=4, batch_size=3, device="cpu")
EPOCH = replace(DRAW, batches="epoch", epochs=2)
ids_of = st.integers(0, 5)
clients_of = st.lists(st.lists(st.tuples(ids_of, ids_of), min_size=1, max_size=7), min_size=1)


def federation(held: list[list[tuple[int, int]]]) -> FederatedData:
    """Clients with an (n, 2) field and an (n,) field in one table; the label numbers examples."""
    owner = np.repeat(np.arange(len(held)), [len(examples) for examples in held])
    pairs = np.array(flat(held))
    return FederatedData.build(
        client=owner,
        ids={"pair": pairs, "one": pairs[:, 0] + 6},
        label=np.arange(len(owner)),
        labels="numbers",
        test=np.zeros(len(owner), dtype=bool),
        tables={"t": 12},
        fields={"pair": "t", "one": "t"},
    )


def stream(data: FederatedData, cohort: list[int], plan: Plan, round_: int = 1) -> list[Batch]:
    who = torch.tensor(cohort)
    index = {table: whole.select(who) for table, whole in data.index.items()}
    found = list(batches(local_data(data, who), index, plan, round_))
    for batch in found:  # the ids address the cohort's block: slot + splits[k]
        real = torch.ones_like(batch.label) if batch.weight is None else batch.weight
        example = batch.label[real > 0].long()
        for name, places in batch.ids.items():
            expected = data.train.ids[name][example]
            assert index["t"].ids[places][real > 0].tolist() == expected.tolist()
    return found


def examples(data: FederatedData, cohort: list[int], plan: Plan, round_: int = 1):
    """client → step → the numbers of its examples; a step that it sits out is empty."""
    seen = {client: [] for client in cohort}
    for batch in stream(data, cohort, plan, round_):
        real = torch.ones_like(batch.label) if batch.weight is None else batch.weight
        for k, client in enumerate(cohort):
            seen[client].append(batch.label[k][real[k] > 0].int().tolist())
    return seen


def flat(lists: list[list]) -> list:
    return list(chain.from_iterable(lists))


def own(data: FederatedData, client: int) -> set[int]:
    return set(range(*data.train.splits[client : client + 2].tolist()))


@given(clients_of, st.data())
def test_drawn_batches_hold_the_clients_own_examples(held, draw):
    data = federation(held)
    cohort = draw.draw(st.permutations(range(data.clients)))
    for client, steps in examples(data, cohort, DRAW).items():
        assert [len(step) for step in steps] == [3] * 4  # although B may exceed the client
        assert set(flat(steps)) <= own(data, client)


def test_draws_are_uniform_and_new_in_every_step_round_and_seed():
    data = federation([[(0, 1)] * 4])
    plan = replace(DRAW, local_steps=500, batch_size=4)
    steps = examples(data, [0], plan)[0]
    assert np.bincount(flat(steps)).tolist() == pytest.approx([500] * 4, abs=100)
    assert len({tuple(step) for step in steps}) > 200  # of 256
    assert steps != examples(data, [0], plan, round_=2)[0]
    assert steps != examples(data, [0], replace(plan, seed=1))[0]


@given(clients_of, st.data())
def test_an_epoch_visits_every_example_once_a_pass(held, draw):
    data = federation(held)
    cohort = draw.draw(st.permutations(range(data.clients)))
    longest = max(-(-len(own(data, client)) // 3) for client in cohort)
    for client, steps in examples(data, cohort, EPOCH).items():
        mine = own(data, client)
        passes = -(-len(mine) // 3)
        assert len(steps) == 2 * longest
        assert sorted(flat(steps[:passes])) == sorted(mine)
        assert sorted(flat(steps[passes : 2 * passes])) == sorted(mine)
        assert flat(steps[2 * passes :]) == []


def test_every_pass_and_round_has_a_new_order():
    data = federation([[(0, 1)] * 12])
    first, second = (flat(half) for half in _halves(examples(data, [0], EPOCH)[0]))
    later, _ = (flat(half) for half in _halves(examples(data, [0], EPOCH, round_=2)[0]))
    assert len({tuple(first), tuple(second), tuple(later), tuple(range(12))}) == 4


def _halves(steps: list) -> tuple[list, list]:
    return steps[: len(steps) // 2], steps[len(steps) // 2 :]


def test_orders_are_fair():
    """Each of the 6 orders of 3 examples comes up about equally often."""
    data = federation([[(0, 1)] * 3, [(2, 2)] * 3])
    plan = replace(EPOCH, batch_size=3, epochs=3000)
    orders, counts = np.unique(examples(data, [0, 1], plan)[1], axis=0, return_counts=True)
    assert len(orders) == 6
    assert counts.tolist() == pytest.approx([500] * 6, abs=110)


def test_who_is_through_sits_the_whole_step_out():
    data = federation([[(0, 1)], [(0, 2)] * 4])
    found = stream(data, [0, 1], replace(EPOCH, epochs=1))
    assert [batch.active.tolist() for batch in found] == [[1, 1], [0, 1]]
    assert found[0].weight.tolist() == [[1, 0, 0], [1, 1, 1]]
    assert found[1].weight.tolist() == [[0, 0, 0], [1, 0, 0]]


def test_a_batch_larger_than_every_client():
    data = federation([[(0, 1)], [(0, 2)] * 4])
    plan = replace(EPOCH, batch_size=50, epochs=1)
    found = examples(data, [1, 0], plan)
    assert [sorted(step) for step in found[1]] == [[1, 2, 3, 4]]
    assert found[0] == [[0]]


@given(clients_of, st.sampled_from([DRAW, EPOCH]), st.integers(1, 5))
def test_a_client_alone_sees_what_it_sees_in_a_cohort(held, plan, round_):
    data = federation(held)
    cohort = list(range(data.clients))[::-1]
    together = examples(data, cohort, plan, round_)
    for client in cohort:
        alone = examples(data, [client], plan, round_)[client]
        assert together[client][: len(alone)] == alone
        assert not any(together[client][len(alone) :])


def test_local_data_points_into_the_columns():
    data = federation([[(0, 1)] * 2, [(0, 2)] * 3, [(1, 1)]])
    local = local_data(data, torch.tensor([2, 0]))
    assert local.clients.tolist() == [2, 0]
    assert local.starts.tolist() == [5, 0]
    assert local.sizes.tolist() == [1, 2]
    assert local.label is data.train.label
