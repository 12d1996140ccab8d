"""Frames with lists, numbers and vocabularies, and pieces by client, become federations."""

from __future__ import annotations

from datetime import date, datetime, time, timedelta
from decimal import Decimal
from uuid import UUID

import numpy as np
import pandas as pd
import polars as pl
import pytest

from fedrows.data.federation import FederatedData
from fedrows.data.splits import Split
from fedrows.data.vocabulary import Hashed, Vocabulary
from fedrows.errors import DataError

frames = pytest.mark.parametrize("frame", [pd.DataFrame, pl.DataFrame], ids=["pandas", "polars"])
LOG = {
    "user": ["ann", "ann", "ann", "bob", "bob", "eve"],
    "item": ["tea", "rye", "tea", "oat", "egg", "tea"],
    "seen": [[], ["tea"], ["tea", "rye"], ["rye"], ["rye", "oat", "rye"], ["egg"]],
    "page": [3, 0, 1, 0, 3, 3],
    "age": [30.0, 30, 31, 50, 50, 7],
    "time": [10, 20, 30, 10, 40, 20],
    "trust": [1.0, 0.5, 1, 2, 0, 1],
    "like": [1, 0, 1, 1, 0, 0],
    "held": [False, False, True, False, True, False],
}


def log(frame, **options) -> FederatedData:
    columns = {"client": "user", "label": "like", "features": ["item"], "test": "held"}
    return FederatedData.from_frame(frame, **(columns | options))


@frames
def test_lists_are_ragged_features(frame):
    """One table for the item and for the items seen before it; row 0 means nothing."""
    every = {"item": Vocabulary(oov=False)}
    data = log(frame(LOG), features={"item": "item", "seen": "item"}, tables=every)
    assert data.vocabulary["item"].tolist() == ["egg", "oat", "rye", "tea"]
    assert data.tables == {"item": 5}
    assert data.padded == {"item"}
    assert data.train.ids["item"].tolist() == [4, 3, 2, 4]
    seen = data.train.ids["seen"]
    assert seen.values.tolist() == [4, 3, 1]
    assert seen.offsets.tolist() == [0, 0, 1, 2, 3]
    assert seen.length == 3  # of the longest list, which a test example has
    assert data.index["item"].slice(0, 1).ids.tolist() == [3, 4]
    assert data.slots["seen"].values.tolist() == [1, 1, 0]
    assert data.test.ids["seen"].values.tolist() == [4, 3, 3, 2, 3]
    assert data.target == ("item", None)


@frames
@pytest.mark.parametrize("limit", [2, {"seen": 2}])
def test_of_long_lists_the_last_entries_are_kept_and_it_is_said_once(frame, limit):
    every = dict.fromkeys(["item", "seen"], Vocabulary(oov=False))
    data = log(frame(LOG), features=["item", "seen"], max_length=limit, tables=every)
    assert data.test.ids["seen"].values.tolist() == [4, 3, 2, 3]
    assert data.test.ids["seen"].offsets.tolist() == [0, 2, 4]
    assert data.train.ids["seen"].length == 2
    assert data.notes == ("Column 'seen': of 1 of 6 lists only the last 2 entries are kept.",)


def test_an_array_column_of_polars_is_of_fixed_length():
    pairs = pl.Series("pair", [[1, 2]] * 5 + [[0, 2]], dtype=pl.Array(pl.Int64, 2))
    data = log(pl.DataFrame(LOG).with_columns(pairs), features=["pair"])
    assert data.train.ids["pair"].tolist() == [[1, 2]] * 3 + [[0, 2]]


@frames
def test_numbers_and_weights(frame):
    data = log(frame(LOG), numbers=["age", "page"], weight="trust")
    assert data.train.numbers["age"].tolist() == [30, 30, 50, 7]
    assert data.test.numbers["page"].tolist() == [1, 3]
    assert data.train.weight.tolist() == [1, 0.5, 2, 1]


def test_numbers_of_equal_length_are_one_feature():
    data = log(pd.DataFrame(LOG | {"place": [[1.5, 2]] * 6}), numbers=["place"])
    assert data.train.numbers["place"].tolist() == [[1.5, 2]] * 4


@frames
def test_labels_of_three_kinds(frame):
    assert log(frame(LOG), label="page", labels="classes").train.label.tolist() == [3, 0, 0, 3]
    assert log(frame(LOG), label="age", labels="numbers").train.label.tolist() == [30, 30, 50, 7]


@frames
def test_a_vocabulary_knows_training_only(frame):
    data = log(frame(LOG))  # this is what a table gets that is not listed
    assert data.vocabulary["item"].tolist() == ["oat", "rye", "tea"]
    assert data.tables["item"] == 4
    assert data.encoder.tables["item"].unknown == 3
    assert data.test.ids["item"].tolist() == [2, 3]
    assert data.notes == (
        "Table 'item': 1 of 2 ids of held-out examples never occur in training and read row 3, "
        "out of vocabulary.",
    )


@frames
def test_a_minimum_count(frame):
    data = log(frame(LOG), tables={"item": Vocabulary(min_count=2)})
    assert data.vocabulary["item"].tolist() == ["tea"]
    assert data.train.ids["item"].tolist() == [0, 1, 1, 0]
    assert len(data.notes) == 2


@frames
def test_hashed_tables(frame):
    options = {"features": {"item": "t", "seen": "t", "page": "p"}}
    options["tables"] = {"t": Hashed(100), "p": Hashed(7)}
    data = log(frame(LOG), **options)
    assert data.tables == {"t": 100, "p": 7}
    assert data.vocabulary == {}
    tea, rye = data.train.ids["item"][:2].tolist()
    assert data.train.ids["seen"].values.tolist()[:2] == [tea, rye]
    assert tea > 0
    assert data.test.ids["seen"].values.tolist()[:2] == [tea, rye]


@frames
def test_zeros_in_lists_of_given_ids_mean_nothing_and_it_is_said(frame):
    seen = {"seen": [[0, 2], [], [1], [2], [0], [0]]}
    data = log(frame(LOG | seen), features=["seen"], tables={"seen": 3})
    assert data.slots["seen"].values.tolist() == [-1, 0, 0, -1]
    assert "3 entries are 0" in data.notes[0]


@frames
def test_splits_by_time_and_by_client(frame):
    every = {"item": Vocabulary(oov=False)}
    after = log(frame(LOG), test=Split.after(20, "time"), tables=every)
    assert after.test.ids["item"].tolist() == [3, 0]
    last = log(frame(LOG), test=Split.last(1, time="time"))
    assert last.clients == 2
    assert len(last.test) == 3
    days = {"time": [date(2026, 1, day) for day in (1, 2, 3, 1, 4, 2)]}
    same = log(frame(LOG | days), test=Split.after("2026-01-02", "time"), tables=every)
    assert same.test.ids["item"].tolist() == [3, 0]


@frames
def test_a_local_table(frame):
    data = log(frame(LOG), features=["user", "item"], local={"user"})
    assert data.local == {"user"}
    assert data.tables["user"] == 4  # three users, and the row of those that are new


@frames
def test_clients_that_never_train_share_the_start_row_of_a_local_table(frame):
    """Their only examples are test examples; a local table needs no row for each of them."""
    new = {"user": ["a", "a", "x", "b", "y", "b"]}
    data = log(frame(LOG | new), features=["user", "item"], local={"user"})
    assert data.vocabulary["user"].tolist() == ["a", "b"]
    assert data.test.ids["user"].tolist() == [2, 2]
    assert "2 of 4 clients have no training data: left out of N." in data.notes
    rare = {"user": Vocabulary(min_count=3)}
    with pytest.raises(DataError, match="held by client 'a' and by client 'b'"):
        log(frame(LOG | new), features=["user", "item"], local={"user"}, tables=rare)


def test_pandas_types_that_are_not_numpys():
    frame = pd.DataFrame(LOG).astype({"page": "Int64", "like": "boolean", "item": "category"})
    data = log(frame, features=["item", "page"], tables={"page": 4})
    assert data.train.ids["page"].tolist() == [3, 0, 0, 3]
    assert data.train.label.tolist() == [1, 0, 1, 0]


@pytest.mark.parametrize(
    ("column", "dtype", "options"),
    [
        ("like", "boolean", {}), ("item", "string", {}), ("user", "string", {}),
        ("page", "Int64", {"features": ["page"]}), ("age", "Float64", {"numbers": ["age"]}),
        ("page", "Int64", {"features": ["item"], "test": Split.last(1, "page")}),
    ],
)  # fmt: skip
def test_a_missing_value_of_pandas_is_named(column, dtype, options):
    """Its NA is neither equal to itself nor different from itself."""
    frame = pd.DataFrame(LOG).astype({column: dtype})
    frame.loc[1, column] = pd.NA
    with pytest.raises(DataError, match=f"'{column}' has no value in example 1"):
        log(frame, **options)


def test_a_missing_value_of_pandas_within_a_list_is_named():
    frame = pd.DataFrame(LOG | {"seen": [[], ["a"], ["a", pd.NA], *[["b"]] * 3]})
    with pytest.raises(DataError, match="null within the list of example 2"):
        log(frame, features=["item", "seen"])


@pytest.mark.parametrize(
    "value",
    [UUID(int=1), Decimal("1.5"), b"tea", timedelta(1), time(9)],
    ids=lambda x: type(x).__name__,
)
def test_ids_that_could_not_be_served_are_refused(value):
    """A bundle keeps the text of every value, and these have none that is theirs alone."""
    frame = pd.DataFrame(LOG | {"item": pd.Series([value] * 6, dtype=object)})
    with pytest.raises(DataError, match=r"'item' holds .* an id is a number, text or a time"):
        log(frame)
    with pytest.raises(DataError, match="'item'"):
        log(frame.assign(item=pd.Series([value] * 6)))


def pieces() -> dict:
    """LOG, client by client."""
    frame = pd.DataFrame(LOG)
    return {user: its.drop(columns="user") for user, its in frame.groupby("user")}


def as_examples(frame: pd.DataFrame) -> list:
    return frame.to_dict("records")


def as_columns(frame: pd.DataFrame) -> dict:
    return {column: frame[column].tolist() for column in frame}


@pytest.mark.parametrize("form", [as_examples, as_columns, pl.from_pandas, pd.DataFrame])
@pytest.mark.parametrize("collection", [dict, iter], ids=["mapping", "generator"])
def test_pieces_by_client_are_the_same_as_a_frame(form, collection):
    options = {"features": {"item": "t", "seen": "t"}, "numbers": ["age"], "weight": "trust"}
    options |= {"label": "like", "test": Split.last(1, time="time"), "max_length": 2}
    clients = collection([(user, form(piece)) for user, piece in pieces().items()])
    data = FederatedData.from_clients(clients, **options)
    same = FederatedData.from_frame(pd.DataFrame(LOG), client="user", **options)
    assert data.client_names.tolist() == same.client_names.tolist()
    assert data.vocabulary["t"].tolist() == same.vocabulary["t"].tolist()
    for part, other in ((data.train, same.train), (data.test, same.test)):
        assert part.splits.tolist() == other.splits.tolist()
        assert part.ids["item"].tolist() == other.ids["item"].tolist()
        assert part.ids["seen"].values.tolist() == other.ids["seen"].values.tolist()
        assert part.numbers["age"].tolist() == other.numbers["age"].tolist()
        assert part.weight.tolist() == other.weight.tolist()
    assert data.notes == same.notes


def test_a_client_without_examples_is_left_out():
    clients = {7: [{"item": 3, "like": 1}], 2: []}
    data = FederatedData.from_clients(clients, label="like", features=["item"], test=0)
    assert data.client_names.tolist() == [7]
    assert data.notes == ("1 of 2 clients have no example: left out.",)


def test_the_names_may_be_a_feature():
    clients = {"b": {"like": [1, 0]}, "a": {"like": [1]}}
    data = FederatedData.from_clients(
        clients, client="user", label="like", features=["user"], local=["user"], test=0
    )
    assert data.train.ids["user"].tolist() == [0, 1, 1]


ONE = {"item": ["tea"], "like": [1]}
BAD_CLIENTS = {
    "nobody": ({}, ["not a single example"]),
    "nobody with examples": ({"a": []}, ["not a single example"]),
    "a missing column": ({"a": ONE, "b": {"item": ["rye"]}}, ["'b'", "'like'"]),
    "columns of two lengths": ({"a": ONE | {"like": [1, 0]}}, ["'a'", "2", "'item'"]),
    "a client twice": ([("a", ONE), ("a", ONE)], ["'a'", "twice"]),
    "no name": ([(None, ONE)], ["'client'"]),
    "examples of numbers": ({"a": [3]}, ["'a'", "mappings"]),
    "lists at some": ({"a": ONE, "b": {"item": [["tea"]], "like": [1]}}, ["'item'", "lists"]),
    "text and numbers": ({"a": ONE, "b": {"item": [3], "like": [1]}}, ["'item'", "order"]),
}


@pytest.mark.parametrize(("clients", "names"), BAD_CLIENTS.values(), ids=BAD_CLIENTS)
def test_bad_pieces_are_named(clients, names):
    with pytest.raises(DataError) as caught:
        FederatedData.from_clients(clients, label="like", features=["item"], test=0)
    assert_said(caught, names)


SEEN = {"features": ["item", "seen"]}
BAD = {
    "a column that is missing": ({}, {"features": ["shop"]}, ["no column 'shop'", "user, item"]),
    "a number that is missing": ({}, {"numbers": ["size"]}, ["no column 'size'"]),
    "a weight that is missing": ({}, {"weight": "size"}, ["no column 'size'"]),
    "a time that is missing": ({}, {"test": Split.last(1, "ts")}, ["no column 'ts'"]),
    "client null": ({"user": ["a", None, *"abab"]}, {}, ["'user'", "example 1"]),
    "label outside": ({"like": [0, 1, 2, 0, 0, 0]}, {}, ["'like'", "example 2", "0 or 1"]),
    "class outside": (
        {"page": [0, 1, -1, 0, 0, 0]}, {"label": "page", "labels": "classes"},
        ["'page'", "example 2", "-1"],
    ),
    "labels of no kind": ({}, {"labels": "stars"}, ["labels", "'stars'"]),
    "text in a given size": ({}, {"tables": {"item": 9}}, ["'item'", "text", "vocabulary"]),
    "lists of text in a given size": (
        {}, SEEN | {"tables": {"seen": 9}}, ["'seen'", "lists", "vocabulary"],
    ),
    "null within a list": (
        {"seen": [[], ["a"], ["a", None], *[["b"]] * 3]}, SEEN, ["'seen'", "null", "example 2"],
    ),
    "null within a list of numbers": (
        {"seen": [[], [1], [2], [3, None], [4], [4]]}, SEEN, ["'seen'", "null", "example 3"],
    ),
    "null instead of a list": (
        {"seen": [["a"], None, *[["b"]] * 4]}, SEEN, ["'seen'", "example 1", "empty list"],
    ),
    "lists of lists": ({"seen": [[[1], [2]]] * 6}, SEEN, ["'seen'", "lists of lists"]),
    "a list as a label": ({}, {"label": "seen"}, ["'seen'", "lists"]),
    "time of text": ({}, {"test": Split.last(1, "item")}, ["'item'", "text", "time"]),
    "time null": ({"time": [1, 2, None, 3, 4, 5]}, {"test": Split.last(1, "time")}, ["'time'"]),
    "number of text": ({}, {"numbers": ["seen"]}, ["'seen'"]),
    "number null": ({"age": [1, None, 2, 3, 4, 5]}, {"numbers": ["age"]}, ["'age'", "example 1"]),
    "label of words": (
        {"like": ["yes", "no", *["yes"] * 4]}, {}, ["'like'", "'yes'", "example 0", "numbers"],
    ),
    "a price with its sign": (
        {"age": ["3", "$4", *"5678"]}, {"numbers": ["age"]}, ["'age'", "'$4'", "example 1"],
    ),
    "the label as a feature": ({}, {"features": ["item", "like"]}, ["'like'", "label", "feature"]),
    "the label as a number": ({}, {"numbers": ["like"]}, ["'like'", "label", "feature"]),
    "weight negative": ({"trust": [1, 1, -1, 1, 1, 1]}, {"weight": "trust"}, ["'trust'", "-1"]),
    "an id and a number": ({}, {"numbers": ["item"]}, ["'item'", "both"]),
    "numbers as text": ({}, {"numbers": "age"}, ["numbers", "'age'"]),
    "max_length 0": ({}, SEEN | {"max_length": 0}, ["max_length", "0"]),
    "max_length of no feature": ({}, {"max_length": {"seen": 3}}, ["max_length", "'seen'"]),
    "rows of text": ({}, {"tables": {"item": "many"}}, ["'item'", "'many'"]),
    "hashed dates": (
        {"item": [date(2026, 1, 1)] * 6}, {"tables": {"item": Hashed(9)}}, ["'item'", "text"],
    ),
    "dates as numbers": (
        {"age": [date(2026, 1, 1)] * 6}, {"numbers": ["age"]}, ["'age'", "numbers"],
    ),
    "moments as numbers": (
        {"age": [datetime(2026, 1, 1)] * 6}, {"numbers": ["age"]}, ["'age'", "numbers"],
    ),
    "a target that is text": ({}, {"target": "item"}, ["target is 'item'", '("item", None)']),
    "a target of lists": (
        {}, SEEN | {"target": ("seen", None)}, ["'seen'", "no list", "item"],
    ),
    "a local table of many": ({}, {"local": ["item"]}, ["'item'", "'tea'", "'ann'", "'eve'"]),
    "a local table of none": ({}, {"local": ["shop"]}, ["'shop'", "item"]),
}  # fmt: skip


@frames
@pytest.mark.parametrize(("changes", "options", "names"), BAD.values(), ids=BAD)
def test_bad_frames_are_named(frame, changes, options, names):
    with pytest.raises(DataError) as caught:
        log(frame(LOG | changes), **options)
    assert_said(caught, names)


@frames
def test_an_empty_frame(frame):
    with pytest.raises(DataError, match="not a single example"):
        log(frame(LOG)[:0], features=["item", "seen"])


def assert_said(caught: pytest.ExceptionInfo[DataError], names: list[str]) -> None:
    said = str(caught.value)
    assert "\n" not in said
    assert said.endswith(".")
    assert all(name in said for name in names), said


def test_offsets_are_whole_numbers():
    data = log(pd.DataFrame(LOG | {"seen": [[]] * 6}), features=["item", "seen"])
    assert data.train.ids["seen"].offsets.dtype is data.train.splits.dtype
    assert np.array_equal(data.train.ids["seen"].offsets, np.zeros(5))
