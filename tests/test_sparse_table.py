"""A table of which only touched rows exist: it does what a tensor does, in files of its own."""

from __future__ import annotations

import errno
import gc
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedrows import tables
from fedrows.errors import PlanError, RunFolderError
from fedrows.tables import (
    ConstantRows,
    GivenRows,
    InitialRows,
    NormalRows,
    RowsSideBySide,
    SparseTable,
    TableFolder,
    whole,
)

CPU = torch.device("cpu")


def table(
    rows: int = 1000, start: InitialRows | None = None, folder: Path | None = None
) -> tuple[TableFolder, SparseTable]:
    table_folder = TableFolder(folder)
    part = table_folder.add("t", rows, start or ConstantRows(0.0, (3,)), (3,), torch.float64)
    return table_folder, SparseTable.of(part, CPU)


def test_a_table_larger_than_memory_is_not_made_whole() -> None:
    _, mine = table(10**13)
    with pytest.raises(PlanError, match=r"takes 223,517 GiB, .* read its rows by their ids\.$"):
        whole(mine)
    with pytest.raises(PlanError, match=r"only, with --tables mapped\.$"):
        whole(SparseTable.untouched(NormalRows(0, "t", 3), 10**13))


rows_of = st.lists(st.integers(0, 40), min_size=1, max_size=12)


@settings(max_examples=30)
@given(st.lists(st.tuples(st.sampled_from(["add", "put", "get"]), rows_of), max_size=12))
def test_a_table_does_what_a_tensor_does(steps: list[tuple[str, list[int]]]) -> None:
    start = NormalRows(7, "t", 3, padding=0, dtype=torch.float64)
    _, mine = table(41, start)
    other = start(torch.arange(41))
    beside, plain = torch.full_like(mine, 0.5), torch.full_like(other, 0.5)
    for number, (what, chosen) in enumerate(steps):
        ids = torch.tensor(chosen)
        values = torch.arange(3.0 * len(ids), dtype=torch.float64).view(-1, 3) + number
        for here, there in ((mine, other), (beside, plain)):
            if what == "add":
                here.index_add_(0, ids, values)
                there.index_add_(0, ids, values)
            elif what == "put":
                once = ids.unique()
                here[once] = values[: len(once)]
                there[once] = values[: len(once)]
            assert torch.equal(here[ids], there[ids])
            assert torch.equal(here.index_select(0, ids), there[ids])
    assert torch.equal(whole(mine), other)
    assert torch.equal(whole(beside), plain)


def test_many_ids_find_their_places_again() -> None:
    _, mine = table(2**60)
    rng = np.random.default_rng(0)
    ids = torch.from_numpy(rng.integers(0, 2**60, 50_000))
    for part in ids.split(7_000):
        mine.index_add_(0, part, part[:, None].double().expand(-1, 3))
    assert torch.equal(mine[ids], ids[:, None].double().expand(-1, 3))
    assert not mine[ids + 1].any()


def test_what_would_read_every_row_is_refused_in_a_sentence() -> None:
    _, mine = table(10**9)
    for use in (
        lambda: mine + 1,
        lambda: mine.sum(),
        lambda: mine[:3],
        lambda: mine.clone(),
        lambda: torch.zeros(3, 3, dtype=torch.float64) @ mine,
        lambda: mine[torch.tensor([True, False])],
    ):
        with pytest.raises(PlanError, match="would go through all 1,000,000,000 rows"):
            use()
    with pytest.raises(IndexError, match="no row 1000000000 in a table"):
        mine[torch.tensor([10**9])]
    assert "0 rows touched" in repr(mine)


def test_start_values_do_not_depend_on_what_else_is_asked_for() -> None:
    start = RowsSideBySide(
        [
            NormalRows(1, "a", 2, 0.1),
            ConstantRows(3.0, (1,)),
            GivenRows(torch.arange(20.0).view(10, 2)),
        ]
    )
    every = start(torch.arange(10))
    assert every.shape == (10, 5)
    assert torch.equal(start(torch.tensor([7, 2])), every[[7, 2]])
    drawn = NormalRows(1, "a", 16)(torch.arange(2000))
    assert abs(float(drawn.mean())) < 0.02
    assert abs(float(drawn.std()) - 1) < 0.02


def test_a_full_disk_is_one_sentence(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    _, mine = table(10**6, folder=tmp_path)
    mine[torch.arange(5)] = torch.ones(5, 3, dtype=torch.float64)

    def full(*_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(RunFolderError, match=r"cannot grow .*No space left.* with --resume\.$"):
        mine[torch.arange(100_000)] = torch.ones(100_000, 3, dtype=torch.float64)
    assert mine[torch.arange(5)].sum() == 15


def test_a_file_takes_the_room_of_its_rows_and_little_more(tmp_path: Path) -> None:
    table_folder, mine = table(10**6, folder=tmp_path)
    for low in range(0, 200_000, 10_000):
        mine[torch.arange(low, low + 10_000)] = torch.ones(10_000, 3, dtype=torch.float64)
        rows = (low + 10_000) * (8 + 3 * 8)
        assert table_folder.tables["t"].nbytes == rows
        assert (
            rows <= table_folder.nbytes <= rows + 2 * (2**18 + 2**13)
        )  # a step for ids and for values


def test_a_log_is_long_beside_its_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables.table_folder, "FLOOR", 4096)
    table_folder, mine = table(folder=tmp_path)

    def change(count: int) -> bool:
        mine[torch.arange(count)] += 1.0
        return table_folder.log_is_long

    assert not change(1000)  # no checkpoint, so nothing to go back to
    assert not list(tmp_path.glob("*.undo"))
    table_folder.saved(table_folder.sync())
    assert not change(190)  # 1000 rows are 32,000 bytes: a fifth is 200 rows, less two heads
    assert not change(190)  # a row is written down once
    assert change(200)
    assert (tmp_path / "0.1.undo").stat().st_size == 64 + 2 * 16 + 200 * 32
    table_folder.saved(table_folder.sync())
    assert not change(190)
    assert not list(tmp_path.glob("0.1.undo"))
    monkeypatch.setattr(tables.table_folder, "FLOOR", 2**20)
    assert not change(1000)


def test_files_of_others_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "my.rows").write_text("my own rows, thank you")
    _, mine = table(folder=tmp_path)
    with pytest.raises(RunFolderError, match="is not a table of fedrows"):
        mine[torch.arange(5)] = 1.0
    assert (tmp_path / "my.rows").exists()
    (tmp_path / "place").write_text("a file")
    _, mine = table(folder=tmp_path / "place")
    with pytest.raises(RunFolderError, match="cannot be written"):
        mine[torch.arange(5)] = 1.0


def test_a_temporary_folder_goes_with_its_tables() -> None:
    table_folder, mine = table()
    mine[torch.arange(5)] = 1.0
    folder = table_folder.folder
    assert len(list(folder.iterdir())) == 2
    assert table_folder.nbytes > 0
    del table_folder, mine
    gc.collect()
    assert not folder.exists()
