"""The light client encodes raw values as `FederatedData.encode` does, to the last row."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from fedrows_device.batches import ExamplesError
from fedrows_device.encoding import encoded
from fedrows_device.examples_file import read_examples

from fedrows import FederatedData, Hashed, Scaled, Vocabulary
from fedrows.data.values import text_of
from fedrows.rows.ragged import Ragged

LOG: dict[str, list[Any]] = {
    "user": [1, 1, 2, 2, 3, 3],
    "item": [5, 7, 5, 9, 7, -3],
    "word": ["a", "05", "b", "ä", "a", "12"],
    "day": ["2024-01-02", "2024-01-03", "2024-01-02", "2024-02-01", "2024-01-02", "2024-01-02"],
    "seen": [[], ["a"], ["a", "b"], ["b"], ["c", "a", "b"], ["c"]],
    "pair": [[1, 2], [2, 3], [3, 1], [1, 1], [2, 2], [3, 3]],
    "price": [1.0, 2.5, 3, 4, 5, 6],
    "like": [1, 0, 1, 1, 0, 0],
}
NEW: dict[str, list[Any]] = {  # of one person: known values, others, and other types of them
    "item": ["5", 7.0, 9, 2**40, "-3", True, "1e2", 6],
    "word": ["a", "05", 5, "never seen", "ä", 12.0, "12", False],
    "day": ["2024-01-02", "2024-01-02T00:00", "2030-01-01", *["2024-02-01"] * 5],
    "seen": [[], ["a", "c", "b"], ["?"], ["b"], ["c", "a"], ["c"], ["a"], []],
    "pair": [[1, 2], [9, 3], [3, 1], [1, 1], [2, 2], [3, 3], [1, 3], [2, 1]],
    "price": [1.0, 2.0, 3, 4, 5, 6, 7, 8],
    "like": [1, 0, 1, 0, 1, 0, 1, 0],
}


def build(how: Any) -> FederatedData:
    tables = {name: how for name in ("item", "word", "seen", "pair", "day")}
    frame = pd.DataFrame({**LOG, "day": pd.to_datetime(LOG["day"])})
    if isinstance(how, Hashed):
        del tables["day"]
        frame["day"] = frame["day"].astype(str)
    features = ["item", "word", "seen", "pair", "day"]
    return FederatedData.from_frame(
        frame, client="user", label="like", features=features, tables=tables,
        numbers={"price": Scaled(center=2, spread=4)}, max_length=2,
    )  # fmt: skip


def parts_of(data: FederatedData) -> tuple[dict[str, Any], dict[str, list[str]]]:
    """What a program has of the encoding: a part of its manifest, and vocabulary.json."""
    assert data.encoder is not None
    kinds = {its.table: its.kind for its in data.encoder.features.values()}
    words = {t: [text_of(x, kinds[t]) for x in values] for t, values in data.vocabulary.items()}
    fields: dict[str, dict[str, Any]] = {}
    for name, column in data.train.ids.items():
        fields[name] = {"table": data.fields[name], "kind": "one"}
        if isinstance(column, Ragged):
            fields[name] |= {"kind": "list", "length": column.length}
        elif column.dim() == 2:
            fields[name] |= {"kind": "several", "width": column.shape[1]}
    tables = {
        t: {"rows": rows, "padded": t in data.padded, "local": False}
        for t, rows in data.tables.items()
    }
    facts = {"encoder": data.encoder.as_facts(), "fields": fields, "tables": tables}
    facts |= {"labels": data.labels, "numbers": {name: [] for name in data.train.numbers}}
    return json.loads(json.dumps(facts)), words


@pytest.mark.parametrize("how", [Vocabulary(), Vocabulary(min_count=2), Hashed(50)], ids=str)
def test_raw_values_get_the_rows_that_training_gives_them(how: Any, tmp_path: Path) -> None:
    data = build(how)
    manifest, words = parts_of(data)
    new = {name: values for name, values in NEW.items()}
    wanted = data.encode(new).examples
    found = encoded(manifest, words, json.loads(json.dumps(new)))
    for name, column in wanted.ids.items():
        if isinstance(column, Ragged):
            ends = column.offsets.tolist()
            lists = [column.values[a:b].tolist() for a, b in pairwise(ends)]
            assert found["ids"][name] == lists, name
        else:
            assert found["ids"][name] == column.tolist(), name
    assert found["numbers"]["price"] == pytest.approx(wanted.numbers["price"].tolist())
    (tmp_path / "vocabulary.json").write_text(json.dumps(words))
    text = json.dumps({"columns": new}).encode()
    manifest["vocabulary"] = "its SHA-256, which Program.load has checked"
    own = read_examples(tmp_path / "data.json", text, manifest, tmp_path)
    assert len(own) == len(NEW["like"])
    assert own.label.tolist() == NEW["like"]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"item": None}, "have no column 'item'"),
        ({"item": [1.5]}, "holds numbers, and 1.5 is none"),
        ({"item": ["five"]}, "holds numbers, and 'five' is none"),
        ({"item": [[5]]}, "held one value in training"),
        ({"seen": ["a"]}, "held lists in training"),
        ({"pair": [[1, 2, 3]]}, "held 2 values an example, and 3"),
        ({"word": [None]}, "holds texts, and None is none"),
        ({"price": ["dear"]}, "'price' holds something that is no number"),
    ],
)
def test_values_that_cannot_be_encoded(change: dict[str, Any], says: str) -> None:
    manifest, words = parts_of(build(Hashed(50)))
    manifest["encoder"]["features"]["pair"] |= {"width": 2, "length": None}
    columns = {name: values[:1] for name, values in NEW.items()}
    columns = {n: x for n, x in {**columns, **change}.items() if x is not None}
    with pytest.raises(ExamplesError, match=says):
        encoded(manifest, words, columns)


def test_a_program_that_scales_by_nothing_is_refused() -> None:
    manifest, words = parts_of(build(Hashed(50)))
    manifest["encoder"]["scaled"]["price"]["spread"] = 0
    with pytest.raises(ExamplesError, match="divides column 'price' by 0"):
        encoded(manifest, words, NEW)


def test_a_vocabulary_without_room_for_others_and_one_that_stays_away() -> None:
    manifest, words = parts_of(build(Vocabulary(oov=False)))
    columns = {name: values[:1] for name, values in NEW.items()}
    with pytest.raises(ExamplesError, match="'word' has the value 'new', which is not in the voc"):
        encoded(manifest, words, {**columns, "word": ["new"]})
    with pytest.raises(ExamplesError, match="values of table 'item' are not in the program"):
        encoded(manifest, {}, columns)
    with pytest.raises(ExamplesError, match="has no encoder"):
        encoded({"encoder": None}, {}, columns)
