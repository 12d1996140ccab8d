"""Tables of which only touched rows exist: the same numbers as in memory, to the last bit."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedrows import catalogue, simulate
from fedrows.algorithm import Algorithm
from fedrows.data.federation import FederatedData
from fedrows.errors import PlanError
from fedrows.lifting.lifted import Lifted
from fedrows.models import din, logistic
from fedrows.nn.initial_values import start_
from fedrows.plan import Plan
from fedrows.rows.ragged import ragged
from fedrows.simulation import Simulation
from fedrows.tables import (
    SparseTable,
)
from fedrows.tables.undo_log import UndoLog
from tests.twin import federation

LAZY = {"fedadam", "scaffold", "scaffoldapprox"}
each_algorithm = pytest.mark.parametrize("name", catalogue.names("algorithm"))
each_dtype = pytest.mark.parametrize("dtype", ["float32", "float64"])


def algorithm(name: str) -> Algorithm:
    made: Algorithm = catalogue.algorithm(name)(**({"lazy": True} if name in LAZY else {}))
    return made


class Wide(nn.Module):
    """Two embeddings, one of lists, and a dense layer."""

    def __init__(self, items: int, kinds: int) -> None:
        super().__init__()
        self.item, self.kind = nn.Embedding(items, 3, padding_idx=0), nn.Embedding(kinds, 2)
        self.out = nn.Linear(5, 1)

    def forward(self, item: Tensor, kind: Tensor) -> Tensor:
        real = (item != 0).unsqueeze(-1)
        pooled = torch.where(real, self.item(item), 0).sum(1) / real.sum(1).clamp(min=1)
        return self.out(torch.cat([pooled, self.kind(kind)], 1))[:, 0]


def padded_data(test: float = 0.3) -> FederatedData:
    rng = np.random.default_rng(3)
    owner = np.repeat(np.arange(9), 7)
    return FederatedData.build(
        client=owner,
        ids={"item": rng.integers(0, 15, (len(owner), 4)), "kind": rng.integers(0, 5, len(owner))},
        label=rng.integers(0, 2, len(owner)),
        test=rng.random(len(owner)) < test,
        tables={"item": 15, "kind": 5},
        padded=["item"],
        target=("kind", None),
    )


def run(
    data: FederatedData, module: Any, name: str, **plan: Any
) -> tuple[dict[str, Tensor], list[dict[str, Any]]]:
    """The trained numbers and the history but for its seconds."""
    fixed = {"rounds": 6, "clients_per_round": 4, "evaluate_every": 2, "chunk": 4, "device": "cpu"}
    result = simulate(data, module, algorithm(name), **{**fixed, **plan})
    return result.state_dict(), [{**line, "seconds": 0} for line in result.history]


def assert_same(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> None:
    assert one.keys() == other.keys()
    for name, x in one.items():
        assert torch.equal(x, other[name]), name


@each_dtype
@each_algorithm
def test_mapped_tables_give_the_numbers_of_those_in_memory(name: str, dtype: str) -> None:
    data = padded_data()
    torch.manual_seed(0)
    module = Wide(15, 5)
    in_memory = run(data, module, name, dtype=dtype)
    mapped = run(data, module, name, dtype=dtype, tables="mapped")
    assert_same(in_memory[0], mapped[0])
    assert str(in_memory[1]) == str(mapped[1])


@each_algorithm
def test_so_does_logistic_regression_on_rows_one_wide(name: str) -> None:
    data = federation()
    in_memory, mapped = (
        run(data, logistic.build(data), name, tables=where) for where in ("memory", "mapped")
    )
    assert_same(in_memory[0], mapped[0])


def test_a_run_leaves_the_module_as_it_is() -> None:
    # In float32 on a CPU the dense tensors that training starts from could be the module's own.
    module = Wide(15, 5)
    before = {name: x.clone() for name, x in module.state_dict().items()}
    trained, _ = run(padded_data(), module, "fedavg", tables="mapped")
    assert_same(module.state_dict(), before)
    assert not torch.equal(trained["out.weight"], before["out.weight"])


def test_local_tables_stay_with_their_clients() -> None:
    rng = np.random.default_rng(0)
    owner = np.repeat(np.arange(6), 4)
    data = FederatedData.build(
        client=owner,
        ids={"user": owner, "item": rng.integers(0, 8, len(owner))},
        label=rng.integers(0, 2, len(owner)),
        test=np.zeros(len(owner), dtype=bool),
        tables={"user": 6, "item": 8},
        local=["user"],
    )
    for name in ("fedsubavg", "scaffold"):
        in_memory, mapped = (
            run(data, logistic.build(data), name, tables=where) for where in ("memory", "mapped")
        )
        assert_same(in_memory[0], mapped[0])


@pytest.mark.parametrize("name", sorted(LAZY))
def test_what_moves_every_row_is_refused_by_name(name: str) -> None:
    data = federation()
    with pytest.raises(PlanError, match=rf"^{name} moves every row .* lazy form, with --lazy"):
        Simulation(
            data,
            logistic.build(data),
            catalogue.algorithm(name)(),
            Plan(clients_per_round=2, tables="mapped"),
        )


def test_a_billion_rows_cost_what_was_touched(tmp_path: Path) -> None:
    rows = 10**9
    rng = np.random.default_rng(0)
    owner = np.repeat(np.arange(20), 5)
    data = FederatedData.build(
        client=owner,
        ids={"item": rng.integers(0, rows, len(owner))},
        label=rng.integers(0, 2, len(owner)),
        test=np.arange(len(owner)) % 5 == 0,
        tables={"item": rows},
    )
    result = simulate(
        data,
        logistic.build(data),
        "fedsubavg",
        tables="mapped",
        folder=tmp_path / "tables",
        rounds=3,
        clients_per_round=20,
        evaluate_every=1,
    )
    table = result.params.tables["item"]
    assert isinstance(table, SparseTable)
    assert table.rows.touched().tolist() == data.index["item"].held.tolist()  # type: ignore[union-attr]
    assert table[data.index["item"].held].abs().min() > 0
    assert result.history[-1]["test_loss"] > 0
    assert sum(path.stat().st_size for path in (tmp_path / "tables").iterdir()) < 2**20


def test_a_run_without_checkpoints_writes_no_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(UndoLog, "write")
    torch.manual_seed(0)
    simulate(
        padded_data(), Wide(15, 5), rounds=6, clients_per_round=4, tables="mapped", folder=tmp_path
    )
    assert {path.suffix for path in tmp_path.iterdir()} == {".ids", ".rows"}


class Started(nn.Module):
    """An embedding, made or only described, and a layer."""

    def __init__(self, device: str | None) -> None:
        super().__init__()
        self.item = nn.Embedding(15, 3, padding_idx=0, device=device)
        self.kind = nn.Embedding(5, 2, device=device)
        self.out = nn.Linear(5, 1)
        start_(self, 4, 0.3)

    forward = Wide.forward


def test_an_embedding_that_is_not_made_starts_like_one_that_is() -> None:
    data = padded_data()
    made, described = (Lifted(Started(device), data) for device in (None, "meta"))
    assert_same(made.start().tables, described.start().tables)
    numbers = [
        run(data, Started(device), "fedsubavg", tables=where)
        for device in (None, "meta")
        for where in ("memory", "mapped")
    ]
    for state, history in numbers[1:]:
        assert_same(numbers[0][0], state)
        assert str(history) == str(numbers[0][1])


def test_a_module_that_could_not_be_made_trains() -> None:
    rng = np.random.default_rng(0)
    owner = np.repeat(np.arange(20), 5)
    data = FederatedData.build(
        client=owner,
        ids={"item": rng.integers(0, 10**9, (len(owner), 3)), "kind": owner % 5},
        label=rng.integers(0, 2, len(owner)),
        test=np.arange(len(owner)) % 5 == 0,
        tables={"item": 10**9, "kind": 5},
        padded=["item"],
    )
    module = Wide(2, 5)
    module.item = nn.Embedding(10**9, 3, padding_idx=0, device="meta")
    result = simulate(data, module, tables="mapped", rounds=2, clients_per_round=20)
    assert 0 < result.history[-1]["test_loss"] < 3
    assert not result.params.tables["item"][torch.tensor([0])].any()


def test_two_embeddings_of_one_table_lie_side_by_side() -> None:
    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear, self.factors = nn.Embedding(12, 1), nn.Embedding(12, 2, device="meta")
            self.kind = nn.Embedding(5, 1)

        def forward(self, item: Tensor, kind: Tensor) -> Tensor:
            pairs = self.factors(item).sum(1).square().sum(1)
            return (self.linear(item).sum((1, 2)) + self.kind(kind)[:, 0]) + pairs

    data, module = federation(), Both()
    names = {"item": ["linear", "factors"]}
    one, other = (
        simulate(data, module, embeddings=names, tables=where, rounds=3, clients_per_round=3)
        for where in ("memory", "mapped")
    )
    assert_same(one.state_dict(), other.state_dict())


def test_lists_of_ids_are_measured_and_scored() -> None:
    rng = np.random.default_rng(1)
    owner = np.repeat(np.arange(8), 6)
    data = FederatedData.build(
        client=owner,
        ids={
            "user": owner,
            "item": rng.integers(1, 9, len(owner)),
            "history": ragged([rng.integers(1, 9, k % 4) for k in range(len(owner))]),
        },
        fields={"user": "user", "item": "item", "history": "item"},
        label=rng.integers(0, 2, len(owner)),
        test=np.arange(len(owner)) % 6 == 0,
        tables={"user": 8, "item": 9},
        padded=["item"],
    )
    one, other = (run(data, din.build(data), "fedsubavg", tables=x) for x in ("memory", "mapped"))
    assert_same(one[0], other[0])
    assert str(one[1]) == str(other[1])


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("name", ["fedsubavg", "fedadam", "scaffold"])
def test_a_gpu_trains_rows_that_are_kept_by_the_host(name: str) -> None:
    data = padded_data()
    torch.manual_seed(0)
    module = Wide(15, 5)
    in_memory = run(data, module, name, device="cuda", dtype="float64")
    mapped = run(data, module, name, device="cuda", dtype="float64", tables="mapped")
    for key, x in in_memory[0].items():
        torch.testing.assert_close(x, mapped[0][key], rtol=1e-9, atol=1e-9)
