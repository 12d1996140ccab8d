"""Rows in a private run: what is held back arrives later, what is hidden is not trained on."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from private_runs import OPEN, finish, lists_and_places, run, seeded, synthetic, wide_model

from fedrows import catalogue
from fedrows.algorithm import Round
from fedrows.data.federation import FederatedData
from fedrows.data.narrow import narrow, part_of
from fedrows.models.logistic import Logistic
from fedrows.plan import Plan
from fedrows.privacy.held_back import HeldBack
from fedrows.privacy.options import Privacy
from fedrows.rows.index import Index
from fedrows.rows.params import Submodels, take
from fedrows.simulation import Simulation


@pytest.fixture(scope="module")
def data() -> FederatedData:
    return synthetic()


@pytest.fixture(scope="module")
def two_tables() -> FederatedData:
    return lists_and_places()


# What is held back


@pytest.mark.parametrize("secure_sum", ["real", "arithmetic"])
def test_rows_of_few_holders_are_held_back_and_arrive_later(secure_sum):
    """All hold item 0; item 1 is client 0's alone until client 3 comes to the cohort.

    Until then item 2 stays closed as well, or the bias without items 0 and 2 would be item 1.
    """
    client, item = np.array([0, 0, 1, 1, 2, 2, 3, 3, 3]), np.array([0, 1, 0, 2, 0, 2, 0, 1, 2])
    data = FederatedData.build(
        client=client,
        ids={"item": item},
        label=np.ones(len(client), dtype=bool),
        test=np.zeros(len(client), dtype=bool),
        tables={"weight": 3},
        fields={"item": "weight"},
    )
    privacy = Privacy.of("index", index_epsilon=None, secure_sum=secure_sum)  # two contributors
    plan = {"rounds": 2, "clients_per_round": 3, "weighting": "uniform"}
    simulation = run(data, privacy, "fedavg", batches="epoch", **plan)
    fleet = simulation.private
    cohorts = {1: torch.tensor([0, 1, 2]), 2: torch.tensor([0, 1, 3])}
    fleet.draw = lambda counter, count: cohorts[counter]
    steps = iter(simulation)
    next(steps)
    weight = simulation.progress.params.tables["weight"]
    assert weight[0] > 0
    assert weight[1] == weight[2] == 0
    ids, held = fleet.held.of(0, "weight")
    assert ids.tolist() == [1]
    assert held[0, 0] > 0
    assert fleet.line()["held_back_rows"] == 3
    assert held[0, 0] == pytest.approx(_alone(data, simulation.plan), rel=1e-12)
    next(steps)
    assert fleet.held.of(2, "weight")[0].tolist() == [2]  # it was not in the cohort
    assert len(fleet.held) == 1
    assert simulation.progress.params.tables["weight"][1] > held[0, 0] / 3


def _alone(data: FederatedData, plan: Plan) -> float:
    """Client 0's own update of item 1 in the first round, trained in the clear."""
    clear = Simulation(data, Logistic(data), catalogue.algorithm("fedavg")(), plan)
    cohort = torch.tensor([0, 1, 2])
    opened = clear.fleet.open_round(Round(1, plan.lr, 4, 4.0, cohort))
    upload = opened.train(take(clear.progress.params, opened.index, 3), None)
    return float(upload.update.rows["weight"][1, 0])


def test_what_is_above_the_range_is_sent_later(data):
    """No number of a row ever goes up above the range, and nothing is lost."""
    plan = {"rounds": 1, "clients_per_round": data.clients, "weighting": "uniform", "lr": 0.2}
    sums = {"secure_sum": "arithmetic", **OPEN}
    roomy = finish(run(data, Privacy.of("index", **sums), "fedavg", **plan))
    tight = finish(run(data, Privacy.of("index", update_range=0.05, **sums), "fedavg", **plan))
    assert len(roomy.private.held) == 0
    assert len(tight.private.held) > 0
    wanted, moved = (one.progress.params.tables["weight"] for one in (roomy, tight))
    late = torch.zeros_like(moved)
    for client in range(data.clients):
        ids, rows = tight.private.held.of(client, "weight")
        late[ids] += torch.from_numpy(rows)
    assert moved.abs().max() < 0.05001
    torch.testing.assert_close(moved + late / data.clients, wanted, rtol=0, atol=1e-5)


def test_held_back_rows_add_up_to_what_was_never_opened():
    held = HeldBack({"a": 2})
    held.put_("a", np.array([4, 4]), np.array([7, 3]), np.array([[7.0, 7], [3, 3]]))
    index = {"a": Index(torch.tensor([3, 5]), torch.tensor([0, 1, 2]))}
    update = Submodels(index, {"a": torch.ones(2, 2, dtype=torch.float64)}, {})
    found = held.joined(
        update, np.arange(2), np.array([4, 9]), {"a": np.array([3, 5])}
    )  # 7 is not in the union
    assert found.index["a"].ids.tolist() == [3, 5]
    assert found.rows["a"].tolist() == [[4, 4], [1, 1]]
    found = held.joined(update, np.arange(2), np.array([4, 9]), {"a": np.array([3, 5, 7])})
    assert found.index["a"].ids.tolist() == [3, 7, 5]
    assert found.index["a"].splits.tolist() == [0, 2, 3]
    again = HeldBack({"a": 2})
    again.restore_(held.tensors())
    assert [x.tolist() for x in again.of(4, "a")] == [[3, 7], [[3, 3], [7, 7]]]
    held.put_("a", np.array([4, 9, 4]), np.array([3, 7, 5]), np.array([[0.0, 0], [1, 1], [0, 0]]))
    assert held.of(4, "a")[0].tolist() == [7]
    assert held.of(9, "a")[1].tolist() == [[1, 1]]
    assert len(held) == 2


# Hidden rows


def test_narrowed_data_keep_the_examples_whose_rows_are_there(two_tables):
    cohort = torch.tensor([2, 7])
    held = {table: index.select(cohort) for table, index in two_tables.index.items()}
    rng = np.random.default_rng(1)
    there = {t: torch.from_numpy(rng.random(len(x.ids)) < 0.7) for t, x in held.items()}
    there["own"] = torch.ones(2, dtype=torch.bool)
    cut = torch.cat
    rows = {
        table: Index(
            index.ids[there[table]],
            cut([torch.zeros(1, dtype=torch.int64), there[table].long().cumsum(0)])[index.splits],
        )
        for table, index in held.items()
    }
    left = narrow(two_tables, cohort, rows)
    at_hand = {
        (table, int(k), int(id_))
        for table, index in held.items()
        for k, id_, yes in zip(index.owner, index.ids, there[table], strict=True)
        if yes
    }
    count, position = 0, 0
    whole = two_tables.train
    for place, client in enumerate(cohort.tolist()):
        for n in range(int(whole.splits[client]), int(whole.splits[client + 1])):
            words = whole.ids["words"]
            mine = words.values[words.offsets[n] : words.offsets[n + 1]].tolist()
            reads = {("word", place, w) for w in mine if w}
            reads |= {("place", place, int(whole.ids["place"][n]))}
            if reads <= at_hand:
                count += 1
                if place in left.clients.tolist():
                    _same_rows(left, position, place, mine, int(whole.ids["place"][n]))
                    position += 1
    assert 0 < count < int((whole.splits[cohort + 1] - whole.splits[cohort]).sum())
    assert count == int(left.local.sizes.sum())


def _same_rows(left: Any, n: int, place: int, words: list[int], where: int) -> None:
    """The slots of a narrowed example name the ids that the example had."""
    active = left.clients.tolist().index(place)
    word, there = left.index["word"], left.index["place"]
    lists = left.local.slots["words"]
    slots = lists.values[lists.offsets[n] : lists.offsets[n + 1]]
    found = [0 if s < 0 else int(word.ids[word.splits[active] + s]) for s in slots]
    assert found == words
    assert int(there.ids[there.splits[active] + left.local.slots["place"][n]]) == where


def test_part_of_finds_every_row():
    whole = Submodels(
        {"a": Index(torch.tensor([1, 4, 9, 4, 5]), torch.tensor([0, 3, 5]))},
        {"a": torch.arange(5.0)[:, None]},
        {"d": torch.tensor([[1.0], [2.0]])},
    )
    part = part_of(whole, torch.tensor([1]), {"a": Index(torch.tensor([5]), torch.tensor([0, 1]))})
    assert part.rows["a"].tolist() == [[4]]
    assert part.dense["d"].tolist() == [[2]]


def test_clients_ask_with_lies_and_train_on_what_they_get(data):
    privacy = Privacy.of("index", index_epsilon=3.0, index_epsilon_for_ever=6.0, min_contributors=1)
    simulation = run(data, privacy)
    simulation.private.seed = seeded
    line = finish(simulation).private.line()
    assert 0 < line["left_out_share"] < 1
    stages = privacy.stages
    most = max(simulation.private.accounts._answered.values())
    assert line["epsilon"]["server/value"] == pytest.approx(stages.epsilon_after(most))
    assert line["epsilon"]["server/value"] < stages.epsilon_for_ever
    assert line["epsilon"]["server/set"] > line["epsilon"]["server/value"]
    assert line["epsilon"]["totals/value"] == "inf"


def test_updates_are_divided_by_the_probability_of_keeping(data, monkeypatch):
    """If by chance nobody lies, an update is the clear one over the keep probability."""
    privacy = Privacy.of("index", index_epsilon=2.0, index_epsilon_for_ever=4.0, min_contributors=1)
    simulation = run(data, privacy, "fedavg", rounds=1)
    mine = {}

    def truth(self: Any, rows: np.ndarray, held: np.ndarray, *_: Any) -> np.ndarray:
        mine["rows"] = True
        return np.isin(rows, held)

    monkeypatch.setattr("fedrows.privacy.answers.Answers.answer_", truth)
    finish(simulation)
    clear = finish(run(data, algorithm="fedavg", rounds=1))
    keep = privacy.stages.keep_probability
    found = simulation.progress.params.tables["weight"] * keep
    assert torch.allclose(found, clear.progress.params.tables["weight"], atol=1e-6)
    assert mine


def test_a_client_without_any_example_left_weighs_nothing(data, monkeypatch):
    privacy = Privacy.of("index", index_epsilon=2.0, index_epsilon_for_ever=4.0, min_contributors=1)
    simulation = run(data, privacy, rounds=1)
    nothing = lambda self, rows, *_: np.zeros(len(rows), dtype=bool)  # noqa: E731
    monkeypatch.setattr("fedrows.privacy.answers.Answers.answer_", nothing)
    start = simulation.progress.params.tables["weight"].clone()
    finish(simulation)
    assert torch.equal(simulation.progress.params.tables["weight"], start)
    assert simulation.private.report.left_out_share == 1


def test_hidden_rows_in_a_model_with_lists_and_local_rows(two_tables):
    """Lists, padding, two widths and a local table, all with rows that are hidden."""
    privacy = Privacy.of("index", index_epsilon=2.0, index_epsilon_for_ever=5.0, min_contributors=1)
    simulation = run(two_tables, privacy, model=wide_model(two_tables), chunk=3)
    simulation.private.seed = seeded
    start = {name: x.clone() for name, x in simulation.progress.params.tables.items()}
    finish(simulation)
    tables = simulation.progress.params.tables
    assert all(bool(torch.isfinite(x).all()) for x in tables.values())
    assert all(not torch.equal(tables[name], start[name]) for name in tables)
    assert torch.equal(tables["word"][0], start["word"][0])  # padding is nobody's
    assert 0 < simulation.private.report.left_out_share < 1
