"""Whatever holds rows gives the same federation; what does not is refused."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch
from torch import nn

import fedrows
from fedrows import FederatedData, Split
from fedrows.algorithms.fedavg import FedAvg
from fedrows.errors import DataError, FedrowsError, ModelError
from fedrows.plan import Plan

rng = np.random.default_rng(0)
ROWS = {
    "user": [f"u{i % 7}" for i in range(60)],
    "item": rng.integers(0, 9, 60).tolist(),
    "seen": [list(range(1, 1 + i % 3)) for i in range(60)],
    "price": rng.random(60).tolist(),
    "liked": [bool(i % 2) for i in range(60)],
}
HOW: dict[str, Any] = {"label": "liked", "features": ["item", "seen"], "numbers": ["price"]}
FLAT: dict[str, Any] = {"label": "liked", "features": ["item"], "numbers": ["price"]}


def made(frame: Any) -> FederatedData:
    return FederatedData.from_frame(frame, client="user", **HOW)


def assert_same(one: FederatedData, other: FederatedData) -> None:
    assert one.tables == other.tables
    assert one.client_names.tolist() == other.client_names.tolist()
    for part in ("train", "validation", "test"):
        a, b = getattr(one, part), getattr(other, part)
        assert torch.equal(a.label, b.label)
        assert torch.equal(a.numbers["price"], b.numbers["price"])
        assert torch.equal(
            a.fields(torch.arange(len(a)))["item"], b.fields(torch.arange(len(b)))["item"]
        )


@pytest.mark.parametrize("kind", ["polars", "lazy", "arrow", "mapping", "hugging face"])
def test_rows_are_the_same_whatever_holds_them(kind: str) -> None:
    if kind == "arrow":
        frame = pytest.importorskip("pyarrow").table(ROWS)
    elif kind == "hugging face":
        frame = pytest.importorskip("datasets").Dataset.from_dict(ROWS)
    else:
        frame = {
            "polars": pl.DataFrame(ROWS),
            "lazy": pl.LazyFrame(ROWS).with_columns(unused=pl.lit(1)),
            "mapping": ROWS,
        }[kind]
    assert_same(made(frame), made(pd.DataFrame(ROWS)))


def test_a_csv_file_is_a_frame(tmp_path: Path) -> None:
    flat = pd.DataFrame({k: v for k, v in ROWS.items() if k != "seen"})
    path = tmp_path / "rows.csv"
    flat.to_csv(path, index=False)
    for given in (path, str(path)):
        read = FederatedData.from_frame(given, client="user", **FLAT)
        assert_same(read, FederatedData.from_frame(flat, client="user", **FLAT))


@pytest.mark.parametrize(
    "items", [["007", "7", "8"], ["1_2", "12", "3"], ["7", "007", "1.5"]], ids=" ".join
)
def test_ids_of_a_csv_file_that_only_look_like_numbers_stay_apart(
    items: list[str], tmp_path: Path
) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("user,item,liked\n" + "".join(f"{u},{i},1\n" for u in "ab" for i in items))
    data = FederatedData.from_frame(path, client="user", label="liked", features=["item"], test=0)
    assert data.vocabulary["item"].tolist() == sorted(items)
    ids = data.encode({"item": items}).examples.ids["item"]
    assert len(set(ids.tolist())) == 3


def test_splits_of_a_data_set_are_kept() -> None:
    datasets = pytest.importorskip("datasets")
    whole = datasets.Dataset.from_dict(ROWS)
    splits = datasets.DatasetDict(
        train=whole.select(range(40)),
        validation=whole.select(range(40, 50)),
        test=whole.select(range(50, 60)),
    )
    data = FederatedData.from_hf(splits, client="user", **HOW)
    assert (len(data.train), len(data.validation), len(data.test)) == (40, 10, 10)
    with pytest.raises(DataError, match="has a split 'test' already"):
        FederatedData.from_hf(splits, client="user", test=0.1, **HOW)
    with pytest.raises(DataError, match="the splits train, validation, test"):
        made(splits)
    assert len(FederatedData.from_hf(whole, client="user", test=0.5, **HOW).test) == 30


class Partitioner:
    """The protocol of a partitioner of flwr-datasets."""

    num_partitions = 6

    def load_partition(self, partition_id: int) -> Any:
        datasets = pytest.importorskip("datasets")
        return datasets.Dataset.from_dict(ROWS).select(
            range(10 * partition_id, 10 * partition_id + 10)
        )


def test_each_part_of_a_partitioner_is_a_client() -> None:
    data = FederatedData.from_hf(Partitioner(), **HOW)
    assert data.client_names.tolist() == list(range(6))
    with pytest.raises(DataError, match="each part of a partitioner is a client"):
        FederatedData.from_hf(Partitioner(), client="user", **HOW)
    with pytest.raises(DataError, match="Name the column of the clients"):
        FederatedData.from_hf(ROWS, **HOW)


@pytest.mark.parametrize(
    ("frame", "wanted"),
    [
        (pd.DataFrame(ROWS, columns=["user", "item", "item"]), "2 columns called 'item'"),
        (pd.DataFrame, "the class DataFrame: give an instance"),
        (None, "The frame is None"),
        (7, "The frame is a int"),
        ([1, 2], "The frame is a list"),
        ("nowhere.csv", "nowhere.csv cannot be read"),
        (Path("rows.parquet"), "read it with fedrows.read_parquet"),
        ({"user": 1}, "Column 'user' is 1: give a list"),
        ({**ROWS, "item": [1, 2]}, "Column 'item' has 2 values, but column 'user' has 60"),
    ],
)
def test_what_holds_no_rows_is_refused(frame: Any, wanted: str) -> None:
    if isinstance(frame, dict) and "liked" not in frame:
        frame = {**ROWS, **frame}
    with pytest.raises(DataError, match=wanted):
        made(frame)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("user,item,item\na,1,2\n", "2 columns called 'item'"),
        ("user,item,price,liked\na,1\n", "Row 1 of .* has 2 values, but its header 4"),
        ("", "has no column 'user'"),
        (b"\xff\xfe\x00", "not a CSV file in UTF-8"),
    ],
)
def test_a_bad_csv_file_is_refused(text: str | bytes, wanted: str, tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(DataError, match=wanted):
        FederatedData.from_frame(path, client="user", **FLAT)


@pytest.mark.parametrize(
    ("clients", "wanted"),
    [
        (7, "The clients are a int"),
        (pd.DataFrame(ROWS), "FederatedData.from_frame takes a frame"),
        ([("a",)], "Item 0 of the clients is no pair"),
        ({"a": 5}, "The examples of client 'a' cannot be read"),
    ],
)
def test_clients_of_the_wrong_kind_are_refused(clients: Any, wanted: str) -> None:
    with pytest.raises(DataError, match=wanted):
        FederatedData.from_clients(clients, **HOW)


def test_weights_that_are_all_zero_are_refused() -> None:
    with pytest.raises(DataError, match="Every weight is 0"):
        FederatedData.from_frame({**ROWS, "w": [0.0] * 60}, client="user", weight="w", **HOW)


def test_a_split_without_test_examples_is_said() -> None:
    late = Split.after(2.0, "price")
    data = FederatedData.from_frame(ROWS, client="user", test=late, **HOW)
    assert any("holds no test example out" in note for note in data.notes)
    assert not any("no test example" in note for note in made(ROWS).notes)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.item, self.out = nn.Embedding(10, 2), nn.Linear(2, 1)

    def forward(self, item: torch.Tensor, price: torch.Tensor) -> torch.Tensor:
        return self.out(self.item(item))[:, 0] + price


def flat() -> FederatedData:
    return FederatedData.from_frame(ROWS, client="user", tables={"item": 10}, **FLAT)


@pytest.mark.parametrize(
    ("data", "module", "algorithm", "wanted"),
    [
        (flat, Net, "fedavg", r"The module is the class Net, not an instance: give Net\(…\)"),
        (flat, None, "fedavg", "The module is None"),
        (lambda: pd.DataFrame(ROWS), Net(), "fedavg", "The data are a DataFrame"),
        (lambda: "rows.csv", Net(), "fedavg", "The data are a str"),
        (flat, Net(), 7, "The algorithm is a int"),
        (flat, Net(), int, "The algorithm is the class int"),
    ],
)
def test_arguments_of_the_wrong_kind_are_refused(
    data: Any, module: Any, algorithm: Any, wanted: str
) -> None:
    with pytest.raises(FedrowsError, match=wanted):
        fedrows.simulate(data(), module, algorithm, rounds=1)


def test_a_simulation_wants_an_instance_of_an_algorithm() -> None:
    data = flat()
    with pytest.raises(FedrowsError, match="The algorithm is the class FedAvg, not an instance"):
        fedrows.Simulation(data, Net(), FedAvg, Plan(rounds=1))  # type: ignore[arg-type]


def test_a_dense_embedding_that_is_not_there_is_refused() -> None:
    with pytest.raises(ModelError, match="`dense` names 'nope', but the embeddings of the module"):
        fedrows.simulate(flat(), Net(), rounds=1, dense=["nope"])
    with pytest.raises(ModelError, match="`dense` names 'item', which is the embedding of a table"):
        fedrows.simulate(flat(), Net(), rounds=1, dense=["item"])


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.item = nn.Embedding(10, 2)

    def forward(self, item: torch.Tensor, price: torch.Tensor) -> torch.Tensor:
        return self.item(item) @ self.item.weight.T


class Shared(Tied):
    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(2, 10)
        self.out.weight = self.item.weight


@pytest.mark.parametrize("module", [Tied, Shared])
def test_tied_weights_are_refused_with_the_way_to_do_it(module: type[nn.Module]) -> None:
    how = {**FLAT, "label": "next", "labels": "classes", "tables": {"item": 10}}
    data = FederatedData.from_frame(
        {**ROWS, "next": [i % 9 for i in range(60)]}, client="user", **how
    )
    with pytest.raises(
        ModelError, match=r"a client holds some of .*score these, as fedrows.nn.Tied"
    ):
        fedrows.simulate(data, module(), rounds=1)
