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
from commands import RUN, Capture, assert_same, contents, fedrows, interrupted, metrics, start
from commands import own_folder as own_folder

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
    assert {n for n in before if before[n] != after[n]} <= {"report.html"}


def until(ready: Callable[[], bool]) -> None:
    for _ in range(3000):
        if ready():
            return
        time.sleep(0.01)
    raise AssertionError("it never happened")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_stopped_process_can_be_resumed(number: signal.Signals) -> None:
    words = [*RUN, "--rounds", "100000", "--evaluate-every", "20", "--algorithm", "scaffold"]
    process = start(*words, "--checkpoint-seconds", "0.05", "--out", "run", "--threads", "1")
    place = Path("run/checkpoint.safetensors")
    until(lambda: place.exists() and checkpoint.standing(place).round > 40)
    process.send_signal(number)
    out, err = process.communicate(timeout=30)
    if number != signal.SIGKILL:
        assert process.returncode == 130
        assert "fedrows run --resume run" in out
        assert err == ""
    at = checkpoint.standing(place).round
    fedrows("run", "--resume", "run", "--rounds", str(at + 30))
    straight = [*words, "--rounds", str(at + 30), "--out", "straight", "--threads", "1"]
    fedrows(*straight)
    assert_same("run", "straight")


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
