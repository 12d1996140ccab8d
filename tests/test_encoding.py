"""New rows are encoded as the data were; a value is its text, whatever the type of its column."""

from __future__ import annotations

from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch

import fedrows
from fedrows import FederatedData, Hashed, Vocabulary
from fedrows.data.encoder import Encoder
from fedrows.data.values import hash_of, hashed, text_of
from fedrows.errors import DataError
from fedrows.rows.ragged import Ragged

frames = pytest.mark.parametrize("frame", [pd.DataFrame, pl.DataFrame], ids=["pandas", "polars"])
LOG: dict[str, list[Any]] = {
    "user": [1, 1, 2, 2, 3, 3, 3],
    "item": [5, 7, 5, 9, 7, 9, 5],
    "seen": [[], ["a"], ["a", "b"], ["b"], ["c", "a", "b"], ["c"], []],
    "price": [1.0, 2.5, 3, 4, 5, 6, 7],
    "like": [1, 0, 1, 1, 0, 0, 1],
    "held": [False, False, False, False, False, False, True],
}
COLUMNS: dict[str, Any] = {
    "client": "user", "label": "like", "features": ["item", "seen"], "numbers": ["price"],
    "test": "held", "max_length": 2,
}  # fmt: skip


def log(frame: Any, **options: Any) -> FederatedData:
    return FederatedData.from_frame(frame, **(COLUMNS | options))


@pytest.mark.parametrize(
    "values",
    [
        np.array([5, 70]), np.array([5, 70], dtype=np.int8), np.array([5, 70], dtype=np.uint64),
        np.array([5.0, 70.0]), np.array([5, 70], dtype=np.float32), np.array(["5", "70"]),
        np.array(["5", "70"], dtype=object), np.array([5, "70"], dtype=object),
        np.array([np.int64(5), 70.0], dtype=object), pd.Series(["5", "70"]).to_numpy(),
        pd.Series([5, 70], dtype="Int64").to_numpy(), pl.Series([5, 70]).to_numpy(),
        pl.Series(["5", "70"]).to_numpy(), pd.Series([5, 70], dtype="category").to_numpy(),
    ],
    ids=lambda x: f"{x.dtype} {type(x.tolist()[0]).__name__}",
)  # fmt: skip
def test_a_hash_depends_on_the_value_alone(values: np.ndarray) -> None:
    wanted = hashed("x", np.array([5, 70]), 1_000, False).tolist()
    assert hashed("x", values, 1_000, False).tolist() == wanted


def test_hashes_of_the_edges_of_whole_numbers() -> None:
    for number in (0, -1, 2**63 - 1, -(2**63), 2**64 - 1):
        dtype = np.uint64 if number >= 2**63 else np.int64
        for rows in (10, 1_000):
            (row,) = hashed("x", np.array([number], dtype=dtype), rows, False).tolist()
            assert row == hash_of(str(number)) % rows
    assert len({hash_of(x) for x in ("5", "05", "5.0", " 5", "+5", "-0", "0", "")}) == 8
    assert hash_of(10**30) == hash_of(str(10**30))
    assert hash_of(True) == hash_of(1)


def test_the_text_of_a_value() -> None:
    assert text_of(np.float32(0.1)) == text_of(0.1) == "0.1"
    assert text_of("5.0", "number") == text_of(5) == "5"
    assert text_of("5.0") == "5.0"
    day = text_of(date(2026, 1, 2))
    assert day == text_of(np.datetime64("2026-01-02")) == text_of("2026-01-02", "time")
    for bad, kind in (("x", "number"), ("nan", "number"), (5, "time"), ([1], "text")):
        with pytest.raises(ValueError, match=r"."):
            text_of(bad, kind)


def test_a_hash_in_parquet_is_that_of_any_frame(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    rows = []
    for name, dtype in {"whole": "int32", "text": "string", "fraction": "float64"}.items():
        frame = pd.DataFrame({k: LOG[k] for k in ("user", "item", "like", "held")})
        frame["item"] = frame["item"].astype(dtype)
        frame.to_parquet(tmp_path / f"{name}.parquet")
        options = COLUMNS | {"features": ["item"], "numbers": [], "tables": {"item": Hashed(50)}}
        data = fedrows.read_parquet(tmp_path / f"{name}.parquet", store=tmp_path / name, **options)
        rows += [data.train.ids["item"], data.encode(frame.iloc[:6]).examples.ids["item"]]
    rows.append(log(pl.DataFrame(LOG), tables={"item": Hashed(50)}).train.ids["item"])
    assert all(torch.equal(x, rows[0]) for x in rows)


@frames
@pytest.mark.parametrize(
    "tables",
    [
        {}, {"item": Vocabulary(2)}, {"item": Hashed(40), "seen": Hashed(9)}, {"item": 10},
        {"item": Vocabulary(oov=False), "seen": Vocabulary(oov=False)},
    ],
    ids=["usual", "rare", "hashed", "given", "every"],
)  # fmt: skip
@pytest.mark.parametrize("stored", [False, True])
def test_the_same_rows_are_encoded_alike(
    frame: Any, tables: dict[str, Any], stored: bool, tmp_path: Path
) -> None:
    data = log(frame(LOG), tables=tables)
    if stored:
        fedrows.save_data(data, tmp_path / "store")
        data = fedrows.open_data(tmp_path / "store")
    training = {name: values[:6] for name, values in LOG.items()}
    encoded = data.encode(frame(training))
    assert encoded.clients is not None
    assert encoded.clients.tolist() == data.client_names.tolist() == [1, 2, 3]
    assert encoded.labelled
    assert encoded.unused == ("held",)
    assert_same(encoded.examples, data.train)
    assert data.encoder == Encoder.from_facts(data.encoder.as_facts())


def assert_same(one: Any, other: Any) -> None:
    everything = torch.arange(len(other))
    assert one.splits.tolist() == other.splits.tolist()
    for name, column in one.fields(everything).items():
        assert torch.equal(column, other.fields(everything)[name]), name
    assert torch.equal(one.label, other.label)


def test_data_of_rows_remember_too() -> None:
    data = FederatedData.build(
        client=np.array([0, 0, 1]),
        ids={"item": np.array([[1, 2], [0, 2], [3, 3]])},
        label=np.array([0, 1, 1]),
        test=np.zeros(3),
        tables={"item": 4},
    )
    encoded = data.encode({"item": [[1, 2], [0, 2], [3, 3]], "client": [0, 0, 1]})
    assert encoded.examples.ids["item"].tolist() == data.train.ids["item"].tolist()
    assert not encoded.labelled


def test_data_of_rows_with_a_vocabulary_take_its_values() -> None:
    for words, more, unknown in (
        (["<unknown>", "oat", "rye"], 0, 1),
        (["oat", "rye", "tea"], 1, 4),
        (["oat", "rye", "tea"], 0, None),
    ):
        data = FederatedData.build(
            client=np.array([0, 1]),
            ids={"item": np.array([2, 3])},
            label=np.array([0, 1]),
            test=np.zeros(2),
            tables={"item": 4 + more},
            padded=["item"],
            vocabulary={"item": np.array(words, dtype=object)},
        )
        assert data.encode({"item": words[1:]}).examples.ids["item"].tolist() == [2, 3]
        assert data.encoder.tables["item"].unknown == unknown


@frames
def test_new_clients_and_unseen_values(frame: Any) -> None:
    data = log(frame(LOG))
    new = {
        "user": ["x", "w", "x"],
        "item": ["5", "404", "7"],
        "seen": [["z", "a", "b", "q"], [], ["c"]],
        "price": [1, 2, 3],
        "colour": ["red"] * 3,
    }
    encoded = data.encode(frame(new))
    assert encoded.clients is not None
    assert encoded.clients.tolist() == ["w", "x"]
    assert encoded.row.tolist() == [1, 0, 2]
    unknown = data.encoder.tables["item"].unknown
    assert encoded.examples.ids["item"].tolist() == [unknown, 0, 1]
    seen = encoded.examples.ids["seen"]
    assert isinstance(seen, Ragged)
    assert seen.values.tolist() == [2, data.encoder.tables["seen"].unknown, 3]
    assert encoded.unknown == {"item": 1, "seen": 1}
    assert encoded.unused == ("colour",)
    assert encoded.in_order(encoded.examples.numbers["price"]).tolist() == [1, 2, 3]


def test_dates_are_values_too() -> None:
    days = [date(2026, 1, d) for d in (1, 2, 1, 3, 2, 3, 1)]
    data = log(pl.DataFrame(LOG | {"item": days}))
    for column in (days, pd.to_datetime(pd.Series(days)), [str(day) for day in days]):
        frame = pd.DataFrame(LOG | {"item": column})
        ids = data.encode(frame).examples.ids["item"].tolist()
        assert ids == [0, 1, 0, 2, 1, 2, 0]


GOOD = {name: LOG[name][:2] for name in ("user", "item", "seen", "price", "like")}
BAD: dict[str, tuple[dict[str, Any], dict[str, Any], list[str]]] = {
    "a missing feature": ({"item": None}, {}, ["no column 'item'", "user, seen, price"]),
    "a missing number": ({"price": None}, {}, ["no column 'price'"]),
    "no row": ({name: [] for name in GOOD}, {}, ["no row"]),
    "two lengths": ({"price": [1.0]}, {}, ["'price'", "1 values", "2"]),
    "no number": ({"price": [1, "b"]}, {}, ["'price'", "'b' in example 1", "must hold numbers"]),
    "a null": ({"item": [5, None]}, {}, ["'item'", "example 1"]),
    "an empty text": ({"seen": [["a"], ["b", ""]]}, {}, ["'seen'", "empty in its value 2"]),
    "digits apart": ({"item": ["5", "7_0"]}, {}, ["'item'", "numbers", "'7_0'"]),
    "text for numbers": ({"item": ["five", "7"]}, {}, ["'item'", "numbers", "'five'"]),
    "a value for a list": ({"seen": ["a", "b"]}, {}, ["'seen'", "held lists", "'a'"]),
    "a list for a value": ({"item": [[5], [7]]}, {}, ["'item'", "one value", "lists"]),
    "two numbers for one": ({"price": [[1, 2], [3, 4]]}, {}, ["'price'", "one number a row"]),
    "an unknown without a row": (
        {"item": [404, 5]}, {"item": Vocabulary(oov=False)}, ["'404'", "no row", "oov=True"],
    ),
    "an id outside": ({"item": [5, 10]}, {"item": 10}, ["'item'", "10", "0 to 9"]),
    "half an id": ({"item": [5, 0.5]}, {"item": 10}, ["'item'", "0.5", "whole"]),
    "a label outside": ({"like": [2, 0]}, {}, ["'like'", "0 or 1"]),
    "a client null": ({"user": [None, 1]}, {}, ["'user'", "example 0"]),
}  # fmt: skip


@pytest.mark.parametrize(("changes", "tables", "names"), BAD.values(), ids=BAD)
def test_rows_that_cannot_be_encoded_are_named(
    changes: dict[str, Any], tables: dict[str, Any], names: list[str]
) -> None:
    data = log(pd.DataFrame(LOG), tables=tables)
    rows = {k: v for k, v in (GOOD | changes).items() if v is not None}
    with pytest.raises(DataError) as caught:
        data.encode(rows)
    said = str(caught.value)
    assert "\n" not in said
    assert said.endswith(".")
    assert all(name in said for name in names), said


def test_a_list_longer_than_any_of_the_data_keeps_its_last_entries() -> None:
    data = log(pd.DataFrame(LOG), max_length=None)  # the longest has three
    one, other = (
        data.encode({"item": [5], "seen": [seen], "price": [1.0]}).examples.ids["seen"]
        for seen in (["b", "b", "c", "a", "b"], ["c", "a", "b"])
    )
    assert isinstance(one, Ragged)
    assert one.values.tolist() == other.values.tolist()
    assert one.length == 3


@pytest.mark.parametrize("seen", [["c", "y", "a"], ["c", "a"]])
def test_of_a_list_what_has_no_row_is_left_out(seen: list[str]) -> None:
    """A new item in a history, where items have no row for unknown ones."""
    data = log(pd.DataFrame(LOG), tables={"seen": Vocabulary(oov=False)}, max_length=None)
    encoded = data.encode({"item": [5, 7], "seen": [seen, ["z"]], "price": [1.0, 2.0]})
    lists = encoded.examples.ids["seen"]
    assert isinstance(lists, Ragged)
    assert lists.values.tolist() == [3, 1]
    assert lists.offsets.tolist() == [0, 2, 2]
    assert encoded.unknown == {"seen": len(seen) - 1}
    assert lists.length == 3
