"""A run that was stopped, killed, or out of disk goes on, and is the straight run to the bit."""

import errno
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from commands import (
    COMPARE,
    RUN,
    Capture,
    assert_same,
    contents,
    fedrows,
    interrupted,
    metrics,
    start,
)
from commands import own_folder as own_folder
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from fedrows import catalogue
from fedrows.cli import main
from fedrows.runs import checkpoint
from fedrows.runs.folder import RunFolder
from fedrows.simulator import simulated_fleet

pytestmark = pytest.mark.usefixtures("own_folder")

VARIANTS = [
    *([name] for name in catalogue.names("algorithm")),
    ["scaffold", "--lazy"],
    ["scaffoldapprox", "--lazy"],
    ["fedadam", "--lazy"],
]


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The folder of a run that nothing stopped."""
    folder = str(tmp_path_factory.mktemp("straight") / "done")
    fedrows(*RUN, "--out", folder)
    return folder


# Stopping and going on


@pytest.mark.parametrize("variant", VARIANTS, ids=" ".join)
def test_a_resumed_run_is_the_straight_run_to_the_bit(variant: list[str]) -> None:
    words = [*RUN, "--algorithm", *variant]
    fedrows(*words, "--rounds", "12", "--out", "straight")
    fedrows(*words, "--rounds", "7", "--out", "resumed")  # ends between two evaluations
    fedrows("run", "--resume", "resumed", "--rounds", "12")
    assert [line["round"] for line in metrics("resumed")] == [5, 10, 12]
    assert_same("straight", "resumed")


@pytest.mark.parametrize("batches", ["draw", "epoch"])
def test_an_interrupted_run_goes_on_to_the_bit(
    batches: str, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = [*RUN, "--algorithm", "scaffold", "--lazy", "--batches", batches, "--lr-decay", "0.9"]
    fedrows(*words, "--out", "straight")
    for at in (1, 5, 8, 12):
        folder = f"stopped{at}"
        with interrupted(monkeypatch, at):
            code = main([*words, "--out", folder])
        said = capsys.readouterr().out
        assert code == (130 if at < 12 else 0)
        if at < 12:
            assert f"Stopped after round {at}, and saved." in said
            assert f"fedrows run --resume {folder}" in said
            fedrows("run", "--resume", folder)
        assert_same("straight", folder)


def test_a_run_with_adam_and_a_schedule_goes_on_to_the_bit(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    schedule = ["--lr-schedule", "cosine", "--warmup", "3", "--optimizer", "adam"]
    words = [*RUN, *schedule, "--weight-decay", "0.01"]
    fedrows(*words, "--out", "straight")
    with interrupted(monkeypatch, 2):
        assert main([*words, "--out", "stopped"]) == 130
    assert main(["run", "--resume", "stopped", "--rounds", "20"]) == 2
    wanted = "--rounds is 20, but the cosine schedule of stopped spreads its learning rates over 12"
    assert wanted in capsys.readouterr().err
    fedrows("run", "--resume", "stopped")
    assert_same("straight", "stopped")


@pytest.mark.parametrize(
    "way",
    [
        ["--mode", "async", "--buffer", "3", "--concurrency", "15", "--max-age", "9"],
        ["--mode", "async", "--buffer", "3", "--concurrency", "15", "--staleness", "version"],
        ["--over-select", "1.5", "--deadline", "20"],
    ],
    ids=["row", "version", "sync"],
)
def test_a_run_in_virtual_time_goes_on_to_the_bit(
    way: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = [*RUN, "--clock", "heavy-tail", *way]
    fedrows(*words, "--out", "straight")
    assert metrics("straight")[-1]["virtual_seconds"] > 0
    for at in (1, 8):
        with interrupted(monkeypatch, at):
            assert main([*words, "--out", f"stopped{at}"]) == 130
        fedrows("run", "--resume", f"stopped{at}")
        assert_same("straight", f"stopped{at}")


def test_metrics_past_the_checkpoint_are_made_again(done: str) -> None:
    fedrows(*RUN, "--rounds", "6", "--out", "run")
    folder = RunFolder.open(Path("run"))
    folder.append({"algorithm": "fedsubavg", "seed": 0, "round": 10, "train_loss": 99})
    with Path("run/metrics.jsonl").open("a") as file:
        file.write('{"round": 12, "trai')
    fedrows("run", "--resume", "run", "--rounds", "12")
    assert_same("run", done)


def test_resuming_a_finished_run_changes_nothing() -> None:
    fedrows(*RUN, "--out", "run")
    before = contents(Path("run"))
    fedrows("run", "--resume", "run")
    fedrows(*RUN, "--resume", "--out", "run")  # the same options may be said again
    after = contents(Path("run"))
    assert {n for n in before if before[n] != after[n]} <= {"report.html", "status.json"}


def until(ready: Callable[[], bool]) -> None:
    for _ in range(3000):
        if ready():
            return
        time.sleep(0.01)
    raise AssertionError("it never happened")


@pytest.mark.parametrize(
    "number", [signal.SIGINT, pytest.param(signal.SIGKILL, marks=pytest.mark.slow)]
)
@pytest.mark.slow
def test_a_stopped_process_can_be_resumed(number: signal.Signals) -> None:
    words = [*RUN, "--rounds", "100000", "--evaluate-every", "20", "--algorithm", "scaffold"]
    process = start(*words, "--checkpoint-seconds", "0.05", "--out", "run", "--threads", "1")
    place = Path("run/checkpoint.safetensors")
    until(lambda: place.exists() and checkpoint.standing(place).round > 40)
    process.send_signal(number)
    out, err = process.communicate(timeout=300)
    if number != signal.SIGKILL:
        assert process.returncode == 130
        assert "fedrows run --resume run" in out
        assert err == ""
    at = checkpoint.standing(place).round
    fedrows("run", "--resume", "run", "--rounds", str(at + 30))
    straight = [*words, "--rounds", str(at + 30), "--out", "straight", "--threads", "1"]
    fedrows(*straight)
    assert_same("run", "straight")


ENDING = ["SIGTERM", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2", "SIGXCPU"]


@pytest.mark.parametrize("name", ENDING)
def test_every_signal_that_asks_to_end_saves_first(
    name: str, done: str, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    number = getattr(signal, name)
    inherited = signal.signal(number, signal.SIG_DFL)  # under nohup SIGHUP is ignored
    try:
        with interrupted(monkeypatch, 7, number):
            assert main([*RUN, "--checkpoint-seconds", "1e9", "--out", "run"]) == 130
        assert "Stopped after round 7, and saved." in capsys.readouterr().out
        assert signal.getsignal(number) == signal.SIG_DFL
    finally:
        signal.signal(number, inherited)
    fedrows("run", "--resume", "run")
    assert_same("run", done)


def test_a_hang_up_that_is_ignored_stays_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does
    try:
        with interrupted(monkeypatch, 7, signal.SIGHUP):
            fedrows(*RUN, "--out", "run")
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.slow
def test_a_terminal_that_is_closed_saves_the_run() -> None:
    script = (  # pty.fork is not for a process that has threads, as this one has
        "import os, pty, signal, sys; from pathlib import Path\n"
        "signal.signal(signal.SIGHUP, signal.SIG_DFL)\n"  # a suite that nohup started ignores it
        "process, terminal = pty.fork()\n"
        "if process == 0: os.execv(sys.executable, [sys.executable, *sys.argv[1:]])\n"
        "metrics = Path('run/metrics.jsonl')\n"
        "while not metrics.exists() or not metrics.stat().st_size: os.read(terminal, 4096)\n"
        "os.close(terminal)\n"
        "os.waitpid(process, 0)\n"
    )
    words = [*RUN, "--rounds", "100000", "--checkpoint-seconds", "1e9", "--out", "run"]
    subprocess.run(
        [sys.executable, "-c", script, "-m", "fedrows", *words],
        check=True,
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parent.parent)},
    )
    at = checkpoint.standing(Path("run/checkpoint.safetensors")).round
    assert 5 <= at < 100_000  # from the first round that has metrics on
    fedrows("run", "--resume", "run", "--rounds", str(at + 1))


def test_a_run_that_was_killed_before_its_first_checkpoint_begins(
    done: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "save", killed)
        assert main([*RUN, "--out", "run"]) == 130
    assert not Path("run/checkpoint.safetensors").exists()
    fedrows("run", "--resume", "run")
    assert_same("run", done)


def test_a_second_interrupt_stops_at_once(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: Any) -> None:
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
        raise AssertionError("still running")

    monkeypatch.setattr(simulated_fleet.SimulatedFleet, "open_round", never)
    assert main([*RUN, "--out", "run"]) == 130
    assert "Go on from round 0 with: fedrows run --resume run" in capsys.readouterr().out


# A full disk


@pytest.mark.parametrize("call", ["metrics", "checkpoint"])
def test_a_full_disk_leaves_a_run_that_can_be_resumed(
    call: str, done: str, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    fedrows(*RUN, "--rounds", "6", "--out", "run")
    with monkeypatch.context() as patch:
        if call == "metrics":
            patch.setattr(RunFolder, "append", full)
        else:
            patch.setattr(checkpoint, "save", full)
        assert main(["run", "--resume", "run", "--rounds", "12"]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "run cannot be written (No space left on device)" in said
    assert "go on from round 6 with `fedrows run --resume run`" in said
    fedrows("run", "--resume", "run")
    assert_same("run", done)


@pytest.mark.slow
def test_a_disk_that_is_really_too_small() -> None:
    script = (
        "import resource, sys; from fedrows.cli import main\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (9000, 9000))\n"
        "sys.exit(main(sys.argv[1:]))"
    )
    words = [*RUN, "--evaluate-every", "1", "--rounds", "40", "--out", "run"]
    root = str(Path(__file__).parent.parent)
    done = subprocess.run(
        [sys.executable, "-c", script, *words],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": root},
    )
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "File too large" in done.stderr
    lines = Path("run/metrics.jsonl").read_text()
    assert lines.endswith("}\n")
    fedrows("run", "--resume", "run")
    assert [line["round"] for line in metrics("run")] == list(range(1, 41))


# Too little memory


@pytest.mark.parametrize(
    ("words", "what", "remedy"),
    [
        (["--items", "100000000000000"], "the data of synthetic", "fewer clients or examples"),
        (["--batch-size", "100000000000"], "round 1", "batch-size (now 100000000000)"),
    ],
)
def test_memory_that_is_short_is_one_message(
    words: list[str], what: str, remedy: str, capsys: Capture
) -> None:
    assert main([*RUN, *words, "--out", "run"]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert f"B more) for {what}: " in said  # how much was asked for
    assert remedy in said


def test_memory_that_is_short_leaves_the_run_as_it_was_saved(
    done: str, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    fedrows(*RUN, "--rounds", "6", "--out", "run")
    capsys.readouterr()

    def full(*_: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has")

    with monkeypatch.context() as patch:
        patch.setattr(simulated_fleet.SimulatedFleet, "open_round", full)
        assert main(["run", "--resume", "run", "--rounds", "12"]) == 2
    said = capsys.readouterr().err
    assert "not enough memory on the GPU (it needs 2 GiB more) for round 7" in said
    assert "after round 6: with more memory, go on with `fedrows run --resume run`" in said
    fedrows("run", "--resume", "run")
    assert_same("run", done)


# A rate that is too large


@pytest.mark.parametrize("tables", ["memory", "mapped"])
def test_a_run_that_diverges_ends_at_once_and_keeps_what_is_finite(
    tables: str, capsys: Capture
) -> None:
    words = [*RUN, "--lr", "1e38", "--tables", tables, "--evaluate-every", "1"]
    assert main([*words, "--checkpoint-seconds", "0", "--out", "run"]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "fedsubavg diverged: after round " in said
    assert "lower lr, which is 1e+38. run is kept as it was after round " in said
    at = checkpoint.standing(Path("run/checkpoint.safetensors")).round
    assert f"after round {at + 1} " in said
    assert [line["round"] for line in metrics("run")] == list(range(1, at + 1))
    assert all(line["train_loss"] is not None for line in metrics("run"))
    assert not Path("run/report.html").exists()
    fedrows("export", "run", "--to", "model.safetensors")
    assert all(bool(x.isfinite().all()) for x in load_file("model.safetensors").values())


def test_a_model_that_is_not_finite_is_not_exported(capsys: Capture) -> None:
    fedrows(*RUN, "--out", "run")
    path = "run/checkpoint.safetensors"
    with safe_open(path, "pt") as file:
        about = {"fedrows": file.metadata()["fedrows"]}  # without the digest
    tensors = load_file(path)
    tensors["model/table/weight"][3] = torch.inf
    save_file(tensors, path, about)
    assert main(["export", "run", "--to", "model.safetensors"]) == 2
    assert "table 'weight' is not finite: run it with a lower lr" in capsys.readouterr().err
    assert not Path("model.safetensors").exists()


def test_a_comparison_makes_the_runs_that_do_not_diverge(capsys: Capture) -> None:
    algorithms = ["--algorithms", "fedsubavg,fedavg", "--seeds", "0", "--lr", "1e38"]
    assert main([*COMPARE, *algorithms, "--out", "all"]) == 0
    said = capsys.readouterr().out
    assert "fedsubavg seed 0: fedsubavg diverged: after round 5 table" in said
    assert "FedSubAvg (diverged)" in said
    assert [line["algorithm"] for line in metrics("all")] == ["fedsubavg", *["fedavg"] * 3]
    fedrows("report", "all")
