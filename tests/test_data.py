"""Columns and data frames become federations; what cannot be right is named."""

from __future__ import annotations

from datetime import date

import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedrows.data.examples import Examples
from fedrows.data.federation import FederatedData
from fedrows.data.splits import split_at_random
from fedrows.data.vocabulary import Vocabulary
from fedrows.errors import DataError

frames = pytest.mark.parametrize("frame", [pd.DataFrame, pl.DataFrame], ids=["pandas", "polars"])
RATINGS = {
    "user": ["eve", "ann", "bob", "ann", "bob", "ann"],
    "item": ["tea", "tea", "rye", "oat", "tea", "tea"],
    "then": ["rye", "oat", "rye", "tea", "egg", "tea"],
    "page": [3, 0, 1, 0, 3, 3],
    "like": [1, 0, 1, 1, 0, 0],
    "held": [True, False, False, True, True, False],
}


def build(**changes) -> FederatedData:
    """Client 7 has examples 0 and 2, client 5 example 1; changes replace columns."""
    columns = {
        "client": np.array([7, 5, 7]),
        "ids": {"item": np.array([[0, 3], [1, 1], [3, 2]]), "kind": np.array([2, 0, 0])},
        "label": np.array([1, 0, 1]),
        "test": np.zeros(3, dtype=bool),
        "tables": {"item": 4, "kind": 3},
    }
    return FederatedData.build(**(columns | changes))


def ratings(frame, **options) -> FederatedData:
    columns = {"client": "user", "label": "like", "features": ["item"], "test": "held"}
    return FederatedData.from_frame(frame, **(columns | options))


def test_columns_are_sorted_by_client():
    data = build()
    assert data.clients == 2
    assert data.client_names.tolist() == [5, 7]
    assert data.train.splits.tolist() == [0, 1, 3]
    assert data.sizes.tolist() == [1, 2]
    assert data.train.owner.tolist() == [0, 1, 1]
    assert data.train.ids["item"].tolist() == [[1, 1], [0, 3], [3, 2]]
    assert data.train.label.tolist() == [0, 1, 1]
    assert data.index["item"].ids.tolist() == [1, 0, 2, 3]
    assert data.slots["item"].tolist() == [[0, 0], [0, 2], [2, 1]]
    assert data.slots["kind"].tolist() == [0, 1, 0]
    assert len(data.test) == 0
    assert data.notes == ()


def test_marks_of_0_and_1_hold_examples_out():
    data = build(test=np.array([0, 1, 1]))
    assert data.train.ids["kind"].tolist() == [2]
    assert data.test.ids["kind"].tolist() == [0, 0]


def test_lists_are_columns_too():
    data = build(client=[7, 5, 7], label=[1, 0, 1], test=[False] * 3)
    assert data.train.label.tolist() == [0, 1, 1]


def test_weights_are_what_they_are_called():
    data = build()
    assert data.weights("examples").tolist() == [1, 2]
    assert data.weights("uniform").tolist() == [1, 1]
    assert data.heat("examples")["item"].counts.tolist() == [2, 1, 2, 2]
    assert data.heat()["kind"].counts.tolist() == [2, 1]


def test_what_an_example_is_about():
    assert build().target == ("item", 0)
    data = build(target=("item", 1))
    assert data.targets(data.train).tolist() == [1, 3, 2]
    data = build(target=("kind", None))
    assert data.targets(data.train).tolist() == [0, 2, 0]


def test_clients_without_training_data_are_left_out_of_n_and_said_once():
    """Clients 1, 2, 4 train, 0 and 3 only test; they stand behind the others, test and all."""
    client = np.array([0, 1, 1, 2, 3, 3, 4])
    test = np.array([True, False, True, False, True, True, False])
    data = FederatedData.build(
        client=client,
        ids={"t": np.arange(7)},
        label=np.zeros(7),
        test=test,
        tables={"t": 7},
        notes=["Kept."],
    )
    assert data.clients == 3
    assert data.clients_without_training_data == 2
    assert data.client_names.tolist() == [1, 2, 4, 0, 3]
    assert data.train.ids["t"].tolist() == [1, 3, 6]
    assert data.test.ids["t"].tolist() == [2, 0, 4, 5]
    assert data.test.owner.tolist() == [0, 3, 4, 4]
    assert data.index["t"].clients == 3
    assert data.heat()["t"].total == 3
    assert data.notes == ("Kept.", "2 of 5 clients have no training data: left out of N.")


examples_of = st.lists(
    st.tuples(st.integers(0, 4), st.integers(0, 6), st.integers(0, 6), st.booleans()), min_size=1
).filter(lambda rows: not all(test for *_, test in rows))


@given(examples_of)
def test_every_example_is_kept_once_with_its_client(rows):
    client, one, two, test = (np.array(column) for column in zip(*rows, strict=True))
    data = FederatedData.build(
        client=client,
        ids={"pair": np.stack([one, two], 1), "one": one},
        label=np.arange(len(rows)),
        labels="numbers",
        test=test,
        tables={"t": 7},
        fields={"pair": "t", "one": "t"},
    )
    for part, marked in ((data.train, False), (data.test, True)):
        numbers = part.label.long().tolist()
        assert sorted(numbers) == np.flatnonzero(test == marked).tolist()
        assert data.client_names[part.owner.numpy()].tolist() == client[numbers].tolist()
        assert part.ids["one"].tolist() == one[numbers].tolist()
        assert part.ids["pair"][:, 1].tolist() == two[numbers].tolist()
    assert (data.sizes > 0).all()
    index, owner = data.index["t"], data.train.owner
    for name, slots in data.slots.items():
        offset = index.splits[owner].view(-1, *[1] * (slots.dim() - 1))
        assert torch.equal(index.ids[offset + slots], data.train.ids[name])


def test_pooled_data_are_one_clients():
    data = build(client=np.array([7, 5, 6]), test=np.array([False, False, True]))
    pooled = data.pooled()
    assert pooled.clients == 1
    assert pooled.sizes.tolist() == [2]
    assert pooled.weights("examples").tolist() == [2]
    assert pooled.train.ids["item"].tolist() == data.train.ids["item"].tolist()
    assert pooled.index["item"].ids.tolist() == [0, 1, 3]
    assert pooled.slots["item"].tolist() == [[1, 1], [0, 2]]
    assert pooled.test is data.test
    assert data.clients == 2  # the federation is as it was


def test_another_dtype_changes_labels_only():
    data = build().to(torch.device("cpu"), torch.float64)
    assert data.train.label.dtype == data.test.label.dtype == torch.float64
    assert data.train.ids["item"].dtype == torch.int64
    assert data.heat()["item"].ids is data.index["item"].held


def test_picked_examples_belong_to_one():
    picked = build().train.pick(torch.tensor([2, 0]))
    assert isinstance(picked, Examples)
    assert picked.splits.tolist() == [0, 2]
    assert picked.label.tolist() == [1, 0]
    assert picked.ids["kind"].tolist() == [0, 0]


def test_a_random_split_has_its_share_and_its_seed():
    first = split_at_random(1000, 0.2, 0)
    assert first.sum() == 200
    assert np.array_equal(first, split_at_random(1000, 0.2, 0))
    assert not np.array_equal(first, split_at_random(1000, 0.2, 1))
    assert not split_at_random(10, 0, 0).any()


@frames
def test_a_frame_with_text_ids(frame):
    data = ratings(frame(RATINGS), tables={"item": Vocabulary(oov=False)})
    assert data.vocabulary["item"].tolist() == ["oat", "rye", "tea"]
    assert data.tables == {"item": 3}
    assert data.client_names.tolist() == ["ann", "bob", "eve"]
    assert data.train.ids["item"].tolist() == [2, 2, 1]
    assert data.train.owner.tolist() == [0, 0, 1]
    assert data.test.ids["item"].tolist() == [0, 2, 2]
    assert data.test.label.tolist() == [1, 0, 1]
    assert data.notes == ("1 of 3 clients have no training data: left out of N.",)


@frames
def test_columns_may_share_a_table(frame):
    fields = {"item": "product", "then": "product", "page": "page"}
    every = {"product": Vocabulary(oov=False), "page": Vocabulary(oov=False)}
    data = ratings(frame(RATINGS), features=fields, tables=every)
    assert data.fields == {"item": "product", "then": "product", "page": "page"}
    assert data.vocabulary["product"].tolist() == ["egg", "oat", "rye", "tea"]
    assert data.tables == {"product": 4, "page": 3}
    assert data.train.ids["then"].tolist() == [1, 3, 2]
    assert data.train.ids["item"].tolist() == [3, 3, 2]
    assert data.index["product"].slice(0, 1).ids.tolist() == [1, 3]


@frames
def test_a_table_of_given_size_keeps_its_ids(frame):
    data = ratings(frame(RATINGS), features=["page"], tables={"page": 100})
    assert data.tables == {"page": 100}
    assert data.vocabulary == {}
    assert data.train.ids["page"].tolist() == [0, 3, 1]


@frames
def test_a_frame_is_split_at_random(frame):
    first, again = (ratings(frame(RATINGS), test=0.5, seed=3) for _ in range(2))
    assert (len(first.train), len(first.test)) == (3, 3)
    assert first.test.ids["item"].tolist() == again.test.ids["item"].tolist()
    assert len(ratings(frame(RATINGS), test=0).test) == 0


@frames
def test_zero_and_one_mark_test_rows_too(frame):
    marked = frame(RATINGS | {"held": [1, 0, 0, 1, 1, 0]})
    assert ratings(marked).test.label.tolist() == ratings(frame(RATINGS)).test.label.tolist()


def test_categories_and_dates_are_ids():
    frame = pd.DataFrame(RATINGS).astype({"item": "category", "user": "category"})
    assert ratings(frame).vocabulary["item"].tolist() == ["rye", "tea"]
    day = [date(2026, 1, d) for d in (3, 1, 1, 2, 3, 3)]
    assert ratings(pl.DataFrame(RATINGS | {"day": day}), features=["day"]).tables == {
        "day": 3
    }  # one is unknown


TEXT = np.array(["a", "b", "c"])
NOTHING = np.array([], dtype=np.int64)
BAD_COLUMNS = {
    "no example": (
        {"client": NOTHING, "ids": {"item": NOTHING}, "label": NOTHING, "test": NOTHING > 0},
        ["not a single example"],
    ),
    "short label": ({"label": np.array([0, 1])}, ["label", "2 examples", "client", "3"]),
    "short test": ({"test": np.array([True])}, ["test", "1 examples", "3"]),
    "short ids": (
        {"ids": {"item": np.array([0]), "kind": np.zeros(3, dtype=int)}},
        ["item", "1 examples", "3"],
    ),
    "client None": ({"client": np.array([7, None, 7], dtype=object)}, ["'client'", "example 1"]),
    "client NaN": ({"client": np.array([7, 5, np.nan])}, ["'client'", "example 2"]),
    "clients of two kinds": ({"client": np.array([7, "a", 7], dtype=object)}, ["client"]),
    "label text": ({"label": TEXT}, ["label", "numbers"]),
    "label NaN": ({"label": np.array([0, np.nan, 1])}, ["label", "example 1"]),
    "label infinite": ({"label": np.array([0, 1, np.inf])}, ["label", "example 2", "inf"]),
    "label beyond float32": ({"label": np.array([0, 1e300, 1])}, ["label", "example 1", "1e+300"]),
    "label of two columns": ({"label": np.zeros((3, 2))}, ["label", "(3, 2)"]),
    "test of numbers": ({"test": np.array([0, 1, 2])}, ["'test'", "example 2", "2"]),
    "test of text": ({"test": TEXT}, ["'test'", "example 0", "'a'"]),
    "all held out": ({"test": np.ones(3, dtype=bool)}, ["no training example"]),
    "id beyond the table": (
        {"ids": {"item": np.array([[0, 1], [2, 4], [9, 9]]), "kind": np.zeros(3, dtype=int)}},
        ["'item'", "example 1", "id 4", "4 rows", "0 to 3"],
    ),
    "negative id": (
        {"ids": {"item": np.zeros(3, dtype=int), "kind": np.array([0, 0, -1])}},
        ["'kind'", "example 2", "id -1", "3 rows"],
    ),
    "id of fractions": (
        {"ids": {"item": np.array([0.0, 1, 2])}, "tables": {"item": 4}},
        ["'item'", "float64", "whole numbers"],
    ),
    "id of text": ({"ids": {"item": TEXT}, "tables": {"item": 4}}, ["'item'", "whole numbers"]),
    "id missing": (
        {"ids": {"item": np.array([0, np.nan, 1])}, "tables": {"item": 4}},
        ["'item'", "example 1"],
    ),
    "ids of three dimensions": (
        {"ids": {"item": np.zeros((3, 2, 2), dtype=int)}, "tables": {"item": 4}},
        ["'item'", "(3, 2, 2)"],
    ),
    "unknown table": (
        {"fields": {"item": "thing", "kind": "kind"}},
        ["'item'", "'thing'", "item, kind"],
    ),
    "field without ids": ({"fields": {"item": "item", "kind": "kind", "x": "kind"}}, ["'x'"]),
    "field left out": ({"fields": {"item": "item"}}, ["'kind'"]),
    "table without a field": ({"tables": {"item": 4, "kind": 3, "u": 2}}, ["'u'", "No field"]),
    "no field": ({"ids": {}, "tables": {}}, ["field"]),
    "table of a fraction": ({"tables": {"item": 4.5, "kind": 3}}, ["'item'", "4.5"]),
    "table of no rows": ({"tables": {"item": 4, "kind": 0}}, ["'kind'", "0"]),
    "unknown target": ({"target": ("x", None)}, ["target", "'x'"]),
    "target column beyond": ({"target": ("item", 2)}, ["target", "'item'", "2"]),
    "target of a wide field": ({"target": ("item", None)}, ["target", "'item'"]),
    "target column of a narrow field": ({"target": ("kind", 0)}, ["target", "'kind'"]),
}


def complaint(caught: pytest.ExceptionInfo[DataError]) -> str:
    said = str(caught.value)
    assert "\n" not in said
    assert said.endswith(".")
    return said


@pytest.mark.parametrize(("changes", "names"), BAD_COLUMNS.values(), ids=BAD_COLUMNS)
def test_bad_columns_are_named(changes, names):
    with pytest.raises(DataError) as caught:
        build(**changes)
    said = complaint(caught)
    assert all(name in said for name in names), said


BAD_FRAMES = {
    "no client column": ({}, {"client": "usr"}, ["'usr'", "user, item"]),
    "no label column": ({}, {"label": "liked"}, ["'liked'"]),
    "no feature column": ({}, {"features": ["item", "size"]}, ["'size'"]),
    "no test column": ({}, {"test": "part"}, ["'part'"]),
    "no features": ({}, {"features": []}, ["feature"]),
    "features as text": ({}, {"features": "item"}, ["features", "'item'"]),
    "a share of all": ({}, {"test": 1.0}, ["test", "1.0"]),
    "a negative share": ({}, {"test": -0.1}, ["test", "-0.1"]),
    "a share of NaN": ({}, {"test": float("nan")}, ["test", "nan"]),
    "a validation of all": ({}, {"validation": 1.0}, ["validation", "1.0"]),
    "no validation column": ({}, {"validation": "part"}, ["'part'"]),
    "marks of both": ({}, {"validation": "held"}, ["'held'", "3 of 6", "for validation"]),
    "no share": ({}, {"test": None}, ["test", "None"]),
    "client missing": ({"user": ["a", None, "a", "b", "b", "b"]}, {}, ["'user'", "example 1"]),
    "id missing": ({"item": ["a", "b", None, "b", "b", "b"]}, {}, ["'item'", "example 2"]),
    "label missing": ({"like": [1, 0, 1, None, 1, 1]}, {}, ["'like'", "example 3"]),
    "label text": ({}, {"label": "then"}, ["'then'", "numbers"]),
    "label a feature": ({}, {"label": "item"}, ["'item'", "feature too"]),
    "mark missing": ({"held": [True, None, *[False] * 4]}, {}, ["'held'", "example 1"]),
    "mark text": ({"held": ["test", *["train"] * 5]}, {}, ["'held'", "'test'"]),
    "mark of many": ({"held": [0, 1, 2, 0, 0, 0]}, {}, ["'held'", "example 2"]),
    "date missing": (
        {"item": [date(2026, 1, 1), None, *[date(2026, 1, 2)] * 4]}, {}, ["'item'", "example 1"],
    ),
    "text in a table of given size": ({}, {"tables": {"item": 5}}, ["'item'", "vocabulary"]),
    "id beyond a given size": (
        {}, {"features": ["page"], "tables": {"page": 3}}, ["'page'", "example 0", "id 3"],
    ),
    "a table nobody reads": ({}, {"tables": {"page": 3}}, ["'page'"]),
    "text and numbers in one table": (
        {}, {"features": {"item": "t", "page": "t"}}, ["'t'", "item, page"],
    ),
}  # fmt: skip


@frames
@pytest.mark.parametrize(("changes", "options", "names"), BAD_FRAMES.values(), ids=BAD_FRAMES)
def test_bad_frames_are_named(frame, changes, options, names):
    with pytest.raises(DataError) as caught:
        ratings(frame(RATINGS | changes), **options)
    said = complaint(caught)
    assert all(name in said for name in names), said


@frames
def test_an_empty_frame(frame):
    with pytest.raises(DataError, match="not a single example"):
        ratings(frame(RATINGS)[:0])


def test_heat_over_all_without_test_examples():
    data = build(client=np.array([7, 5, 6]))
    assert data.heat_over_all()["kind"].counts.tolist() == [2, 1]


def test_a_row_of_a_local_table_has_one_holder():
    users = {"user": np.array([1, 0, 1]), "kind": np.zeros(3, dtype=int)}
    sizes = {"user": 2, "kind": 1}
    assert build(ids=users, tables=sizes, local=["user"]).local == {"user"}
    with pytest.raises(DataError) as caught:
        build(ids=users, tables=sizes, local=["kind"])
    said = complaint(caught)
    assert all(part in said for part in ("'kind'", "0 is held", "client 5", "client 7")), said


def test_a_local_row_may_not_be_read_in_another_clients_test():
    users = {"user": np.array([1, 1, 1])}
    with pytest.raises(DataError, match="client 7 and by client 5"):
        build(ids=users, tables={"user": 2}, local=["user"], test=np.array([False, True, False]))
