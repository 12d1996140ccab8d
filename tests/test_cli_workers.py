"""`fedrows compare --workers`: the same bits as without, whatever happens to the processes."""

import os
import signal
import subprocess
import time
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from commands import COMPARE, SMALL, Capture, assert_same, fedrows, interrupted, metrics, start
from commands import own_folder as own_folder

from fedrows.cli import main
from fedrows.runs import checkpoint
from fedrows.study import Comparison, StudyError

pytestmark = pytest.mark.usefixtures("own_folder")

TWO = ["--algorithms", "fedavg,fedsubavg", "--seeds", "0"]
LONG = ["compare", "synthetic", *SMALL, "--evaluate-every", "5", *TWO, "--threads", "1"]
RUNS = ("fedavg-seed0", "fedsubavg-seed0")


class InThisProcess(Executor):
    """An executor of somebody's own; its call of a number fails."""

    def __init__(self, fails_on: int | None = None) -> None:
        self._fails_on, self._calls = fails_on, 0

    def submit(self, call: Any, /, *arguments: Any, **named: Any) -> Future[Any]:
        future: Future[Any] = Future()
        if self._calls == self._fails_on:
            future.set_exception(RuntimeError("a machine is gone"))
        else:
            future.set_result(call(*arguments))
        self._calls += 1
        return future


def both_measured(folder: str, process: subprocess.Popen[str]) -> None:
    """Waits until both runs are well under way."""
    files = [Path(folder, "runs", name, "metrics.jsonl") for name in RUNS]
    while not all(file.exists() and file.stat().st_size for file in files):
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)


def workers_of(process: subprocess.Popen[str]) -> list[int]:
    words = Path(f"/proc/{process.pid}/task").glob("*/children")
    children = [int(pid) for file in words for pid in file.read_text().split()]
    return [p for p in children if b"study.worker" in Path(f"/proc/{p}/cmdline").read_bytes()]


@pytest.mark.slow
def test_workers_make_the_same_bits_and_tell_observers_the_same(capsys: Capture) -> None:
    fedrows(*COMPARE, *TWO, "--out", "one", "--tensorboard", "seen/one")
    capsys.readouterr()
    fedrows(*COMPARE, *TWO, "--out", "two", "--tensorboard", "seen/two", "--workers", "2")
    said = capsys.readouterr().out
    assert "1/2 fedavg seed 0  round 12/12  train loss" in said
    assert metrics("one") == metrics("two")
    for name in RUNS:
        assert_same(f"one/runs/{name}", f"two/runs/{name}")
    seen = {
        side: sorted(p.name for p in Path("seen", side).rglob("*-seed0")) for side in ("one", "two")
    }
    assert seen["one"] == seen["two"] == sorted(RUNS)
    names = "config.json data.json metrics.jsonl report.html runs summary.json"
    assert sorted(p.name for p in Path("two").iterdir()) == names.split()
    assert sorted(p.name for p in Path("two/runs").iterdir()) == sorted(RUNS)


def test_any_executor_makes_what_is_missing_of_a_comparison(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    fedrows(*COMPARE, *TWO, "--out", "one")
    failing = InThisProcess(fails_on=1)
    monkeypatch.setattr("fedrows.cli.compare.executor_for", lambda *_: failing)
    assert main([*COMPARE, *TWO, "--out", "two", "--workers", "2"]) == 2
    assert capsys.readouterr().err == (
        "fedrows: fedsubavg seed 0 could not be run (RuntimeError: a machine is gone): 1 other "
        "runs were made and are kept in two: go on with `fedrows compare --resume two`.\n"
    )
    comparison = Comparison.opened(Path("two"))
    with pytest.raises(StudyError, match=r"fedsubavg seed 0 could not .*: 0 other runs"):
        comparison.run(InThisProcess(fails_on=0))
    assert comparison.run(InThisProcess()) == []
    assert metrics("one") == metrics("two")


def test_a_comparison_that_is_asked_to_stop_begins_no_other_run() -> None:
    fedrows(*COMPARE, *TWO, "--out", "two")
    fedrows("compare", "--resume", "two", "--seeds", "0,1", "--rounds", "14")
    comparison = Comparison.opened(Path("two"))
    assert comparison.run(stopping=lambda: True) == []  # nothing is missing
    for file in Path("two/runs/fedavg-seed1").iterdir():
        file.unlink()
    Path("two/runs/fedavg-seed1").rmdir()
    [left] = comparison.run(stopping=lambda: True)
    assert left.label == "fedavg seed 1"
    assert comparison.run() == []
    assert metrics("two/runs/fedavg-seed1")[-1]["round"] == 14


def test_an_executor_that_is_asked_to_stop_ends_its_run_after_the_round_and_begins_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fedrows(*COMPARE, *TWO, "--out", "two")
    with interrupted(monkeypatch, 13):
        assert main(["compare", "--resume", "two", "--rounds", "1000000"]) == 130
    with ThreadPoolExecutor(1) as executor:
        [run] = Comparison.opened(Path("two")).run(executor, stopping=lambda: True)
    assert run.label == "fedavg seed 0"
    rounds = [checkpoint.standing(Path("two/runs", x, "checkpoint.safetensors")) for x in RUNS]
    assert rounds[0].round > 13
    assert rounds[1].round == 12
    assert not Path("two/runs/stop").exists()


@pytest.mark.slow
def test_a_worker_that_is_killed_is_named_and_its_run_goes_on(capsys: Capture) -> None:
    process = start(*LONG, "--rounds", "600", "--out", "two", "--workers", "2")
    both_measured("two", process)
    os.kill(workers_of(process)[0], signal.SIGKILL)
    _, said = process.communicate()
    assert process.returncode == 2
    assert " seed 0 could not be run (its process ended with code -9): 1 other runs were" in said
    assert "go on with `fedrows compare --resume two`" in said
    ends = {name: metrics(f"two/runs/{name}")[-1]["round"] for name in RUNS}
    assert sorted(ends.values())[0] < 600 == sorted(ends.values())[1]
    fedrows("compare", "--resume", "two", "--workers", "2")
    fedrows(*LONG, "--rounds", "600", "--out", "one")
    for name in RUNS:
        assert_same(f"one/runs/{name}", f"two/runs/{name}")


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_command_with_workers_that_is_stopped_goes_on_to_the_same_bits(
    number: signal.Signals, capsys: Capture
) -> None:
    process = start(*LONG, "--rounds", "600", "--out", "two", "--workers", "2")
    both_measured("two", process)
    workers = workers_of(process)
    process.send_signal(number)
    out, _ = process.communicate()
    if number == signal.SIGKILL:
        while any(Path(f"/proc/{pid}").exists() for pid in workers):  # they notice, and end
            time.sleep(0.01)
    else:
        assert process.returncode == 130
        assert ", and saved. Go on with: fedrows compare --resume two\n" in out
        assert all(name.replace("-seed", " seed ") in out for name in RUNS)
        assert not Path("two/runs/stop").exists()
    assert all(metrics(f"two/runs/{name}")[-1]["round"] < 600 for name in RUNS)
    fedrows("compare", "--resume", "two")
    fedrows(*LONG, "--rounds", "600", "--out", "one")
    for name in RUNS:
        assert_same(f"one/runs/{name}", f"two/runs/{name}")


def test_a_number_of_workers_that_makes_no_sense_is_refused(capsys: Capture) -> None:
    assert main([*COMPARE, *TWO, "--workers", "0"]) == 2
    assert "--workers is '0', but must be a whole number of at least 1" in capsys.readouterr().err
