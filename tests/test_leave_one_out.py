"""A log as data to be ranked: who trains on what, what is held out, and what is left out."""

import zipfile

import numpy as np
import pytest

from fedrows import catalogue
from fedrows.data.leave_one_out import leave_one_out
from fedrows.datasets import movielens_rank, movielens_sasrec
from fedrows.errors import DataError

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


def test_movielens_rank_reads_the_official_file(tmp_path):
    lines = [f"{u}::{m}::{1 + m % 5}::{100 - m}" for u in (1, 2) for m in (10, 20, 30, 40)]
    with zipfile.ZipFile(tmp_path / "ml-1m.zip", "w") as archive:
        archive.writestr("ml-1m/ratings.dat", "\n".join(lines) + "\n")
    data = movielens_rank.read(tmp_path / "ml-1m.zip")
    assert data.vocabulary["item"][data.test.ids["item"].numpy()].tolist() == [10, 10]
    assert len(data.train) == 4
    sequence = movielens_sasrec.read(
        tmp_path / "ml-1m.zip", movielens_sasrec.MovieLensSequenceOptions(history=3)
    )
    assert sequence.test.ids["history"].sizes.tolist() == [3, 3]
    for name in ("movielens-rank", "movielens-sasrec"):
        task = catalogue.task(name)
        assert task.name == name
        assert catalogue.model(task.model)(sequence if "sasrec" in name else data, 0)


def test_movielens_rank_of_the_real_file(data_folder):
    data = movielens_rank.read(data_folder / movielens_rank.SOURCE.folder / "ml-1m.zip")
    assert (data.clients, data.tables["item"]) == (6_040, 3_706)
    assert (len(data.train), len(data.validation), len(data.test)) == (988_129, 6_040, 6_040)
