"""`fedrows tune` as a user types it, and the rates that `run` and `compare` read."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from commands import SMALL, Capture, fedrows, own_folder  # noqa: F401

from fedrows import catalogue
from fedrows.cli import main
from fedrows.live.followed import Followed

pytestmark = pytest.mark.usefixtures("own_folder")
TUNE = ["tune", "synthetic", *SMALL, "--rounds", "16", "--evaluate-every", "4"]
TWO = [*TUNE, "--algorithms", "fedavg,fedadam", "--search", "lr=0.1,1", "--workers", "1"]


def config(folder: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(Path(folder, "config.json").read_text("utf-8"))
    return found


def test_a_search_prints_a_table_and_leaves_rates_that_others_read(capsys: Capture) -> None:
    fedrows(*TWO, "--search", "fedadam.tau=1e-4,1e-2", "--confirm", "0,1", "--out", "found")
    said = capsys.readouterr().out
    assert "rounds spent" in said
    assert "On test examples:" in said
    assert said.index("validation loss") < said.index("test loss")
    assert Path("found/index.html").exists()
    content = json.loads(Path("found/trials.json").read_text("utf-8"))
    assert set(content["rates"]) == {"fedavg", "fedadam"}
    rounds = ["--rounds", "2", "--seeds", "0"]
    names = ["--algorithms", "fedavg,fedadam,fedprox"]
    fedrows("compare", "synthetic", *SMALL, *rounds, *names, "--rates", "found/rates.json",
            "--out", "both")  # fmt: skip
    assert "no rates of fedprox" in capsys.readouterr().out
    entries = {one["name"]: one for one in config("both")["algorithms"]}
    plan = config("both")["plan"]
    for name, values in content["rates"].items():
        assert {**plan, **entries[name]} == {**plan, **entries[name], **values}
    fedrows("run", "synthetic", *SMALL, "--rounds", "2", "--algorithm", "fedadam", "--rates",
            "found/rates.json", "--tau", "0.5", "--out", "one")  # fmt: skip
    assert config("one")["algorithm"]["tau"] == 0.5  # what is typed comes before the file
    assert config("one")["plan"]["lr"] == content["rates"]["fedadam"]["lr"]


def test_a_search_on_a_task_of_ones_own_says_a_command_that_works(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(catalogue, "_REFERRED", {})  # the task is gone after the test
    Path("own.py").write_text(
        "from dataclasses import replace\n\nfrom fedrows.datasets.synthetic import TASK as OTHER\n"
        "TASK = replace(OTHER, name='mine')\n"
    )
    words = [*SMALL, "--rounds", "4", "--algorithms", "fedavg", "--search", "lr=0.1,1"]
    fedrows("tune", "own.py:TASK", *words, "--workers", "1", "--out", "found")
    said = capsys.readouterr().out
    command = said.split("use them with: fedrows ")[1].splitlines()[0].split()
    fedrows(*command, *SMALL, "--rounds", "2", "--seeds", "0", "--algorithms", "fedavg")
    assert "FedAvg" in capsys.readouterr().out


def test_a_live_page_follows_a_search(capsys: Capture) -> None:
    words = [*TUNE, "--algorithms", "fedavg", "--search", "lr=0.1,1", "--workers", "1"]
    fedrows(*words, "--live", "--out", "found")
    assert "Live page: http://127.0.0.1:" in capsys.readouterr().out
    shown = Followed([Path("found")]).look() or {}
    trials = json.loads(Path("found/trials.json").read_text("utf-8"))["trials"]
    wanted = {f"FedAvg lr {one['values']['lr']}, {one['rounds']} rounds" for one in trials}
    assert {run["group"] for run in shown["runs"]} == wanted
    assert shown["folders"][0]["of"] == len(trials)
    assert shown["folders"][0]["said"] == ""


def test_a_search_goes_on_where_it_was_stopped(capsys: Capture) -> None:
    fedrows(*TWO, "--out", "one")
    before = {path: path.stat().st_mtime_ns for path in Path("one/runs").iterdir()}
    first = json.loads(Path("one/trials.json").read_text("utf-8"))
    lost = sorted(before)[0]
    lost.unlink()
    Path("one/rates.json").unlink()
    fedrows("tune", "--resume", "one", "--confirm", "0")
    again = json.loads(Path("one/trials.json").read_text("utf-8"))
    assert again["rates"] == first["rates"]
    assert again["confirmed"]
    assert lost.exists()
    kept = {path: path.stat().st_mtime_ns for path in before if path != lost}
    assert kept == {path: at for path, at in before.items() if path != lost}
    assert main(["tune", "--resume", "one", "--budget", "99"]) == 2
    assert "--budget 99 would change the run in one" in capsys.readouterr().err
    assert main(["tune", "synthetic", *SMALL, "--algorithms", "fedavg", "--out", "one"]) == 2
    assert "exists already" in capsys.readouterr().err
    assert main(["compare", "--resume", "one"]) == 2
    assert "use `fedrows tune` with it" in capsys.readouterr().err


@pytest.mark.slow
def test_a_killed_search_goes_on_and_comes_to_the_same() -> None:
    words = [*TWO, "--search", "fedavg.local_steps=5,10,20,40", "--rounds", "400"]
    command = [sys.executable, "-m", "fedrows", *words, "--out", "killed"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    until = time.monotonic() + 60
    while len(list(Path().glob("killed/runs/*.gz"))) < 2 and time.monotonic() < until:
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    before = {path: path.stat().st_mtime_ns for path in Path().glob("killed/runs/*.gz")}
    assert before
    assert not Path("killed/rates.json").exists()
    fedrows("tune", "--resume", "killed")
    fedrows(*words, "--out", "straight")
    assert all(path.stat().st_mtime_ns == at for path, at in before.items())
    one, two = (
        json.loads(Path(name, "trials.json").read_text("utf-8")) for name in ("killed", "straight")
    )
    for trial in one["trials"] + two["trials"]:
        del trial["seconds"]
    assert one == two


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "Name algorithms to tune"),
        (["--algorithms", "fedavgg"], "did you mean fedavg?"),
        (["--search", "lr"], "has no values"),
        (["--search", "=1"], "has no values"),
        (["--search", "lr=1..0.1"], "does not rise"),
        (["--search", "lr=-1..1"], "above 0"),
        (["--search", "lr="], "leaves a value out"),
        (["--search", "lr=1", "--search", "lr=2"], "names lr twice"),
        (["--search", "fedprox.mu=1"], "no algorithm to tune called 'fedprox'"),
        (["--search", "nonsense=1"], "no option of fedavg called 'nonsense'"),
        (["--budget", "0"], "at least 1"),
        (["--budget", "x"], "whole number"),
        (["--budget", "3"], "a run has 300"),
        (["--trials", "1", "--budget", "300"], "give one of them"),
        (["--workers", "0"], "at least 1"),
        (["--confirm", "0,0"], "--confirm has 0 twice: name each once."),
        (["--confirm", "a"], "whole number"),
        (["--method", "magic"], "no method of search called 'magic'"),
        (["--by", "test_auc"], "not measured on validation"),
        (["--validation", "0"], "no validation examples to choose on"),
        (["--test-share", "0", "--confirm", "0"], "no test examples to confirm"),
        (["--log", "json"], "no option called '--log'"),
        (["--mu", "3"], "is not an option of"),
    ],
)
def test_a_wrong_search_is_one_sentence_and_leaves_no_folder(
    words: list[str], said: str, capsys: Capture
) -> None:
    named = [] if not words or "--algorithms" in words else ["--algorithms", "fedavg"]
    assert main(["tune", "synthetic", *SMALL, *named, *words, "--out", "new"]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1
    assert not Path("new").exists()


def test_an_option_may_be_for_one_algorithm_alone(capsys: Capture) -> None:
    words = ["compare", "synthetic", *SMALL, "--rounds", "2", "--seeds", "0", "--out", "set"]
    fedrows(*words, "--algorithms", "fedavg,fedadam", "--lr", "0.5", "--set", "fedavg.lr=3",
            "--set", "fedadam.server-lr=0.25")  # fmt: skip
    entries = {one["name"]: one for one in config("set")["algorithms"]}
    assert config("set")["plan"]["lr"] == 0.5
    assert entries["fedavg"]["lr"] == 3
    assert entries["fedadam"]["server_lr"] == 0.25
    assert "lr" not in entries["fedadam"]
    capsys.readouterr()
    assert main(["compare", "--resume", "set", "--set", "fedavg.lr=1"]) == 2
    assert "--set would change the run in set" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--set", "fedavg.lr"], "write --set fedavg.lr=3"),
        (["--set", "lr=3"], "write --set fedavg.lr=3"),
        (["--set", "fedavg.lr="], "write --set fedavg.lr=3"),
        (["--set", "fedprox.mu=3"], "no algorithm in this comparison called 'fedprox'"),
        (["--set", "fedavg.lrr=3"], "no option of fedavg called 'lrr'"),
        (["--set", "fedavg.tau=3"], "no option of fedavg called 'tau'"),
        (["--set", "fedavg.lr=x"], "lr is 'x', but must be a number"),
        (["--set", "fedavg.lr=-1"], "lr is -1.0, but must be above 0"),
        (["--set", "fedavg.rounds=3"], "use --rounds"),
        (["--rates", "nothing.json"], "cannot be read"),
        (["--rates", "text.json"], "is no file of rates"),
        (["--rates", "other.json"], "has rates of scaffold, but not of fedavg"),
        (["--rates", "newer.json"], "has format 2"),
        (["--rates", "strange.json"], "is no file of rates"),
        (["--rates", "unknown.json"], "no option of fedavg called 'speed'"),
    ],
)
def test_wrong_rates_are_one_sentence(words: list[str], said: str, capsys: Capture) -> None:
    about = {"kind": "fedrows rates", "format": 1, "task": "synthetic"}
    Path("text.json").write_text("no rates")
    Path("other.json").write_text(json.dumps({**about, "rates": {"scaffold": {"lr": 1}}}))
    Path("newer.json").write_text(json.dumps({**about, "format": 2}))
    Path("strange.json").write_text(json.dumps({**about, "rates": {"fedavg": {"lr": [1]}}}))
    Path("unknown.json").write_text(json.dumps({**about, "rates": {"fedavg": {"speed": 1}}}))
    command = ["compare", "synthetic", *SMALL, "--algorithms", "fedavg", *words, "--out", "new"]
    assert main(command) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1
    assert not Path("new").exists()
