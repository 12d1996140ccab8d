"""Files for `fedrows predict`: what a CSV file says is what a frame of the same rows says."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch

from fedrows import FederatedData
from fedrows.errors import DataError
from fedrows.serving.read_frame import read_frame

ROWS = pd.DataFrame(
    {
        "user": ["ann", "ann", "bob", "bob"],
        "item": ["007", "7", "oat", "rye"],
        "new": [True, False, True, True],
        "sale": [False, True, True, False],
        "sizes": [[1.0, 2.0], [3.0, -4.5], [0.0, 1.0], [1.0, 1.0]],
        "seen": [[], ["7"], ["007", "oat"], ["rye"]],
        "like": [True, False, True, False],
    }
)
DATA = FederatedData.from_frame(
    ROWS,
    client="user",
    label="like",
    features={"item": "item", "seen": "item", "new": "new"},
    numbers=["sale", "sizes"],
    test=0,
)


def in_file(path: Path, rows: pd.DataFrame = ROWS, **more: Any) -> Path:
    lists = {name: rows[name].map(lambda x: " ".join(map(str, x))) for name in ("sizes", "seen")}
    rows.assign(**lists).to_csv(path, index=False, **more)
    return path


def read(path: Path) -> Any:
    assert DATA.encoder is not None
    return read_frame(path, DATA.encoder)


def test_a_csv_file_is_encoded_as_its_frame(tmp_path: Path, monkeypatch: Any) -> None:
    """Lists, truth and several numbers in a cell; no library that reads frames is needed."""
    path = in_file(tmp_path / "rows.csv")
    with monkeypatch.context() as patch:
        for name in ("pandas", "polars"):
            patch.setitem(sys.modules, name, None)
        frame = read(path)
    found, wanted = DATA.encode(frame), DATA.encode(ROWS)
    every = torch.arange(len(ROWS))
    for name, column in wanted.examples.fields(every).items():
        assert torch.equal(found.examples.fields(every)[name], column), name
    assert torch.equal(found.examples.label, wanted.examples.label)
    assert not found.unknown


TEXT = "user,item,new,sale,sizes,seen,like\nann,7,True,False,1 2,7,True\n"
BAD = {
    "a column twice": (TEXT.replace("user,", "item,"), "2 columns called 'item'"),
    "a comma at the end of every row": (
        TEXT.replace("7,True\n", "7,True,\n"), "Row 1 .* has 8 values, but its header 7",
    ),
    "a row that is cut short": (TEXT + "bob,oat\n", "Row 2 .* has 2 values, but its header 7"),
    "no row": (TEXT.splitlines()[0] + "\n", "no row"),
    "nothing": ("", "no column 'item'"),
    "an item that is left out": (TEXT.replace(",7,", ",,", 1), "'item' is empty in its value 0"),
    "no number": (TEXT.replace("1 2", "1 two"), r"'sizes'.* 'two'.* numbers"),
    "a number that is left out": (TEXT.replace("True,False", "True,"), "'sale' is '' in example 0"),
}  # fmt: skip


@pytest.mark.parametrize(("text", "said"), BAD.values(), ids=BAD)
def test_a_csv_file_that_is_not_whole_is_refused(text: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text(text)
    with pytest.raises(DataError, match=said):
        DATA.encode(read(tmp_path / "rows.csv"))


def test_a_label_that_is_missing_is_named(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text(TEXT.replace("7,True\n", "7,\n"))
    frame = read(tmp_path / "rows.csv")
    with pytest.raises(DataError, match="Column 'like' is '' in example 0, but must hold numbers"):
        DATA.encode(frame)
    assert len(DATA.encode(frame | {"like": ["1"]}).examples) == 1
