"""What is written to a store is what is opened, or it is refused."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from fedrows.data.federation import FederatedData
from fedrows.data.stored.store import FACTS, folder_of, open_data, open_or_write, save_data, sources
from fedrows.errors import DataError
from fedrows.rows.ragged import Ragged, ragged


def federation(seed: int = 0, validation: bool = False) -> FederatedData:
    """Five clients, one of them without training examples, with everything that data can have."""
    rng = np.random.default_rng(seed)
    count = 30
    client = np.array(["ann", "bob", "eve", "joe", "zoë"])[np.arange(count) % 5]
    test = rng.random(count) < 0.3
    test[client == "bob"] = True
    return FederatedData.build(
        client=client,
        ids={
            "item": rng.integers(0, 9, count),
            "pair": rng.integers(0, 9, (count, 2)),
            "seen": ragged([rng.integers(1, 9, n) for n in rng.integers(0, 4, count)]),
            "user": np.arange(count) % 5,
        },
        label=rng.integers(0, 2, count),
        test=test,
        validation=~test & (np.arange(count) % 3 == 0) if validation else None,
        tables={"item": 9, "list": 9, "user": 5},
        fields={"item": "item", "pair": "item", "seen": "list", "user": "user"},
        numbers={"age": rng.random(count), "place": rng.random((count, 3))},
        weight=rng.random(count),
        local=["user"],
        name="made up",
        vocabulary={"item": np.array([f"thing {i}" for i in range(9)], dtype=object)},
        groups={"item": {"low": (0, 4), "high": (4, 9)}},
        notes=["Said."],
        best_loss=0.25,
    )


def tensors(data: FederatedData) -> dict[str, Tensor]:
    """Every tensor of some data, by name."""
    found: dict[str, Tensor] = {}

    def column(name: str, its: Tensor | Ragged) -> None:
        if isinstance(its, Ragged):
            found[f"{name} values"], found[f"{name} offsets"] = its.values, its.offsets
            found[f"{name} length"] = torch.tensor(its.length)
        else:
            found[name] = its

    parts = {"train": data.train, "validation": data.validation, "test": data.test}
    for part, examples in parts.items():
        for name, ids in examples.ids.items():
            column(f"{part} {name}", ids)
        found |= {f"{part} {name}": numbers for name, numbers in examples.numbers.items()}
        found |= {f"{part} splits": examples.splits, f"{part} label": examples.label}
        if examples.weight is not None:
            found[f"{part} weight"] = examples.weight
    for name, slots in data.slots.items():
        column(f"slots {name}", slots)
    for table, index in data.index.items():
        found |= {f"{table} ids": index.ids, f"{table} splits": index.splits}
        found |= {f"{table} place": index.place, f"{table} held": index.held}
    return found


def assert_same(data: FederatedData, other: FederatedData) -> None:
    mine, its = tensors(data), tensors(other)
    assert mine.keys() == its.keys()
    for name in mine:
        assert mine[name].dtype == its[name].dtype, name
        assert torch.equal(mine[name], its[name]), name
    assert data.client_names.tolist() == other.client_names.tolist()
    assert data.vocabulary.keys() == other.vocabulary.keys()
    for table, words in data.vocabulary.items():
        assert words.tolist() == other.vocabulary[table].tolist()
    for fact in ("name", "tables", "fields", "target", "padded", "local", "groups"):
        assert getattr(data, fact) == getattr(other, fact), fact
    for fact in ("labels", "best_loss", "notes"):
        assert getattr(data, fact) == getattr(other, fact), fact


def test_what_is_saved_is_opened(tmp_path):
    data = federation()
    save_data(data, tmp_path / "store")
    assert_same(data, open_data(tmp_path / "store"))
    assert [path.name for path in tmp_path.iterdir()] == ["store"]


def test_validation_examples_are_saved(tmp_path):
    data = federation(validation=True)
    assert len(data.validation) > 0
    save_data(data, tmp_path / "store")
    assert_same(data, open_data(tmp_path / "store"))


def test_data_without_test_examples(tmp_path):
    data = FederatedData.build(
        client=[1, 2], ids={"t": [0, 1]}, label=[0, 2], labels="classes", test=[0, 0],
        tables={"t": 2},
    )  # fmt: skip
    save_data(data, tmp_path / "store")
    assert_same(data, open_data(tmp_path / "store"))


def test_a_column_is_mapped_and_the_file_never_changes(tmp_path):
    save_data(federation(), tmp_path / "store")
    data = open_data(tmp_path / "store")
    data.train.label[:] = 7
    assert (open_data(tmp_path / "store").train.label < 2).all()


def test_lists_share_their_offsets(tmp_path):
    save_data(federation(), tmp_path / "store")
    data = open_data(tmp_path / "store")
    slots, ids = data.slots["seen"], data.train.ids["seen"]
    assert slots.offsets.data_ptr() == ids.offsets.data_ptr()


def test_a_store_is_replaced_and_nothing_else_is(tmp_path):
    save_data(federation(), tmp_path / "store")
    save_data(federation(1), tmp_path / "store")
    assert_same(federation(1), open_data(tmp_path / "store"))
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter.txt").write_text("Dear")
    with pytest.raises(DataError, match="not a store"):
        save_data(federation(), tmp_path / "mine")
    assert (tmp_path / "mine" / "letter.txt").read_text() == "Dear"


class Counting:
    """Writes a federation under a key and counts how often."""

    def __init__(self) -> None:
        self.made = 0

    def cached(self, folder: Path, key: dict) -> FederatedData:
        def write(store: Path) -> None:
            self.made += 1
            save_data(federation(), store)
            change(store, key=key)

        return open_or_write(folder_of(folder, key), key, write)


def test_a_cache_is_made_once_for_each_key(tmp_path):
    make = Counting()
    for key in ({"seed": 0}, {"seed": 0}, {"seed": 1}, {"seed": 0}):
        assert_same(make.cached(tmp_path, key), federation())
    assert make.made == 2


def test_a_file_that_changes_is_another_source(tmp_path):
    raw = tmp_path / "raw.csv"
    raw.write_text("1")
    before = sources([raw])
    assert sources([raw]) == before
    os.utime(raw, ns=(0, 0))
    assert sources([raw]) != before


def a_column(store: Path) -> Path:
    return store / "000.npy"


def cut_short(store: Path) -> None:
    a_column(store).write_bytes(a_column(store).read_bytes()[:-8])


def change(store: Path, **facts) -> None:
    path = store / FACTS
    path.write_text(json.dumps(json.loads(path.read_text()) | facts))


HARM = {
    "a column cut short": (cut_short, ["000.npy", "bytes", "anew"]),
    "a column gone": (lambda store: a_column(store).unlink(), ["000.npy", "anew"]),
    "no column": (
        lambda store: a_column(store).write_bytes(b"x" * a_column(store).stat().st_size),
        ["anew"],
    ),
    "facts cut short": (
        lambda store: (store / FACTS).write_text((store / FACTS).read_text()[:50]),
        [FACTS, "cut short"],
    ),
    "facts of another kind": (lambda store: (store / FACTS).write_text("[1]"), [FACTS]),
    "facts gone": (lambda store: (store / FACTS).unlink(), [FACTS, "not a store"]),
    "another format": (lambda store: change(store, format=99), ["format 99"]),
    "columns left out": (lambda store: change(store, columns=[]), ["anew"]),
}


@pytest.mark.parametrize(("harm", "names"), HARM.values(), ids=HARM)
def test_a_broken_store_is_refused_and_a_broken_cache_made_anew(tmp_path, harm, names):
    save_data(federation(), tmp_path / "store")
    harm(tmp_path / "store")
    with pytest.raises(DataError) as caught:
        open_data(tmp_path / "store")
    said = str(caught.value)
    assert "\n" not in said
    assert said.endswith(".")
    assert all(name in said for name in names), said
    make = Counting()
    make.cached(tmp_path / "cache", {})
    (store,) = (tmp_path / "cache").iterdir()
    harm(store)
    assert_same(make.cached(tmp_path / "cache", {}), federation())
    assert make.made == 2
    assert_same(make.cached(tmp_path / "cache", {}), federation())
    assert make.made == 2


def test_a_store_that_was_not_finished_leaves_nothing(tmp_path, monkeypatch):
    def fail(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(np, "save", fail)
    with pytest.raises(KeyboardInterrupt):
        save_data(federation(), tmp_path / "store")
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk(tmp_path, monkeypatch):
    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "save", full)
    with pytest.raises(DataError, match=r"cannot be written \(No space left on device\)"):
        save_data(federation(), tmp_path / "store")
    assert list(tmp_path.iterdir()) == []


def test_no_folder(tmp_path):
    with pytest.raises(DataError, match="not a store"):
        open_data(tmp_path / "nowhere")
