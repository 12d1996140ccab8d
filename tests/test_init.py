"""`fedrows init` writes a project that works as it is, and never over something else."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import fedrows
from fedrows.cli import main


@pytest.mark.slow
def test_the_project_runs_and_its_tests_pass(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["init", "mine"]) == 0
    assert "cd mine && python run.py" in capsys.readouterr().out
    package = str(Path(fedrows.__file__).parents[1])
    call = {"cwd": tmp_path / "mine", "env": {**os.environ, "PYTHONPATH": package}, "check": True}
    subprocess.run([sys.executable, "run.py"], **call, stdout=subprocess.DEVNULL)
    assert (tmp_path / "mine" / "model.pt").stat().st_size > 0
    words = [
        sys.executable,
        "-m",
        "fedrows",
        "run",
        "data.py:TASK",
        "--rounds",
        "3",
        "--rarest",
        "3",
    ]
    subprocess.run(words, **call, stdout=subprocess.DEVNULL)
    assert (tmp_path / "mine" / "runs" / "ratings-fedsubavg-0" / "report.html").exists()
    words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "."]
    subprocess.run(words, **call, stdout=subprocess.DEVNULL)


def test_a_folder_with_something_in_it_is_left_alone(tmp_path, capsys):
    (tmp_path / "notes.txt").write_text("mine")
    assert main(["init", str(tmp_path)]) == 2
    assert "exists already and is not empty: name a new folder." in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_a_folder_must_be_named(capsys):
    assert main(["init"]) == 2
    assert "fedrows init my-project" in capsys.readouterr().err
