"""A log as data to be ranked: who trains on what, what is held out, and what is left out."""

import json
import zipfile
from pathlib import Path

import numpy as np
import pytest

from fedrows import catalogue
from fedrows.data.leave_one_out import leave_one_out
from fedrows.datasets import movielens_rank, movielens_rank_mf
from fedrows.errors import DataError
from fedrows.plan import Plan
from fedrows.runs.settings import presets
from fedrows.simulation import Simulation

RESULTS = Path(__file__).parents[1] / "benchmarks" / "results" / "recommenders.json"

CLIENT = ["b", "a", "a", "a", "a", "b", "b", "a", "c", "c", "d"]
ITEM = [7, 5, 9, 5, 7, 5, 9, 3, 3, 5, 3]
TIME = [3, 1, 2, 4, 3, 1, 2, 5, 1, 2, 1]
# a meets 5, 9, 7, (5 again), 3; b meets 5, 9, 7; c and d meet too few


def test_the_last_item_is_the_test_and_the_one_before_it_validation():
    data = leave_one_out(CLIENT, ITEM, TIME)
    assert data.client_names.tolist() == ["a", "b"]
    assert data.vocabulary["item"].tolist() == [3, 5, 7, 9]

    def items(part):
        return data.vocabulary["item"][part.ids["item"].numpy()].tolist()

    assert items(data.train) == [5, 9, 5]
    assert items(data.validation) == [7, 9]
    assert items(data.test) == [3, 7]
    assert data.notes == ("2 of 4 clients have fewer than 3 items: left out.",)
    assert data.local == {"user"}
    assert data.vocabulary["user"][data.test.ids["user"].numpy()].tolist() == ["a", "b"]


def test_a_history_is_what_came_before():
    data = leave_one_out(CLIENT, ITEM, TIME, history=2)

    def lists(part):
        column, words = part.ids["history"], data.vocabulary["item"]
        rows = [
            column.values[a:b] for a, b in zip(column.offsets, column.offsets[1:], strict=False)
        ]
        return [words[row.numpy() - 1].tolist() for row in rows]

    assert lists(data.train) == [[], [5], []]
    assert lists(data.validation) == [[5, 9], [5]]
    assert lists(data.test) == [[9, 7], [5, 9]]  # the last two, the validation item among them
    assert data.tables == {"item": 5}
    assert data.padded == {"item"}


def test_without_a_time_a_later_row_is_later():
    data = leave_one_out([0, 0, 0], [4, 2, 3])
    assert data.vocabulary["item"][data.test.ids["item"].numpy()].tolist() == [3]


def test_what_cannot_be_ranked_is_refused():
    with pytest.raises(DataError, match="No client of data has 3 different items"):
        leave_one_out([0, 0, 1], [4, 4, 3])
    with pytest.raises(DataError, match="has 2 clients and 3 items"):
        leave_one_out([0, 0], [4, 4, 3])
    with pytest.raises(DataError, match="column 'item' cannot be put in order"):
        leave_one_out([0, 0], np.array([4, "a"], dtype=object))


def official(folder):
    lines = [f"{u}::{m}::{1 + m % 5}::{100 - m}" for u in (1, 2) for m in (10, 20, 30, 40)]
    with zipfile.ZipFile(folder / "ml-1m.zip", "w") as archive:
        archive.writestr("ml-1m/ratings.dat", "\n".join(lines) + "\n")
    return folder / "ml-1m.zip"


def test_movielens_rank_reads_the_official_file(tmp_path):
    file = official(tmp_path)
    data = movielens_rank.read(file, movielens_rank.MovieLensRankOptions(history=3))
    assert data.vocabulary["item"][data.test.ids["item"].numpy() - 1].tolist() == [10, 10]
    assert data.test.ids["history"].sizes.tolist() == [3, 3]
    by_user = movielens_rank_mf.read(file)
    assert by_user.vocabulary["item"][by_user.test.ids["item"].numpy()].tolist() == [10, 10]
    assert len(data.train) == len(by_user.train) == 4


@pytest.mark.parametrize(("name", "model"), [("movielens-rank", "sasrec"),
                                             ("movielens-rank-mf", "mf")])  # fmt: skip
def test_a_ranking_task_trains_its_own_model(name, model, tmp_path, monkeypatch):
    monkeypatch.setenv("FEDROWS_DATA", str(tmp_path))
    folder = tmp_path / movielens_rank.SOURCE.folder
    folder.mkdir()
    official(folder)
    task = catalogue.task(name)
    assert task.model == model
    data = task.load(task.options())
    assert data.name == name
    for algorithm in ("fedsubavg", "fedavg"):
        plan, own = presets(task, algorithm)
        few = Plan(**{**plan, "rounds": 1, "clients_per_round": 2, "device": "cpu"})
        by = catalogue.algorithm(algorithm)(**own)
        run = Simulation(data, catalogue.model(model)(data, 0), by, few)
        for _ in run:
            assert run.evaluate()["test_hr10"] == 1  # of fewer than ten items


def test_the_presets_of_ranking_are_what_the_searches_chose():
    found = json.loads(RESULTS.read_text("utf-8"))["ranking"]
    for name in ("movielens-rank", "movielens-rank-mf"):
        task = catalogue.task(name)
        for algorithm, one in found[task.model]["algorithms"].items():
            plan, own = presets(task, algorithm.partition(":")[0])
            given = {**plan, **own}
            shared = given.keys() & one["setting"].keys()
            assert {"lr", "clients_per_round", "local_steps", "batch_size"} <= shared
            assert {x: given[x] for x in shared} == {x: one["setting"][x] for x in shared}
            if ":" in algorithm:
                option, value = algorithm.partition(":")[2].split("=")
                assert own[option] == value


def test_movielens_rank_of_the_real_file(data_folder):
    data = movielens_rank_mf.read(data_folder / movielens_rank_mf.SOURCE.folder / "ml-1m.zip")
    assert (data.clients, data.tables["item"]) == (6_040, 3_706)
    assert (len(data.train), len(data.validation), len(data.test)) == (988_129, 6_040, 6_040)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"item": [7, None, *ITEM[2:]]}, "Column 'item' has no value in example 1"),
        ({"item": [7.0, np.nan, *ITEM[2:]]}, "Column 'item' has no value in example 1"),
        ({"client": [None, *CLIENT[1:]]}, "Column 'client' has no value in example 0"),
        ({"time": TIME[:-1]}, "10 times, but 11 rows"),
        ({"history": -1}, "history is -1"),
        ({"history": "5"}, "history is '5'"),
        ({"history": True}, "history is True"),
    ],
)
def test_what_cannot_be_a_log_is_named(changes, said):
    with pytest.raises(DataError, match=said):
        leave_one_out(**{"client": CLIENT, "item": ITEM, "time": TIME, **changes})
