"""Commands as a user types them, and what they leave: what the tests of the command line share."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from fedrows.cli import main
from fedrows.runs.folder import RunFolder
from fedrows.simulator import simulated_fleet

SMALL = ["--clients=30", "--items=20", "--examples-per-client=8", "--clients-per-round=5"]
RUN = ["run", "synthetic", *SMALL, "--rounds", "12", "--evaluate-every", "5"]
COMPARE = ["compare", "synthetic", *SMALL, "--rounds", "12", "--evaluate-every", "5"]
Capture = pytest.CaptureFixture[str]


@pytest.fixture
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A working folder of the test's own, without any data."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FEDROWS_DATA", str(tmp_path / "data"))


def fedrows(*words: str) -> None:
    assert main(words) == 0


def metrics(folder: str | Path) -> list[dict[str, Any]]:
    """The metric lines of a folder, but for the seconds, which no two runs share."""
    lines = RunFolder.open(Path(folder)).lines()
    return [{key: line[key] for key in line if key != "seconds"} for line in lines]


def assert_same(one: str, other: str) -> None:
    """Two run folders hold the same run, to the bit."""
    assert metrics(one) == metrics(other)
    first, second = (load_file(Path(f) / "checkpoint.safetensors") for f in (one, other))
    assert first.keys() == second.keys()
    for name, x in first.items():
        assert x.numpy().tobytes() == second[name].numpy().tobytes(), name


def contents(root: Path) -> dict[str, bytes]:
    """Every file below a folder."""
    return {str(p.relative_to(root)): p.read_bytes() for p in root.rglob("*") if p.is_file()}


def start(*words: str, out: Any = subprocess.PIPE) -> subprocess.Popen[str]:
    """The command in a process of its own; out: where its output goes."""
    return subprocess.Popen(
        [sys.executable, "-m", "fedrows", *words],
        stdout=out,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parent.parent), "OMP_NUM_THREADS": "1"},
    )


@contextmanager
def interrupted(
    monkeypatch: pytest.MonkeyPatch, at: int, number: signal.Signals = signal.SIGINT
) -> Iterator[None]:
    """Sends a signal, Ctrl-C if not given, while round `at` is running."""
    open_round = simulated_fleet.SimulatedFleet.open_round

    def pressed(self: Any, round_: Any) -> Any:
        if round_.number == at:
            signal.raise_signal(number)
        return open_round(self, round_)

    with monkeypatch.context() as patch:
        patch.setattr(simulated_fleet.SimulatedFleet, "open_round", pressed)
        yield
