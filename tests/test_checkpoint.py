"""A checkpoint: whole or not at all, and never mistaken for another run's."""

import errno
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import safetensors.torch
import torch
from safetensors.torch import save_file

from fedrows import catalogue
from fedrows.errors import FedrowsError, RunFolderError
from fedrows.plan import Plan
from fedrows.runs import checkpoint
from fedrows.simulation import Simulation

Make = Callable[..., Simulation]


@pytest.fixture(scope="module")
def make() -> Make:
    task = catalogue.task("synthetic")
    data = task.load(task.options(clients=30, items=20, examples_per_client=8))

    def simulation(algorithm: str = "scaffold", **plan: object) -> Simulation:
        plan = {"rounds": 6, "clients_per_round": 5, **plan}
        model = catalogue.model(task.model)(data)
        return Simulation(data, model, catalogue.algorithm(algorithm)(), Plan(**plan))

    return simulation


def advance(simulation: Simulation, to: int) -> Simulation:
    for progress in simulation:
        if progress.round == to:
            break
    return simulation


def test_what_was_saved_comes_back(tmp_path: Path, make: Make) -> None:
    path = tmp_path / "checkpoint.safetensors"
    saved = advance(make(), 4)
    checkpoint.save(path, saved)
    found = make()
    checkpoint.restore_(found, path)
    assert checkpoint.standing(path).round == found.progress.round == 4
    assert found.seconds == saved.seconds
    assert found.progress.bytes_up == saved.progress.bytes_up > 0
    for name, x in saved.tensors().items():
        assert torch.equal(x, found.tensors()[name]), name
    assert [p.name for p in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_full_disk_leaves_the_old_checkpoint(
    tmp_path: Path, make: Make, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    path = tmp_path / "checkpoint.safetensors"
    run = advance(make(), 1)
    checkpoint.save(path, run)
    before = path.read_bytes()

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, call, full)
    with pytest.raises(OSError, match="No space"):
        checkpoint.save(path, advance(run, 2))
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == [path.name]


def test_the_writers_own_errors_are_os_errors(
    tmp_path: Path, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise safetensors.SafetensorError("I/O error: No space left on device (os error 28)")

    monkeypatch.setattr(safetensors.torch, "save_file", full)
    with pytest.raises(OSError, match="No space") as caught:
        checkpoint.save(tmp_path / "checkpoint.safetensors", make())
    assert caught.value.errno == errno.ENOSPC


@pytest.mark.parametrize("share", [0.0, 0.001, 0.5, 0.999])
def test_a_checkpoint_cut_short_is_refused(tmp_path: Path, make: Make, share: float) -> None:
    path = tmp_path / "checkpoint.safetensors"
    checkpoint.save(path, make())
    data = path.read_bytes()
    path.write_bytes(data[: int(share * len(data))])
    with pytest.raises(RunFolderError, match="cut short"):
        checkpoint.restore_(make(), path)


def test_other_runs_checkpoints_are_refused(tmp_path: Path, make: Make) -> None:
    path = tmp_path / "checkpoint.safetensors"
    with pytest.raises(RunFolderError, match="no checkpoint"):
        checkpoint.standing(path)
    checkpoint.save(path, make("fedavg"))
    with pytest.raises(RunFolderError, match=r"in which 'control.*here it is missing"):
        checkpoint.restore_(make("scaffold"), path)
    with pytest.raises(RunFolderError, match=r"is float64 .* here it is float32"):
        checkpoint.restore_(make("fedavg", dtype="float64"), path)
    save_file({"x": torch.zeros(1)}, path)
    with pytest.raises(RunFolderError, match="not a checkpoint of fedrows"):
        checkpoint.standing(path)
    save_file({"x": torch.zeros(1)}, path, {"fedrows": '{"format": 7}'})
    with pytest.raises(RunFolderError, match="format 7"):
        checkpoint.standing(path)


def test_without_safetensors_the_extra_is_named(
    tmp_path: Path, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "safetensors", None)
    with pytest.raises(FedrowsError, match=r"pip install safetensors"):
        checkpoint.save(tmp_path / "x", make())


@pytest.mark.parametrize("place", [0.2, 0.6, 0.99])
def test_four_damaged_bytes_are_noticed(tmp_path: Path, make: Make, place: float) -> None:
    path = tmp_path / "checkpoint.safetensors"
    checkpoint.save(path, advance(make(), 2))
    data = bytearray(path.read_bytes())
    header = 8 + int.from_bytes(data[:8], "little")
    at = header + int((len(data) - header) * place) - 4
    data[at : at + 4] = bytes(byte ^ 1 for byte in data[at : at + 4])  # all of it is finite still
    path.write_bytes(data)
    with pytest.raises(RunFolderError, match="was damaged after it was written"):
        checkpoint.restore_(make(), path)


def test_a_number_that_was_spread_is_saved(tmp_path: Path, make: Make) -> None:
    saved = advance(make("fedadam", clients_per_round=1), 2)
    tensors = {"one": torch.zeros((), dtype=torch.int64).expand(1), **saved.tensors()}
    saved.tensors = lambda: tensors  # type: ignore[method-assign]
    checkpoint.save(tmp_path / "checkpoint.safetensors", saved)
    checkpoint.standing(tmp_path / "checkpoint.safetensors")


def test_a_checkpoint_without_a_digest_is_read(tmp_path: Path, make: Make) -> None:
    path = tmp_path / "checkpoint.safetensors"
    saved = advance(make(), 2)
    checkpoint.save(path, saved)
    with safetensors.safe_open(path, framework="pt") as file:
        header = {"fedrows": file.metadata()["fedrows"]}
    save_file(safetensors.torch.load_file(path), path, header)  # as an older fedrows wrote it
    again = make()
    checkpoint.restore_(again, path)
    assert again.progress.round == 2
