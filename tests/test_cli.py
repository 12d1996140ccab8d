"""The command line: what it says, and where the text goes."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from commands import COMPARE, RUN, SMALL, Capture, fedrows, start
from commands import own_folder as own_folder

from fedrows import catalogue
from fedrows.cli import COMMANDS
from fedrows.runs import checkpoint

pytestmark = pytest.mark.usefixtures("own_folder")


# Help


def test_help_and_version_need_no_torch() -> None:
    for words in ("['--help']", "['--version']", "['nonsense']", "['bench']"):
        script = f"import sys, fedrows.cli as c; c.main({words}); assert 'torch' not in sys.modules"
        done = subprocess.run([sys.executable, "-c", script], cwd=Path(__file__).parent.parent)
        assert done.returncode == 0


def test_help_names_every_command(capsys: Capture) -> None:
    fedrows("--help")
    said = capsys.readouterr().out
    assert all(f"\n  {name} " in said for name in COMMANDS)
    fedrows("--version")
    assert re.fullmatch(r"fedrows \d+\.\d+\.\d+\n", capsys.readouterr().out)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(command: str, capsys: Capture) -> None:
    fedrows(command, "--help")
    assert capsys.readouterr().out.startswith(f"usage: fedrows {command}")


def test_help_shows_the_options_of_what_was_named(capsys: Capture) -> None:
    fedrows("run", "synthetic", "--algorithm", "fedadam", "--help")
    said = capsys.readouterr().out
    for part in ("plan:", "algorithm fedadam:", "task synthetic:", "--data-seed", "--no-lazy"):
        assert part in said
    assert "movielens:" not in said
    assert "--mu" not in said
    fedrows("compare", "--help")
    said = capsys.readouterr().out
    for part in ("--mu", "--server-lr", "task movielens:", "--seeds", "default: 0,1,2"):
        assert part in said


# The other commands, and where the text goes


def test_heat_is_shown(capsys: Capture) -> None:
    fedrows("heat", "synthetic", "--clients", "30", "--items", "20", "--examples-per-client", "8")
    said = capsys.readouterr().out
    assert re.search(r"clients +30\n", said)
    assert "weight: all features" in said
    assert "weight: item" in said
    assert "#" in said


def test_report_is_made_again(capsys: Capture) -> None:
    fedrows(*RUN, "--out", "done")
    capsys.readouterr()
    place = Path("done/report.html")
    place.unlink()
    fedrows("report", "done")
    assert capsys.readouterr().out == f"Report: {place}\n"
    assert place.read_text().startswith("<!")


def test_data_are_listed(capsys: Capture) -> None:
    fedrows("data", "list")
    said = capsys.readouterr().out
    assert all(name in said for name in catalogue.names("task"))


def test_data_notes_are_said_once(capsys: Capture) -> None:
    words = ["--algorithms", "fedavg,fedprox", "--rounds", "2", "--seeds", "0,1"]
    fedrows("compare", "synthetic", *SMALL, *words, "--test-share", "0.9")
    assert capsys.readouterr().out.count("have no training data") == 1


def test_piped_output_is_nothing_but_text() -> None:
    process = start(*COMPARE, "--algorithms", "fedavg,fedsubavg", "--seeds", "0", "--out", "all")
    out, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (0, "")
    assert "\x1b" not in out
    assert "\r" not in out
    assert len(re.findall(r"round +\d+/12", out)) == 6


def test_a_terminal_gets_a_live_line(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    fedrows(*RUN, "--out", "run")
    said = capsys.readouterr().out
    assert "\r" in said
    assert "12/12" in said
    assert not re.search(r"round +\d+/12", said)  # what a pipe gets
    assert "Report: run/report.html" in said


@pytest.mark.slow
def test_a_closed_pipe_is_quiet_and_the_run_can_go_on() -> None:
    process = start(*RUN, "--rounds", "100000", "--evaluate-every", "1", "--out", "run")
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.readline()
    process.stdout.close()
    assert process.stderr.read() == ""
    process.wait(timeout=30)
    process.stderr.close()
    at = checkpoint.standing(Path("run/checkpoint.safetensors")).round
    fedrows("run", "--resume", "run", "--rounds", str(at + 2))
