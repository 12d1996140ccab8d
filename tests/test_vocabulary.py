"""Values become rows: by a vocabulary from training examples, or by hashing."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedrows.data.column_checks import distinct
from fedrows.data.values import hashed
from fedrows.data.vocabulary import Hashed, Vocabulary, number_columns, value_of
from fedrows.errors import DataError

ITEMS = np.array(["tea", "rye", "tea", "oat", "egg", "tea", "rye"], dtype=object)
HELD = np.array([0, 0, 0, 0, 1, 1, 1], dtype=bool)

EVERY = Vocabulary(oov=False)


def numbered(how, padded=False):
    found, rows = number_columns("t", how, {"item": ITEMS}, {"item": HELD}, padded)
    return found, rows["item"].tolist()


def test_every_value_has_a_row():
    found, rows = numbered(EVERY)
    assert found.vocabulary.tolist() == ["egg", "oat", "rye", "tea"]
    assert found.rows == 4
    assert rows == [3, 2, 3, 1, 0, 3, 2]
    assert found.notes == ()


def test_what_training_never_saw_reads_the_last_row():
    found, rows = numbered(Vocabulary())
    assert found.vocabulary.tolist() == ["oat", "rye", "tea"]
    assert found.rows == 4
    assert rows == [2, 1, 2, 0, 3, 2, 1]
    (note,) = found.notes
    assert "1 of 3 ids of held-out examples" in note
    assert "row 3" in note


def test_rare_values_share_the_last_row():
    found, rows = numbered(Vocabulary(min_count=2))
    assert found.vocabulary.tolist() == ["tea"]
    assert rows == [0, 1, 0, 1, 1, 0, 1]
    assert "2 of 3 values occur fewer than 2 times" in found.notes[0]
    assert "1 of 3 ids" in found.notes[1]


def test_row_0_stays_free_in_a_padded_table():
    found, rows = numbered(Vocabulary(), padded=True)
    assert found.rows == 5
    assert rows == [3, 2, 3, 1, 4, 3, 2]
    words = {"t": found.vocabulary}
    assert [value_of(words, "t", True, row) for row in range(5)] == [0, "oat", "rye", "tea", 4]


def test_columns_share_a_table():
    columns = {"a": np.array([[5, 7], [7, 7]]), "b": np.array([9, 5])}
    held = {"a": np.zeros((2, 2), dtype=bool), "b": np.array([False, True])}
    found, rows = number_columns("t", EVERY, columns, held, False)
    assert found.vocabulary.tolist() == [5, 7, 9]
    assert rows["a"].tolist() == [[0, 1], [1, 1]]
    assert rows["b"].tolist() == [2, 0]


@given(st.lists(st.text(max_size=3)))
def test_text_is_numbered_in_order(words):
    column = np.array([*words, None], dtype=object)[:-1]
    different, place = distinct(column)
    assert different.tolist() == sorted(set(words))
    assert different[place].tolist() == words


def test_hashes_are_the_same_everywhere_and_spread():
    rows = hashed("x", np.array(["tea", "rye", "tea"], dtype=object), 1000, False)
    assert rows.tolist() == [234, 801, 234]  # in every process, whatever its seed of hashes
    assert hashed("x", np.array(["tea", "rye"]), 1000, False).tolist() == [234, 801]
    numbers = hashed("x", np.arange(100_000), 10, False)
    assert np.bincount(numbers) / 100_000 == pytest.approx(np.full(10, 0.1), abs=0.01)


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int32, np.int64, object])
def test_numbers_hash_alike_whatever_their_type(dtype):
    values = np.array([3, 100, 7])
    assert hashed("x", values.astype(dtype), 50, False).tolist() == hashed(
        "x", values, 50, False
    ).tolist()  # fmt: skip


def test_nothing_is_hashed_to_row_0_of_a_padded_table():
    rows = hashed("x", np.arange(1000), 3, True)
    assert set(rows.tolist()) == {1, 2}
    assert rows.dtype == np.int64


BAD = {
    "min_count 0": (lambda: Vocabulary(min_count=0), ["min_count", "0"]),
    "rare values without a row": (lambda: Vocabulary(3, oov=False), ["min_count 3", "oov=True"]),
    "one hashed row": (lambda: Hashed(1), ["1 rows"]),
    "hashed fractions": (lambda: hashed("x", np.array([0.5]), 9, False), ["'x'", "text"]),
    "hashed dates": (
        lambda: hashed("x", np.array(["2026-01-01"], dtype="M8[D]"), 9, False), ["'x'", "text"],
    ),
    "text and numbers": (
        lambda: number_columns(
            "t", EVERY, {"x": np.array(["a", 1], dtype=object)}, {"x": HELD[:2]}, False
        ),
        ["'t'", "x", "order"],
    ),
}  # fmt: skip


@pytest.mark.parametrize(("act", "names"), BAD.values(), ids=BAD)
def test_what_cannot_be_numbered_is_named(act, names):
    with pytest.raises(DataError) as caught:
        act()
    said = str(caught.value)
    assert "\n" not in said
    assert said.endswith(".")
    assert all(name in said for name in names), said
