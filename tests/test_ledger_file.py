"""The ledger on disk: written before the release, over several runs, and files that are broken."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from commands import SMALL, Capture

from fedrows.cli import main
from fedrows.errors import PlanError, RunFolderError
from fedrows.privacy.ledger import Entry, Event
from fedrows.privacy.ledger_file import LedgerFile, Spending

ENTRIES = (
    Entry("model/user-replaced", "noise", 1, event=Event((1.0, 2.0), "fixed", 8, 40)),
    Entry("server/value", "answers", 1, 0.5, series=True),
    Entry("totals/value", "updates", 1, float("inf"), series=True),
)
FULL = ["--privacy", "full", "--secure-sum", "arithmetic", "--index-epsilon", "none"]

# Runs rounds, notes every release, and is killed by itself: before a release, or after it.
KILLED = """
import os, signal, sys
from pathlib import Path
from fedrows.cli import main
from fedrows.privacy.noisy_mean import NoisyMean

when, count = sys.argv[1], int(sys.argv[2])
mean, notes = NoisyMean.mean, Path("releases")

def watched(self, *args):
    before = len(notes.read_text()) if notes.exists() else 0
    if before == count and when == "before":
        os.kill(os.getpid(), signal.SIGKILL)
    released = mean(self, *args)
    notes.write_text("x" * (before + 1))
    if before == count and when == "after":
        os.kill(os.getpid(), signal.SIGKILL)
    return released

NoisyMean.mean = watched
sys.exit(main(sys.argv[3:]))
"""


def test_a_file_gives_back_what_was_written(tmp_path: Path) -> None:
    file = LedgerFile(tmp_path / "l")
    assert file.spendings() == []
    file.append(Spending("a", 1, ENTRIES))
    file.append(Spending("b", 1, ENTRIES[:1]))
    again = LedgerFile(tmp_path / "l")
    assert again.spendings() == [Spending("a", 1, ENTRIES), Spending("b", 1, ENTRIES[:1])]
    file.append(Spending("a", 2, ENTRIES[1:]))
    assert [each.round for each in again.of("a")] == [1, 2]
    assert (tmp_path / "l").stat().st_mode & 0o777 == 0o600


def test_runs_add_up_and_a_series_is_bounded_within_its_run(tmp_path: Path) -> None:
    file = LedgerFile(tmp_path / "l")
    for run, epsilon in (("a", 0.5), ("a", 0.75), ("b", 0.5)):
        entry = Entry("server/value", "answers", 1, epsilon, series=True)
        file.append(Spending(run, 1, (entry,)))
    assert file.ledger(1e-6).spent("server/value") == 1.25


@pytest.mark.parametrize("cut", [1, 30])
def test_a_line_that_was_cut_short_has_paid_for_nothing(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "l"
    LedgerFile(path).append(Spending("a", 1, ENTRIES))
    whole = path.read_bytes()
    path.write_bytes(whole + whole[:-cut])
    file = LedgerFile(path)
    assert len(file.spendings()) == 1
    file.append(Spending("a", 2, ENTRIES))
    assert [each.round for each in LedgerFile(path).spendings()] == [1, 2]


@pytest.mark.parametrize(
    "text", ["{}\n", "not JSON\n", '{"run": 1, "round": 1, "entries": []}\n', "[]\n"]
)
def test_a_broken_file_is_one_sentence(tmp_path: Path, text: str, capsys: Capture) -> None:
    path = tmp_path / "l"
    path.write_text(text)
    with pytest.raises(RunFolderError, match=r"Line 1 of .* is not one of a ledger"):
        LedgerFile(path).spendings()
    words = ["run", "synthetic", *SMALL, *FULL, "--rounds", "1", "--out", str(tmp_path / "r")]
    assert main([*words, "--ledger", str(path)]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert not (tmp_path / "r").exists()
    assert path.read_text() == text


def test_a_ledger_that_cannot_be_written_stops_the_run_before_anything_is_released(
    tmp_path: Path, capsys: Capture
) -> None:
    words = ["run", "synthetic", *SMALL, *FULL, "--rounds", "1", "--out", str(tmp_path / "r")]
    assert main([*words, "--ledger", str(tmp_path / "none" / "l")]) == 2
    error = capsys.readouterr().err
    assert "cannot be used (No such file or directory), and nothing was released" in error
    assert error.count("\n") == 1


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.slow
def test_a_killed_run_has_paid_for_every_release(
    when: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed between ledger and release, or right after it, and then run to its end."""
    monkeypatch.chdir(tmp_path)
    Path("killed.py").write_text(KILLED)
    words = ["run", "synthetic", *SMALL, *FULL, "--rounds", "5", "--out", "r"]
    arguments = [sys.executable, "killed.py", when, "3", *words, "--checkpoint-seconds", "3600"]
    paths = os.pathsep.join(sys.path)
    killed = subprocess.run(
        arguments, env={**os.environ, "PYTHONPATH": paths}, capture_output=True, check=False
    )
    assert killed.returncode == -signal.SIGKILL, killed.stderr.decode()
    released = len(Path("releases").read_text())
    assert released == (3 if when == "before" else 4)
    assert main(["run", "--resume", "r"]) == 0  # from round 0: no checkpoint was due
    spendings = LedgerFile(Path("r/ledger.jsonl")).spendings()
    paid = [e for each in spendings for e in each.entries if e.mechanism == "central noise"]
    assert len(paid) == 4 + 5 >= released + 5
    last = json.loads(Path("r/metrics.jsonl").read_text().splitlines()[-1])
    ledger = LedgerFile(Path("r/ledger.jsonl")).ledger(1e-6)
    assert last["epsilon"]["model/user-replaced"] == ledger.spent("model/user-replaced")


def test_a_budget_over_runs(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    limited = ["--dp-noise", "4", "--max-epsilon", "9", "--ledger", "l"]
    words = ["run", "synthetic", *SMALL, *FULL, *limited, "--rounds", "60"]
    assert main([*words, "--out", "a"]) == 0
    assert "is spent in" in capsys.readouterr().out
    spent = LedgerFile(Path("l")).ledger(1e-6).spent("model/user-replaced")
    assert 7 < spent <= 9
    assert main([*words, "--dp-heat-noise", "1", "--out", "b"]) == 2  # its heat costs too much
    error = capsys.readouterr().err
    assert "max-epsilon of model/user-replaced is 9" in error
    assert "nothing was released" in error
    assert LedgerFile(Path("l")).ledger(1e-6).spent("model/user-replaced") == spent
    assert not Path("b").exists()
    words[words.index("9")] = "14"
    assert main([*words, "--out", "b"]) == 0
    assert spent < LedgerFile(Path("l")).ledger(1e-6).spent("model/user-replaced") <= 14
    capsys.readouterr()
    assert main(["privacy", "ledger", "l"]) == 0
    out = capsys.readouterr().out
    assert "all runs" in out
    assert len(out.splitlines()) == 6  # a title and a rule, two runs, both, and the line below


def test_two_runs_at_once_cannot_both_have_the_last_of_it(tmp_path: Path) -> None:
    """The check and the line are one step: whoever comes second is refused."""
    path, entry = tmp_path / "l", Entry("server/value", "answers", 1, 1.0)

    def at_most_one(before: list[Spending]) -> None:
        if before:
            raise PlanError("No more.")

    first, second = LedgerFile(path), LedgerFile(path)
    assert first.spendings() == second.spendings() == []
    first.append(Spending("a", 1, (entry,)), at_most_one)
    with pytest.raises(PlanError):
        second.append(Spending("b", 1, (entry,)), at_most_one)
    assert len(LedgerFile(path).spendings()) == 1


def test_the_command_for_bad_words(capsys: Capture, tmp_path: Path) -> None:
    for words in ([], [str(tmp_path / "none")]):
        assert main(["privacy", "ledger", *words]) == 2
        assert capsys.readouterr().err.count("\n") == 1
