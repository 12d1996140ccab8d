"""Amazon Electronics in its three forms: histories, splits, the 5-core, bad lines."""

import gzip
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedrows.data import amazon_log as amazon
from fedrows.data.amazon_log import AmazonOptions, dispersion
from fedrows.data.examples import Examples
from fedrows.errors import DataError
from fedrows.rows.ragged import Ragged

ALL = AmazonOptions(fewest_samples=1, core=1)
SPLIT = ALL.test_after

# user, item, stars, time; neither users nor times in order
EVENTS = [
    ("bob", "B2", 5, 30),
    ("ann", "B3", 5, 20),
    ("ann", "B1", 5, 10),
    ("ann", "B2", 4, 20),  # the same time as B3: the file's order counts
    ("bob", "B1", 1, SPLIT),
    ("ann", "B4", 3, SPLIT + 1),
    ("ann", "B2", 5, 40),
]
AUTHORS = (
    "1\t3\t7\t0\n0\t3\t8\t7\n1\t3\t2\t7\n1\t3\t4\t7,2\n0\t3\t5\t7,2,4\n"  # client 3, five rows
    "1\t1\t8\t0\n0\t1\t9\t8\n"  # client 1, two rows
)


def review(user: Any, item: Any, stars: Any, time: Any) -> str:
    """A line as it is published."""
    about = {"reviewerID": user, "asin": item, "reviewerName": "é", "helpful": [0, 1]}
    more = {"reviewText": 'It "works".\n', "overall": stars, "summary": "", "unixReviewTime": time}
    return json.dumps({**about, **more, "reviewTime": "01 1, 2013"}) + "\n"


REVIEWS = "".join(review(user, item, float(stars), time) for user, item, stars, time in EVENTS)
RATINGS = "".join(f"{user},{item},{stars}.0,{time}\n" for user, item, stars, time in EVENTS)
WHOLE = {"reviews": REVIEWS, "ratings": RATINGS, "authors": AUTHORS}


def made(folder: Path, form: str, text: str | bytes) -> Path:
    """A file of some form under its own name."""
    file = folder / amazon.FORMS[form][0]
    raw = text if isinstance(text, bytes) else text.encode()
    file.write_bytes(gzip.compress(raw) if file.suffix == ".gz" else raw)
    return file


def rows(examples: Examples) -> list[tuple[int, list[int], int]]:
    """Item, history and label of every example."""
    item, history = examples.ids["item"], examples.ids["history"]
    assert isinstance(item, torch.Tensor)
    assert isinstance(history, Ragged)
    lists = [part.tolist() for part in torch.split(history.values, history.sizes.tolist())]
    return list(zip(item.tolist(), lists, map(int, examples.label), strict=True))


@pytest.mark.parametrize("form", ["reviews", "ratings"])
def test_a_history_is_the_five_stars_before(tmp_path: Path, form: str) -> None:
    data = amazon.read(made(tmp_path, form, WHOLE[form]), form, ALL)
    assert data.client_names is not None
    assert data.client_names.tolist() == ["ann", "bob"]
    assert data.vocabulary["item"].tolist() == ["B1", "B2", "B3", "B4"]  # rows 1 to 4
    assert data.tables == {"user": 2, "item": 5}
    assert rows(data.train) == [
        (1, [], 1),
        (3, [1], 1),
        (2, [1, 3], 0),
        (2, [1, 3], 1),
        (2, [], 1),  # bob's first
        (1, [2], 0),  # at the very second, and so not after it
    ]
    assert rows(data.test) == [(4, [1, 3, 2], 0)]
    assert data.target == ("item", None)
    assert data.padded == {"item"}
    assert data.train.splits.tolist() == [0, 4, 6]
    users = data.train.ids["user"]
    assert isinstance(users, torch.Tensor)
    assert users.tolist() == [0, 0, 0, 0, 1, 1]
    assert data.notes == (
        "Heat dispersion over items in all data: 2; with histories 2.",
        "1 of 1 test examples (100%) are about an item that no training example is about.",
    )


def test_a_history_is_cut_to_its_last_items(tmp_path: Path) -> None:
    file = made(tmp_path, "reviews", REVIEWS)
    data = amazon.read(file, "reviews", replace(ALL, history=1))
    assert [history for _, history, _ in rows(data.train)] == [[], [1], [3], [3], [], [2]]
    column = data.train.ids["history"]
    assert isinstance(column, Ragged)
    assert column.length == 1
    without = amazon.read(file, "reviews", replace(ALL, history=0))
    assert [history for _, history, _ in rows(without.train)] == [[]] * 6


def test_clients_are_those_with_enough_reviews(tmp_path: Path) -> None:
    text = "".join(review("many", f"B{n}", 5.0, n) for n in range(40))
    text += "".join(review("few", f"B{n}", 5.0, n) for n in range(39))
    data = amazon.read(made(tmp_path, "reviews", text), "reviews", AmazonOptions())
    assert data.client_names is not None
    assert data.client_names.tolist() == ["many"]
    with pytest.raises(DataError, match=r"No user in .* has 41 reviews: choose a lower fewest-sam"):
        amazon.read(made(tmp_path, "reviews", text), "reviews", AmazonOptions(fewest_samples=41))


def test_the_core_of_a_ratings_file(tmp_path: Path) -> None:
    # c rates X alone; without c's, X has one rating, and without that a has one
    pairs = [("a", "X"), ("a", "Y"), ("b", "Y"), ("b", "Z"), ("c", "X"), ("d", "Y"), ("d", "Z")]
    text = "".join(f"{user},{item},5.0,1\n" for user, item in pairs)
    data = amazon.read(made(tmp_path, "ratings", text), "ratings", replace(ALL, core=2))
    assert data.client_names is not None
    assert data.client_names.tolist() == ["b", "d"]
    assert data.vocabulary["item"].tolist() == ["Y", "Z"]
    with pytest.raises(DataError, match=r"No user in .* has 1 reviews"):
        amazon.read(made(tmp_path, "ratings", text), "ratings", replace(ALL, core=3))


def test_the_authors_rows_hold_out_each_clients_last(tmp_path: Path) -> None:
    data = amazon.read(made(tmp_path, "authors", AUTHORS), "authors", AmazonOptions())
    assert data.client_names is not None
    assert data.client_names.tolist() == [1, 3]
    assert data.tables == {"user": 4, "item": 10}
    assert rows(data.train) == [
        (8, [], 1),
        (9, [8], 0),  # a fifth of two is less than one
        (7, [], 1),
        (8, [7], 0),
        (2, [7], 1),
        (4, [7, 2], 1),
    ]
    assert rows(data.test) == [(5, [7, 2, 4], 0)]
    assert data.notes[0] == "The authors' training rows, of each client the last 20% held out."
    half = amazon.read(made(tmp_path, "authors", AUTHORS), "authors", AmazonOptions(test_share=0.5))
    assert len(half.test) == 3
    short = amazon.read(made(tmp_path, "authors", AUTHORS), "authors", AmazonOptions(history=2))
    assert rows(short.test) == [(5, [2, 4], 0)]


def test_dispersion_counts_a_client_once(tmp_path: Path) -> None:
    client = np.array([0, 0, 0, 1, 2, 2])
    assert dispersion(client, np.array([7, 7, 7, 7, 7, 9])) == 3


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (REVIEWS[:60] + "\n", "is no whole JSON object ("),
        ("\n", "'' is no whole JSON object (expecting value at character 1)"),
        ("[5]\n", "'[5]' is no object"),
        ('{"reviewerID": "a", "asin": "b", "overall": 5.0}\n', "the object has no unixReviewTime"),
        (review("a", "b", "five", 1), "overall 'five' is not from 1 to 5"),
        (review("a", "b", 6.0, 1), "overall 6.0 is not from 1 to 5"),
        (review("a", "b", [5], 1), "overall [5] is not from 1 to 5"),
        (review("a", "b", 5.0, "May"), "unixReviewTime 'May' is not a whole number of seconds"),
        (review("a", "b", 5.0, 1.5), "unixReviewTime 1.5 is not a whole number of seconds"),
        (review(7, "b", 5.0, 1), "reviewerID 7 is no text"),
    ],
)
def test_a_bad_review_is_named_or_skipped(tmp_path: Path, line: str, said: str) -> None:
    check_bad(made(tmp_path, "reviews", REVIEWS + line + REVIEWS), "reviews", said)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("a,b,5.0\n", "'a,b,5.0' has 3 fields, not 4"),
        ("a,b,5.0,1,2\n", "has 5 fields, not 4"),
        ("\n", "'' has 1 fields, not 4"),
        ("a,b,five,1\n", "rating 'five' is not a number"),
        ("a,b,6.0,1\n", "rating 6.0 is not from 1 to 5"),
        ("a,b,4.5,1\n", "rating 4.5 is not from 1 to 5"),
        ("a,b,5.0,yesterday\n", "timestamp 'yesterday' is not a whole number of seconds"),
        ("a,,5.0,1\n", "item '' is no id of 1 to 32 letters and digits"),
        ("\N{SNOWMAN},b,5.0,1\n", "user '\N{SNOWMAN}' is no id"),
    ],
)
def test_a_bad_rating_is_named_or_skipped(tmp_path: Path, line: str, said: str) -> None:
    check_bad(made(tmp_path, "ratings", RATINGS + line + RATINGS), "ratings", said)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("1\t3\t7\n", "has 3 fields, not 4"),
        ("2\t3\t7\t0\n", "label '2' is not 0 or 1"),
        ("1\tx\t7\t0\n", "user 'x' is not a whole number"),
        ("1\t3\t0\t0\n", "item '0' is not a whole number above 0"),
        ("1\t3\t7\t\n", "history '' is not 0 or item numbers between commas"),
        ("1\t3\t7\t4,,5\n", "history '4,,5' is not 0 or item numbers"),
        ("1\t3\t7\t4,0\n", "history '4,0' is not 0 or item numbers"),
        ("1\t3\t7\t" + "4," * 50 + "\n", "history '" + "4," * 30 + "'… is not 0 or item numbers"),
    ],
)
def test_a_bad_row_of_the_authors_is_named_or_skipped(tmp_path: Path, line: str, said: str) -> None:
    check_bad(made(tmp_path, "authors", AUTHORS + line + AUTHORS), "authors", said)


def check_bad(file: Path, form: str, said: str) -> None:
    with pytest.raises(DataError) as failure:
        amazon.read(file, form, ALL)
    assert f"Line 8 of {file} cannot be right: " in str(failure.value)
    assert said in str(failure.value)
    data = amazon.read(file, form, replace(ALL, skip_bad=True))
    assert len(data.train) + len(data.test) == 14
    assert f"1 line of {file.name} left out as bad, the first of them line 8: " in data.notes[0]
    assert said in data.notes[0]


@pytest.mark.parametrize("form", WHOLE)
def test_bytes_that_are_not_utf_8_are_named_or_skipped(tmp_path: Path, form: str) -> None:
    lines = WHOLE[form].encode().splitlines(keepends=True)
    lines.insert(2, b"{\xff}\n")
    lines.insert(5, b"\xfe\n")
    file = made(tmp_path, form, b"".join(lines))
    with pytest.raises(DataError, match=r"Line 3 of .* right: byte 2 is 0xff, not utf-8; --skip-b"):
        amazon.read(file, form, ALL)
    data = amazon.read(file, form, replace(ALL, skip_bad=True))
    assert data.notes[0].startswith(f"2 lines of {file.name} left out as bad, the first of them li")
    assert len(data.train) + len(data.test) == 7


@pytest.mark.parametrize("form", WHOLE)
def test_line_ends_may_differ_and_blocks_may_be_small(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    whole = amazon.read(made(tmp_path, form, WHOLE[form]), form, ALL)
    monkeypatch.setattr("fedrows.files.text_files.PIECE", 7)
    file = made(tmp_path, form, WHOLE[form].replace("\n", "\r\n").rstrip())
    assert rows(amazon.read(file, form, ALL).train) == rows(whole.train)
    bad = WHOLE[form].splitlines(keepends=True)
    bad.insert(4, "?\n")
    with pytest.raises(DataError, match=r"Line 5 of "):
        amazon.read(made(tmp_path, form, "".join(bad)), form, ALL)


@pytest.mark.parametrize("form", WHOLE)
def test_a_file_that_is_not_it_is_named(tmp_path: Path, form: str) -> None:
    with pytest.raises(DataError, match=r"There is no file .*none\.gz\."):
        amazon.read(tmp_path / "none.gz", form, ALL)
    with pytest.raises(DataError, match=r" is empty\."):
        amazon.read(made(tmp_path, form, ""), form, ALL)
    with pytest.raises(DataError):
        amazon.read(made(tmp_path, form, "?\n"), form, replace(ALL, skip_bad=True))


def test_a_line_without_an_end_is_no_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedrows.files.text_files.PIECE", 64)
    monkeypatch.setattr("fedrows.files.text_files.LONGEST", 100)
    file = made(tmp_path, "ratings", RATINGS + "x" * 1000)
    with pytest.raises(DataError, match=r"Line 8 of .* has no end within 100 bytes"):
        amazon.read(file, "ratings", ALL)


def test_a_download_cut_short_is_named(tmp_path: Path) -> None:
    file = made(tmp_path, "reviews", REVIEWS)
    file.write_bytes(file.read_bytes()[:-20])
    with pytest.raises(DataError, match=r"cannot be read to its end \(Compressed file ended be"):
        amazon.read(file, "reviews", replace(ALL, skip_bad=True))


def test_the_file_that_is_there_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDROWS_DATA", str(tmp_path))
    with pytest.raises(
        DataError, match=r"Electronics_5\.json\.gz: run `fedrows data fetch amazon`"
    ):
        amazon.load(ALL)
    (tmp_path / "amazon").mkdir()
    for form in ("authors", "ratings", "reviews"):  # the last one made is the first looked for
        made(tmp_path / "amazon", form, WHOLE[form])
        names = amazon.load(ALL).client_names
        assert names is not None
        assert names.tolist() == ([1, 3] if form == "authors" else ["ann", "bob"])
    names = amazon.load(replace(ALL, form="authors")).client_names
    assert names is not None
    assert names.tolist() == [1, 3]
    (tmp_path / "amazon" / "ratings_Electronics.csv").unlink()
    with pytest.raises(
        DataError, match=r"There is no file .*ratings_Electronics\.csv: put it ther"
    ):
        amazon.load(replace(ALL, form="ratings"))


def test_the_authors_rows_at_hand_have_their_numbers(data_folder: Path) -> None:
    data = amazon.read(data_folder / "amazon" / "authors_train.tsv.gz", "authors", AmazonOptions())
    assert data.clients == 1_859
    assert (len(data.train), len(data.test)) == (80_505, 19_205)
    assert int(data.train.label.sum() + data.test.label.sum()) == 55_363
    assert data.tables == {"user": 1_870, "item": 33_136}
    heat = data.heat_over_all()["item"]
    assert heat.dispersion == 232
    assert len(heat.ids) == 29_303
    assert data.notes[1:] == (
        "Heat dispersion over items in all data: 232; with histories 232.",
        "5,868 of 19,205 test examples (31%) are about an item that no training example is about.",
    )
    history = data.train.ids["history"]
    assert isinstance(history, Ragged)
    assert int(history.sizes.max()) == 100
