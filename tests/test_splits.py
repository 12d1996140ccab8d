"""Which examples are held out."""

from __future__ import annotations

from datetime import UTC, date, datetime

import numpy as np
import pandas as pd
import polars as pl
import pytest

from fedrows.data.splits import Split, as_split, split_at_random
from fedrows.errors import DataError

OWNER = np.array([0, 1, 0, 1, 0, 2])
TIME = np.array([30, 20, 10, 50, 20, 40])


def marked(split: Split, time: np.ndarray | None = TIME) -> list[int]:
    return np.flatnonzero(split.mark(OWNER, time, seed=0)).tolist()


def test_at_random():
    split = Split.random(0.5)
    assert len(marked(split)) == 3
    assert split.mark(OWNER, None, 7).tolist() == split_at_random(6, 0.5, 7).tolist()


def test_by_time():
    assert marked(Split.after(30, "t")) == [3, 5]
    assert marked(Split.latest(0.5, "t")) == [0, 3, 5]
    assert marked(Split.latest(0, "t")) == []


def test_of_two_at_the_same_moment_the_later_row_is_later():
    assert marked(Split.latest(0.34, "t"), np.zeros(6)) == [4, 5]
    assert marked(Split.last(1, "t"), np.zeros(6)) == [3, 4, 5]


def test_the_last_of_each_client():
    """Client 0 has 30 10 20, client 1 has 20 50, client 2 has 40."""
    assert marked(Split.last(1), None) == [3, 4, 5]
    assert marked(Split.last(1, "t")) == [0, 3, 5]
    assert marked(Split.last(2, "t")) == [0, 1, 3, 4, 5]
    assert marked(Split.last(0.5, "t")) == [0, 3]  # one of three, one of two, none of one
    assert marked(Split.last(0), None) == []


def test_as_a_column_says():
    assert marked(Split.given("x"), np.array([0, 1, 0, 0, 0, 1])) == [1, 5]


@pytest.mark.parametrize("moment", [date(2026, 1, 3), "2026-01-03", np.datetime64("2026-01-03")])
@pytest.mark.parametrize(
    "days",
    [
        pd.Series(pd.date_range("2026-01-01", periods=6)).to_numpy(),
        pd.Series(pd.date_range("2026-01-01", periods=6, tz="UTC")).to_numpy(),
        pl.Series([date(2026, 1, day) for day in range(1, 7)]).to_numpy(),
        np.array([date(2026, 1, day) for day in range(1, 7)], dtype=object),
    ],
    ids=["pandas", "zone", "polars", "objects"],
)
def test_dates_are_times(days, moment):
    assert marked(Split.after(moment, "t"), days) == [3, 4, 5]
    assert marked(Split.latest(0.34, "t"), days) == [4, 5]


def test_moments_are_compared_in_utc():
    days = np.arange("2026-01-01", "2026-01-07", dtype="datetime64[D]")
    assert marked(Split.after(datetime(2026, 1, 3, tzinfo=UTC), "t"), days) == [3, 4, 5]


def test_shares_and_columns_are_splits():
    assert as_split(0.2) == Split.random(0.2)
    assert as_split("held") == Split.given("held")
    assert as_split(Split.last(3)) == Split.last(3)


TEXT = np.array(["monday"] * 6, dtype=object)
BAD = {
    "a share of all": (lambda: Split.random(1.0), ["test", "1.0"]),
    "a latest share of all": (lambda: Split.latest(1.0, "t"), ["test", "1.0"]),
    "a negative number": (lambda: Split.last(-1), ["-1"]),
    "a share of 1": (lambda: Split.last(1.0), ["1.0", "share"]),
    "no number": (lambda: Split.last("two"), ["'two'"]),
    "time of text": (lambda: marked(Split.last(1, "day"), TEXT), ["'day'", "text"]),
    "time of wide text": (lambda: marked(Split.after(3, "day"), TEXT.astype("U")), ["'day'"]),
    "no time": (
        lambda: marked(Split.after(3, "day"), np.array([1.0, np.nan, 1, 1, 1, 1])),
        ["'day'", "example 1"],
    ),
    "a number after dates": (
        lambda: marked(Split.after(3, "day"), TIME.astype("datetime64[s]")), ["'day'", "3"],
    ),
    "a date after numbers": (
        lambda: marked(Split.after(date(2026, 1, 1), "day")), ["'day'", "int64"],
    ),
}  # fmt: skip


@pytest.mark.parametrize(("act", "names"), BAD.values(), ids=BAD)
def test_what_cannot_be_held_out_is_named(act, names):
    with pytest.raises(DataError) as caught:
        act()
    said = str(caught.value)
    assert "\n" not in said
    assert said.endswith(".")
    assert all(name in said for name in names), said
