"""Parquet files, streamed, give the same federation as a frame in memory."""

from __future__ import annotations

import sys
from datetime import date, timedelta
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from test_store import assert_same

from fedrows import read_parquet
from fedrows.data.federation import FederatedData
from fedrows.data.splits import Split
from fedrows.data.stored import parquet_table
from fedrows.data.vocabulary import Hashed, Vocabulary
from fedrows.errors import DataError

ROWS = 400


def made_up(seed: int = 0) -> pd.DataFrame:
    """A log of 40 clients with a column of every kind."""
    rng = np.random.default_rng(seed)
    user = rng.integers(0, 40, ROWS)
    words = np.array([f"thing {i}" for i in range(60)])
    lists = [rng.integers(0, 30, n) for n in rng.integers(0, 6, ROWS)]
    return pd.DataFrame(
        {
            "user": user,
            "name": np.array([f"client {i}" for i in range(40)])[user],
            "item": rng.zipf(1.5, ROWS) % 50,
            "word": words[rng.zipf(1.5, ROWS) % 60],
            "seen": lists,
            "read": [words[one].tolist() for one in lists],
            "age": rng.random(ROWS),
            "time": rng.integers(0, 100, ROWS),
            "day": [date(2026, 1, 1) + timedelta(int(d)) for d in rng.integers(0, 90, ROWS)],
            "trust": rng.random(ROWS),
            "like": rng.integers(0, 2, ROWS),
            "stars": rng.integers(0, 5, ROWS),
            "held": (held := rng.random(ROWS) < 0.2),
            "tuned": ~held & (np.arange(ROWS) % 7 == 0),
        }
    )


@pytest.fixture
def small(monkeypatch):
    """Many batches and many parts."""
    monkeypatch.setattr(parquet_table, "BATCH", 2**12)
    monkeypatch.setattr(parquet_table, "PART", 2**13)


def written(folder: Path, frame: pd.DataFrame, files: int = 3) -> Path:
    """A folder of Parquet files with the rows of a frame, in row groups of 50."""
    folder.mkdir()
    size = -(-len(frame) // files)
    for number in range(files):
        part = frame[number * size : (number + 1) * size]
        part.to_parquet(folder / f"{number}.parquet", row_group_size=50, index=False)
    return folder


OPTIONS = {
    "plain": {},
    "text clients": {"client": "name"},
    "text ids": {"features": ["word"]},
    "lists": {"features": ["item", "seen"]},
    "lists only": {"features": ["read"]},
    "one table": {"features": {"item": "t", "seen": "t"}, "tables": {"t": Vocabulary(3)}},
    "one table of text": {"features": {"word": "t", "read": "t"}, "max_length": 2},
    "vocabulary": {"features": ["word"], "tables": {"word": Vocabulary()}},
    "hashed": {"features": ["word", "seen"], "tables": {"word": Hashed(9), "seen": Hashed(7)}},
    "given": {"features": ["item", "seen"], "tables": {"item": 50, "seen": 30}},
    "numbers": {"numbers": ["age", "time"], "weight": "trust"},
    "classes": {"label": "stars", "labels": "classes"},
    "regression": {"label": "age", "labels": "numbers"},
    "random": {"test": 0.4, "seed": 3},
    "after": {"test": Split.after(70, "time")},
    "after a day": {"test": Split.after("2026-03-01", "day")},
    "latest": {"test": Split.latest(0.3, "time")},
    "last": {"test": Split.last(2), "tables": {"item": Vocabulary(2)}},
    "last by time": {"test": Split.last(0.5, "time")},
    "given marks": {"test": "held"},
    "untrained clients": {"test": Split.last(10)},
    "no test": {"test": 0},
    "local": {"features": ["user", "item"], "local": ["user"]},
    "validation at random": {"validation": 0.3, "tables": {"item": Vocabulary(2)}},
    "validation by column": {"test": "held", "validation": "tuned"},
    "validation after": {"test": Split.last(1), "validation": Split.after(60, "time")},
    "validation before the last": {"test": Split.last(1, "time"),
                                   "validation": Split.last(1, "time")},
    "random before the last": {"test": Split.last(0.3, "day"), "validation": 0.2},
    "latest before the latest": {"test": Split.latest(0.3, "time"),
                                 "validation": Split.latest(0.2, "time")},
    "latest before the marked": {"test": "held", "validation": Split.latest(0.2, "day")},
    "last of what is left": {"test": 0.2, "validation": Split.last(1), "features": ["seen"]},
    "untrained with validation": {"test": Split.last(4), "validation": Split.last(8)},
    "days": {"features": ["item"], "test": Split.last(1, "day")},
}  # fmt: skip


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_files_give_what_a_frame_gives(tmp_path, small, options):
    frame = made_up()
    options = {"client": "user", "label": "like", "features": ["item"]} | options
    data = read_parquet(written(tmp_path / "raw", frame), store=tmp_path / "store", **options)
    assert_same(data, FederatedData.from_frame(frame, **options))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["raw", "store"]
    assert all(path.is_file() for path in (tmp_path / "store").iterdir())


def test_the_tests_have_many_parts(tmp_path, small):
    from fedrows.data.column_layout import Layout

    files = sorted(written(tmp_path / "raw", made_up()).iterdir())
    its = Layout(client="user", label="like", features=["item", "seen"])
    table = parquet_table.ParquetTable(files, its)
    assert table.batch < 100
    assert table.part < 200


def test_types_of_one_kind_go_together(tmp_path):
    """Narrow integers, dictionaries and large text are read as what they stand for."""
    frame = made_up()[["user", "word", "like"]]
    table = pa.Table.from_pandas(frame, preserve_index=False)
    types = [("user", pa.int16()), ("word", pa.dictionary(pa.int32(), pa.string())),
             ("like", pa.bool_())]  # fmt: skip
    (tmp_path / "raw").mkdir()
    pq.write_table(table[:200].cast(pa.schema(types)), tmp_path / "raw" / "a.parquet")
    types[1:] = [("word", pa.large_string()), ("like", pa.bool_())]
    pq.write_table(table[200:].cast(pa.schema(types)), tmp_path / "raw" / "b.parquet")
    options = {"client": "user", "label": "like", "features": ["word"]}
    data = read_parquet(tmp_path / "raw", store=tmp_path / "store", **options)
    assert_same(data, FederatedData.from_frame(frame, **options))


def test_arrays_of_one_length(tmp_path):
    pairs = pa.array([[1, 2], [3, 1], [2, 2]], pa.list_(pa.int64(), 2))
    table = pa.table({"user": [0, 1, 1], "pair": pairs, "like": [0, 1, 0]})
    pq.write_table(table, tmp_path / "a.parquet")
    data = read_parquet(
        tmp_path / "a.parquet", client="user", label="like", features=["pair"], test=0,
        store=tmp_path / "store",
    )  # fmt: skip
    assert data.train.ids["pair"].tolist() == [[0, 1], [2, 0], [1, 1]]
    assert data.target == ("pair", 0)


def test_a_second_start_reads_no_parquet(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDROWS_DATA", str(tmp_path / "data"))
    raw = written(tmp_path / "raw", made_up())
    options = {"client": "user", "label": "like", "features": ["item"]}
    first = read_parquet(raw, **options)
    (store,) = (tmp_path / "data" / "stores").iterdir()
    with monkeypatch.context() as without:
        without.setitem(sys.modules, "pyarrow", None)
        without.setitem(sys.modules, "pyarrow.parquet", None)
        assert_same(first, read_parquet(raw, **options))
        with pytest.raises(DataError, match=r"pip install 'fedrows\[data\]'"):
            read_parquet(raw, **options, seed=1)
    read_parquet(raw, **options, seed=1)
    made_up(1).to_parquet(raw / "2.parquet")
    read_parquet(raw, **options)
    assert len(list((tmp_path / "data" / "stores").iterdir())) == 3
    (store / "000.npy").write_bytes(b"")
    made_up()[268:].to_parquet(raw / "2.parquet")  # another time of change, so another store
    assert len(read_parquet(raw, **options).train) == len(first.train)


LISTS = pa.array([[1], None, [2]])
NULLS = pa.array([[1], [3, None], [2]])
BASE = {"user": [0, 1, 1], "item": [5, 6, 7], "seen": [[1], [2], []], "like": [0, 1, 0]}
BASE |= {"word": ["a", "b", "c"], "age": [0.5, 1.5, 2.5]}
BAD = {
    "a missing column": ({}, {"features": ["shop"]}, ["no column 'shop'", "user, item"]),
    "client null": ({"user": [0, None, 1]}, {}, ["'user'", "example 1"]),
    "client NaN": ({"user": [0, np.nan, 1.0]}, {}, ["'user'", "example 1"]),
    "label null": ({"like": [0, 1, None]}, {}, ["'like'", "example 2"]),
    "label outside": ({"like": [0, 1, 2]}, {}, ["'like'", "example 2", "0 or 1"]),
    "id null": ({"item": [None, 1, 2]}, {}, ["'item'", "example 0"]),
    "id outside": ({}, {"tables": {"item": 7}}, ["'item'", "example 2", "id 7"]),
    "text in a given size": (
        {}, {"features": ["word"], "tables": {"word": 7}}, ["'word'", "text", "vocabulary"],
    ),
    "null instead of a list": ({"seen": LISTS}, {"features": ["seen"]}, ["'seen'", "example 1"]),
    "null within a list": ({"seen": NULLS}, {"features": ["seen"]}, ["'seen'", "example 1"]),
    "list entry outside": (
        {}, {"features": ["seen"], "tables": {"seen": 2}}, ["'seen'", "example 1", "id 2"],
    ),
    "array entry outside": (
        {"pair": pa.array([[1, 2], [3, 1], [2, 2]], pa.list_(pa.int64(), 2))},
        {"features": ["pair"], "tables": {"pair": 3}}, ["'pair'", "example 1", "id 3"],
    ),
    "time of text": ({}, {"test": Split.last(1, "word")}, ["'word'", "text"]),
    "latest time of text": ({}, {"test": Split.latest(0.5, "word")}, ["'word'", "text"]),
    "marks of many": ({}, {"test": "item"}, ["'item'", "example 0", "5"]),
    "negative weight": ({"age": [1.0, -1.0, 1.0]}, {"weight": "age"}, ["'age'", "example 1"]),
    "number of text": ({}, {"numbers": ["word"]}, ["'word'", "numbers"]),
    "text and numbers in one table": (
        {}, {"features": {"word": "t", "item": "t"}}, ["'t'", "word, item"],
    ),
    "marks of both": (
        {}, {"test": "like", "validation": "like"}, ["'like'", "1 of 3", "for validation"],
    ),
    "all held out": ({}, {"test": Split.last(2)}, ["no training example"]),
    "a local row of two": (
        {"item": [5, 6, 5]}, {"local": ["item"]}, ["'item'", "5 is held", "client 0", "client 1"],
    ),
    "a local table of none": ({}, {"local": ["shop"]}, ["'shop'"]),
    "no rows": ({name: pa.array([], pa.int64()) for name in BASE}, {}, ["not a single example"]),
}  # fmt: skip


@pytest.mark.parametrize(("changes", "options", "names"), BAD.values(), ids=BAD)
def test_bad_files_are_named_and_leave_nothing(tmp_path, changes, options, names):
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table(BASE | changes), path)
    options = {"client": "user", "label": "like", "features": ["item"], "test": 0} | options
    with pytest.raises(DataError) as caught:
        read_parquet(path, store=tmp_path / "store", **options)
    assert_said(caught, names)
    assert [path.name for path in tmp_path.iterdir()] == ["a.parquet"]


def load(paths) -> FederatedData:
    return read_parquet(
        paths, client="user", label="like", features=["item"], store=Path(paths[0]).parent / "store"
        if isinstance(paths, list) else Path(paths) / "store",
    )  # fmt: skip


def test_the_row_is_numbered_through_all_files(tmp_path):
    for number, like in enumerate(([0, 1, 0], [0, 1, 3])):
        pq.write_table(pa.table(BASE | {"like": like}), tmp_path / f"{number}.parquet")
    with pytest.raises(DataError) as caught:
        load(tmp_path)
    assert_said(caught, ["'like'", "example 5"])


@pytest.mark.parametrize("left", [0, 3, 200, -8])
def test_a_file_cut_short(tmp_path, left):
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table(BASE), path)
    path.write_bytes(path.read_bytes()[:left])
    with pytest.raises(DataError) as caught:
        load([path])
    assert_said(caught, [str(path), "not a whole Parquet file"])


def test_a_file_with_a_hole(tmp_path):
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({k: BASE[k] * 5000 for k in ("user", "item", "like")}), path)
    whole = bytearray(path.read_bytes())
    whole[4:400] = bytes(396)
    path.write_bytes(whole)
    with pytest.raises(DataError) as caught:
        load([path])
    assert_said(caught, [str(path), "not a whole Parquet file"])
    assert [path.name for path in tmp_path.iterdir()] == ["a.parquet"]


def test_mixed_schemas(tmp_path):
    pq.write_table(pa.table(BASE), tmp_path / "a.parquet")
    pq.write_table(pa.table(BASE | {"item": ["x", "y", "z"]}), tmp_path / "b.parquet")
    with pytest.raises(DataError) as caught:
        load(tmp_path)
    assert_said(caught, ["'item'", "text", "b.parquet", "whole numbers", "a.parquet"])


@pytest.mark.parametrize("paths", [[], ["nowhere.parquet"], "empty"])
def test_no_files(tmp_path, paths):
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "_part.parquet").touch()
    with pytest.raises(DataError) as caught:
        read_parquet(
            tmp_path / paths if isinstance(paths, str) else paths,
            client="user", label="like", features=["item"],
        )  # fmt: skip
    assert_said(caught, ["Parquet" if paths != ["nowhere.parquet"] else "nowhere"])


def assert_said(caught: pytest.ExceptionInfo[DataError], names: list[str]) -> None:
    said = str(caught.value)
    assert "\n" not in said
    assert said.endswith(".")
    assert all(name in said for name in names), said
