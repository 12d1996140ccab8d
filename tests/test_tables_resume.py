"""A run on mapped tables that is killed at any moment goes on as if it never had been."""

from __future__ import annotations

import errno
import multiprocessing
import os
import re
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from dying import die_at
from safetensors.torch import load_file
from torch import Tensor, nn

from fedrows import catalogue, cli
from fedrows.errors import RunFolderError
from fedrows.lifting.lifted import Lifted
from fedrows.plan import Plan
from fedrows.runs import checkpoint
from fedrows.runs.folder import METRICS, read_lines
from fedrows.simulation import Simulation
from fedrows.tables import ConstantRows, SparseTable, TableFolder, table_folder, undo_log, whole
from fedrows.tables.row_file import RowFile
from fedrows.tables.touched_rows import MappedRows, TouchedRows
from fedrows.tables.undo_log import UndoLog
from tests.twin import federation

ROUNDS, EVERY = 12, 3
RUNS = [
    ("fedsubavg", {}, "float32"),
    ("fedadam", {"lazy": True}, "float64"),
    ("scaffold", {"lazy": True}, "float32"),
]
CPU = torch.device("cpu")
DATA = federation(clients=12, rows=40)


class Pooled(nn.Module):
    """The sum of two embeddings, one of them drawn row by row."""

    def __init__(self) -> None:
        super().__init__()
        self.item, self.kind = nn.Embedding(40, 2, device="meta"), nn.Embedding(5, 2)
        self.out = nn.Linear(2, 1)

    def forward(self, item: Tensor, kind: Tensor) -> Tensor:
        return self.out(self.item(item).sum(1) + self.kind(kind))[:, 0]


def make(folder: Path, name: str, options: dict[str, Any], dtype: str) -> Simulation:
    torch.manual_seed(0)
    plan = Plan(
        rounds=ROUNDS, clients_per_round=3, chunk=3, dtype=dtype, tables="mapped", device="cpu"
    )
    algorithm = catalogue.algorithm(name)(**options)
    return Simulation(DATA, Lifted(Pooled(), DATA), algorithm, plan, None, folder / "tables")


def go(simulation: Simulation, folder: Path) -> dict[str, Tensor]:
    """Runs to the end, with a checkpoint now and then; every number that there is then."""
    place = folder / "checkpoint.safetensors"
    if place.exists():
        checkpoint.restore_(simulation, place)
    else:
        checkpoint.save(place, simulation)
    for progress in simulation:
        if progress.round % EVERY == 0:
            checkpoint.save(place, simulation)
    progress = simulation.progress
    found = dict(simulation.tensors())
    for part, params in {"model": progress.params, **progress.state}.items():
        found |= {f"{part}/{t}": whole(x) for t, x in params.tables.items()}
    return found


# Forked from a process that has imported things and no more: one with threads would hang.
FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(
    ["pytest", "fedrows.cli.run", "fedrows.runs.checkpoint", "fedrows.lifting.lifted"]
)


def killed(work: Callable[..., object], *given: Any) -> None:
    """Does some work in a process of its own, which must die of SIGKILL."""
    child = FORKS.Process(target=work, args=given)
    child.start()
    child.join(timeout=120)
    assert child.exitcode == -signal.SIGKILL


def run_to_death(moment: tuple[type, str, int, bool], folder: Path, run: tuple[Any, ...]) -> None:
    die_at(*moment)
    go(make(folder, *run), folder)


def type_to_death(
    moment: tuple[type, str, int, bool], words: list[str], floor: int = table_folder.FLOOR
) -> None:
    table_folder.FLOOR = floor
    die_at(*moment)
    cli.main(words)


MOMENTS = [
    (MappedRows, "_to_change", 2, True),  # before anything was saved but the start
    (MappedRows, "_to_change", 15, True),  # rows written down, and not yet changed
    (MappedRows, "_to_change", 22, False),
    (UndoLog, "write", 1, False),
    (UndoLog, "write", 1, True),
    (UndoLog, "write", 5, True),
    (TouchedRows, "before_change", 17, False),
    (RowFile, "sync", 7, True),  # in the midst of bringing rows to the disk
    (TableFolder, "sync", 3, True),  # rows on the disk, the checkpoint not
    (TableFolder, "saved", 2, False),  # the checkpoint in its place, the log of an older one
    (TableFolder, "saved", 3, True),
]


CASES = [
    pytest.param(
        run,
        moment,
        id=f"{run[0]}-{moment[0].__name__}-{'-'.join(map(str, moment[1:]))}",
    )
    for run in RUNS
    for moment in MOMENTS
]


@pytest.mark.parametrize(("run", "moment"), CASES)
@pytest.mark.slow
def test_a_killed_run_goes_on_as_if_nothing_had_been(
    tmp_path: Path, run: tuple[str, dict[str, Any], str], moment: tuple[type, str, int, bool]
) -> None:
    wanted = _never_killed(tmp_path / "whole", run)
    killed(run_to_death, moment, tmp_path, run)
    found = go(make(tmp_path, *run), tmp_path)
    assert found.keys() == wanted.keys()
    for name, x in wanted.items():
        assert torch.equal(x, found[name]), name


_KNOWN: dict[str, dict[str, Tensor]] = {}


def _never_killed(folder: Path, run: tuple[str, dict[str, Any], str]) -> dict[str, Tensor]:
    if run[0] not in _KNOWN:
        folder.mkdir()
        _KNOWN[run[0]] = go(make(folder, *run), folder)
    return _KNOWN[run[0]]


@pytest.mark.slow
def test_a_run_killed_again_and_again_arrives(tmp_path: Path) -> None:
    wanted = _never_killed(tmp_path / "whole", RUNS[1])
    for call in (30, 20, 14, 20):
        killed(run_to_death, (MappedRows, "_to_change", call, True), tmp_path, RUNS[1])
    found = go(make(tmp_path, *RUNS[1]), tmp_path)
    assert all(torch.equal(x, found[name]) for name, x in wanted.items())


def saved_run(folder: Path) -> Path:
    """A run that stopped some rounds after its second checkpoint."""
    simulation, place = make(folder, *RUNS[0]), folder / "checkpoint.safetensors"
    for progress in simulation:
        if progress.round in (2, 4):
            checkpoint.save(place, simulation)
        if progress.round == 6:
            break
    return place


def test_looking_changes_no_file(tmp_path: Path) -> None:
    place = saved_run(tmp_path)
    before = {path: path.read_bytes() for path in (tmp_path / "tables").iterdir()}
    assert any(path.suffix == ".undo" for path in before)
    mark = checkpoint.standing(place).tables
    assert mark is not None
    looking, going = make(tmp_path, *RUNS[0]).progress, make(tmp_path, *RUNS[0])
    assert looking.table_folder is not None
    looking.table_folder.restore(mark, read_only=True)
    seen = {t: whole(x) for t, x in looking.params.tables.items()}
    assert before == {path: path.read_bytes() for path in (tmp_path / "tables").iterdir()}
    checkpoint.restore_(going, place)
    for table, x in going.progress.params.tables.items():
        assert torch.equal(whole(x), seen[table])


def test_a_torn_or_foreign_file_is_one_sentence(tmp_path: Path) -> None:
    place, tables = saved_run(tmp_path), tmp_path / "tables"
    rows = tables / "0.0.rows"
    data = rows.read_bytes()
    for wrong, said in (
        (data[:100], r"0\.0\.rows is cut short, \d+ of \d+ rows are there: restore it"),
        (b"x" * len(data), "does not belong to this run's checkpoint"),
        (b"", "does not belong to this run's checkpoint"),
    ):
        rows.write_bytes(wrong)
        with pytest.raises(RunFolderError, match=said):
            checkpoint.restore_(make(tmp_path, *RUNS[0]), place)
    rows.unlink()
    with pytest.raises(RunFolderError, match=r"cannot be opened \(No such file"):
        checkpoint.restore_(make(tmp_path, *RUNS[0]), place)


def test_the_kind_of_table_must_be_the_same(tmp_path: Path) -> None:
    place = saved_run(tmp_path)
    model, algorithm = Lifted(Pooled(), DATA), catalogue.algorithm("fedsubavg")()
    with pytest.raises(RunFolderError, match="its tables are mapped"):
        checkpoint.restore_(Simulation(DATA, model, algorithm, Plan(clients_per_round=3)), place)
    with pytest.raises(RunFolderError, match=r"does not fit its run, .* missing: "):
        checkpoint.restore_(make(tmp_path, "fedadam", {"lazy": True}, "float32"), place)


def test_a_record_that_was_cut_short_is_ignored(tmp_path: Path) -> None:
    mine = TableFolder(tmp_path)
    table = SparseTable.of(mine.add("t", 9, ConstantRows(1.0, (2,)), (2,), torch.float32), CPU)
    table[torch.arange(4)] = torch.ones(4, 2)
    files = mine.tables["t"].value_files()
    log = UndoLog(tmp_path / "log.undo", b"n" * 16)
    log.write(torch.tensor([0, 2]), files)
    log.write(torch.tensor([1]), files)
    data = (tmp_path / "log.undo").read_bytes()
    for length, records in ((len(data), 2), (len(data) - 1, 1), (100, 0), (70, 0), (10, 0)):
        (tmp_path / "log.undo").write_bytes(data[:length])
        found = [places.tolist() for places, _ in log.records(files)]
        assert found == [[0, 2], [1]][:records], length
    flipped = bytearray(data)
    flipped[-1] ^= 1
    (tmp_path / "log.undo").write_bytes(flipped)
    assert len(list(log.records(files))) == 1


SMALL = [
    "synthetic",
    "--clients",
    "40",
    "--items",
    "60",
    "--clients-per-round",
    "5",
    "--chunk",
    "5",
]
QUICK = [*SMALL, "--rounds", "8", "--evaluate-every", "2", "--device", "cpu"]


def lines(folder: str) -> list[dict[str, Any]]:
    """The metrics of a run but for its seconds."""
    return [{**line, "seconds": 0} for line in read_lines(Path(folder) / METRICS)]


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.slow
def test_a_run_of_the_command_line_that_is_killed_goes_on(elsewhere: Path) -> None:
    mapped = ["run", *QUICK, "--tables", "mapped", "--checkpoint-seconds", "0"]
    assert cli.main(["run", *QUICK, "--out", "memory"]) == 0
    words = [*mapped, "--out", str(elsewhere / "mapped")]
    killed(type_to_death, (MappedRows, "_to_change", 7, True), words)
    assert cli.main(["run", "--resume", "mapped"]) == 0
    assert lines("mapped") == lines("memory")
    assert (elsewhere / "mapped" / "tables" / "0.ids").exists()


LONG = ["run", *QUICK, "--tables", "mapped", "--checkpoint-seconds", "1000"]
EARLY = [
    (UndoLog, "write", 1, True),
    (TableFolder, "sync", 4, False),  # a log that is long, and not yet overtaken
    (TableFolder, "sync", 4, True),
    (TableFolder, "saved", 4, False),
    (TableFolder, "saved", 5, True),
    (MappedRows, "_to_change", 12, True),
]


def once_saved(folder: Path, words: list[str]) -> list[str]:
    """The command that goes on with a run that has a log from its third round on."""
    assert cli.main([*words, "--rounds", "2", "--out", str(folder)]) == 0
    return ["run", "--resume", str(folder), "--rounds", "8", "--checkpoint-seconds", "1000"]


def test_a_long_log_is_a_checkpoint_before_its_time(
    elsewhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rounds: dict[int, list[int]] = {}
    for floor in (0, table_folder.FLOOR):
        monkeypatch.setattr(table_folder, "FLOOR", floor)
        words = once_saved(elsewhere / str(floor), LONG)
        with monkeypatch.context() as during:
            rounds[floor] = saved_rounds(during)
            assert cli.main(words) == 0
    assert rounds[0] == [3, 4, 5, 6, 7, 8]  # every round of so few rows changes a fifth of them
    assert rounds[table_folder.FLOOR] == [8]
    assert lines("0") == lines(str(table_folder.FLOOR))


def saved_rounds(during: pytest.MonkeyPatch) -> list[int]:
    """Will have the rounds after which a checkpoint was written."""
    found, real = [], checkpoint.save

    def save(path: Path, simulation: Simulation) -> None:
        found.append(simulation.progress.round)
        real(path, simulation)

    during.setattr(checkpoint, "save", save)
    return found


ADAM = ["--algorithm", "fedadam", "--lazy"]


@pytest.fixture(scope="module")
def in_memory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that nobody killed, with its exported model."""
    out = tmp_path_factory.mktemp("runs") / "memory"
    assert cli.main(["run", *QUICK, *ADAM, "--out", str(out)]) == 0
    assert cli.main(["export", str(out), "--to", str(out / "model.safetensors")]) == 0
    return out


@pytest.mark.parametrize("moment", EARLY, ids=lambda x: f"{x[0].__name__}-{x[1]}-{x[2]}-{x[3]}")
@pytest.mark.slow
def test_a_run_killed_among_early_checkpoints_goes_on(
    elsewhere: Path,
    in_memory: Path,
    moment: tuple[type, str, int, bool],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    words = once_saved(elsewhere / "mapped", [*LONG, *ADAM])
    killed(type_to_death, moment, words, 0)
    monkeypatch.setattr(table_folder, "FLOOR", 0)
    assert cli.main(words) == 0
    assert lines("mapped") == lines(str(in_memory))
    assert cli.main(["export", "mapped", "--to", "mapped.safetensors"]) == 0
    one, other = (load_file(x) for x in (in_memory / "model.safetensors", "mapped.safetensors"))
    assert one.keys() == other.keys()
    assert all(torch.equal(x, other[name]) for name, x in one.items())


def test_a_full_disk_leaves_a_run_that_goes_on(
    elsewhere: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["run", *QUICK, "--tables", "mapped", "--checkpoint-seconds", "0", "--out"]
    assert cli.main([*words, "whole"]) == 0
    real, left = undo_log._write, [4]

    def full(file: int, data: bytes) -> None:
        left[0] -= 1
        if left[0] == 0:
            os.write(file, data[: len(data) // 2])
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(file, data)

    with monkeypatch.context() as during:
        during.setattr(undo_log, "_write", full)
        assert cli.main([*words, "broken"]) != 0
    said = capsys.readouterr().err
    assert re.search(r"undo cannot be written \(No space left .* with --resume\.$", said.strip())
    assert cli.main(["run", "--resume", "broken"]) == 0
    assert lines("broken") == lines("whole")


def test_the_command_line_says_what_is_lazy(
    elsewhere: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["run", *QUICK, "--tables", "mapped", "--algorithm", "fedadam"]
    assert cli.main(words) != 0
    assert "choose its lazy form, with --lazy" in capsys.readouterr().err
    assert cli.main([*words, "--lazy"]) == 0
