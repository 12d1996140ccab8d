"""`fedrows paper`: makes what is missing, lists what cannot be made, may be stopped anywhere."""

import json
import os
import runpy
import signal
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from fedrows.cli import main
from fedrows.cli.paper import DATA_MISSING, NOT_MADE
from fedrows.paper import catalogue, workplace
from fedrows.paper.tasks import TASKS
from fedrows.paper.workplace import KEPT, MADE, Workplace
from fedrows.report.artefact import (
    Artefact,
    Cell,
    Curve,
    Figure,
    Panel,
    ResultTable,
    from_dict,
)
from fedrows.study.finished import path_of

TOY = """
from fedrows.report.artefact import Artefact, Cell, Curve, Figure, Panel, ResultTable
from fedrows.paper.experiment import Experiment
from fedrows.study import Setting, Study

PLAN = {"rounds": ROUNDS, "evaluate_every": 3, "clients_per_round": 5}
DATA = {"clients": 30, "items": 20}


def make(work):
    work.say("quick" if work.quick else "full")
    names = ["fedavg", "fedsubavg"]
    study = Study([Setting("synthetic", name, PLAN, data=DATA) for name in names], [0])
    rows, curves = [], []
    for run in work.results(study).runs:
        loss = run.lines[-1]["train_loss"]
        rows.append((Cell(run.setting.name), Cell(f"{loss:.6f}", loss, "0.5", 0.5, (run.id,))))
        x = tuple(line["round"] for line in run.lines)
        y = tuple(line["train_loss"] for line in run.lines)
        curves.append(Curve(run.setting.name, x, y, runs=(run.id,)))
    table = ResultTable("toy", "Toy", ("", "loss"), tuple(rows))
    figure = Figure("toy-curves", "Toy", (Panel("loss", "round", "loss", tuple(curves)),))
    return Artefact("toy", "A toy", "Two runs.", (table,), (figure,))


EXPERIMENT = Experiment("toy", "A toy", make, ("synthetic",), has_runs=True)
"""
NEEDS = """
from fedrows.report.artefact import Artefact
from fedrows.paper.experiment import Experiment

EXPERIMENT = Experiment("needs", "Needs data", lambda work: Artefact("needs", "x"), ("movielens",))
"""
FAILS = """
from fedrows.errors import PlanError
from fedrows.paper.experiment import Experiment


def make(work):
    raise PlanError("It cannot be done.")


EXPERIMENT = Experiment("fails", "Fails", make)
"""

Capture = pytest.CaptureFixture[str]
REAL = catalogue.EXPERIMENTS


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of other experiments, a folder of its own, and no data."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FEDROWS_DATA", str(tmp_path / "data"))
    monkeypatch.setattr(catalogue, "EXPERIMENTS", ())
    source = tmp_path / "experiments"
    source.mkdir()
    monkeypatch.setattr(workplace, "SOURCE", source)
    add(source, needs=NEEDS, toy=TOY.replace("ROUNDS", "6"))
    return source


def add(source: Path, **experiments: str) -> None:
    """Writes modules that define an experiment each, and lists these in the catalogue."""
    for name, text in experiments.items():
        (source / f"{name}.py").write_text(text)
        experiment = runpy.run_path(str(source / f"{name}.py"))["EXPERIMENT"]
        others = [one for one in catalogue.EXPERIMENTS if one.name != name]
        catalogue.EXPERIMENTS = (*others, experiment)


def stamps(folder: str) -> dict[str, int]:
    """The runs that are kept; a command that was killed may have left a .part beside them."""
    return {place.name: place.stat().st_mtime_ns for place in Path(folder, "runs").glob("*.gz")}


def loss(folder: str = "paper") -> list[str]:
    content = json.loads(Path(folder, "artefacts", "toy.json").read_text())
    return [row[1]["text"] for row in content["artefact"]["tables"][0]["rows"]]


@pytest.mark.slow
def test_everything_is_made_and_kept(capsys: Capture) -> None:
    assert main(["paper", "toy", "--quick", "--workers", "1"]) == 0
    out = capsys.readouterr().out
    assert "1/1 toy: made" in out
    assert "  quick\n" in out
    assert out.endswith("Page: paper/index.html\n")
    for name in ("index.html", "results.md", "data/toy.csv", "figures/toy-curves.svg"):
        assert Path("paper", name).exists(), name
    before = stamps("paper")
    assert main(["paper", "toy", "--quick"]) == 0
    assert "1/1 toy: as before" in capsys.readouterr().out
    assert stamps("paper") == before
    assert main(["paper", "toy", "--seeds", "0,1", "--workers", "1"]) == 0
    assert "full\n" in capsys.readouterr().out
    assert {name: stamps("paper")[name] for name in before} == before
    assert len(stamps("paper")) == 4


def test_missing_data_are_listed_and_the_others_made(capsys: Capture) -> None:
    assert main(["paper", "--workers", "1"]) == DATA_MISSING
    out = capsys.readouterr().out
    assert "toy: made" in out
    assert "data missing: There is no file" in out
    assert "fedrows data fetch movielens" in out
    assert "fedrows data fetch movielens" in Path("paper", "index.html").read_text("utf-8")
    assert main(["paper", "--allow-missing"]) == 0


def test_an_experiment_that_fails_stops_no_other(folder: Path, capsys: Capture) -> None:
    add(folder, fails=FAILS)
    assert main(["paper", "--workers", "1", "--allow-missing"]) == NOT_MADE
    out = capsys.readouterr().out
    assert "fails: failed" in out
    assert "Not made: It cannot be done." in out
    assert "toy: made" in out


def test_the_runs_of_several_experiments_are_made_together(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    twice = (
        TOY.replace("ROUNDS", "6")
        .replace('"toy"', '"twice"')
        .replace(
            "    rows, curves = [], []\n",
            "    rows, curves = [], []\n"
            "    work.results(Study([Setting('synthetic', 'fedprox', PLAN, data=DATA)], [0]))\n"
            "    wrong = {**PLAN, 'clients_per_round': 31}\n"
            "    work.results(Study([Setting('synthetic', 'fedavg', wrong, data=DATA)], [0]))\n",
        )
    )
    add(folder, twice=twice)
    made = []
    real = workplace.make
    monkeypatch.setattr(
        "fedrows.paper.workplace.make",
        lambda missing, *rest: made.append(len(missing)) or real(missing, *rest),
    )
    assert main(["paper", "toy", "twice", "--workers", "1"]) == NOT_MADE
    assert made == [3, 1]  # what both ask for, then what one asks for after it, which fails
    out = capsys.readouterr().out
    assert "1/2 toy: made" in out
    assert out.count("  full\n") == 1  # the one that was tried ahead has no more to say
    assert "twice: Not made: fedavg on synthetic, seed 0 could not be run" in out


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["toys"], "There is no experiment called 'toys': did you mean toy?"),
        (["--seeds", "0,x"], "--seeds is '0,x', but must be whole numbers as in 0,1,2."),
        (["--seeds", "-1"], "--seeds is '-1', but must be whole numbers as in 0,1,2."),
        (["--workers", "0"], "--workers is '0', but must be a whole number of at least 1."),
        (["--device", "tpu"], "device is 'tpu', but must be auto, cpu, cuda or cuda:N."),
        (["--quik"], "There is no option called '--quik': did you mean --quick?"),
    ],
)
def test_wrong_words_are_refused(words: list[str], sentence: str, capsys: Capture) -> None:
    assert main(["paper", *words]) == 2
    assert capsys.readouterr().err == f"fedrows: {sentence}\n"
    assert not Path("paper").exists()


def test_a_folder_that_cannot_be_written_is_named(capsys: Capture) -> None:
    Path("file").write_text("")
    assert main(["paper", "--out", "file/paper"]) == 2
    assert capsys.readouterr().err.startswith("fedrows: file/paper cannot be written")


@pytest.mark.slow
def test_a_page_without_its_packages_is_refused_at_once() -> None:
    script = (
        "import sys; sys.modules['jinja2'] = None\n"
        "from fedrows.cli import main; sys.exit(main(['paper', 'figure1']))"
    )
    found = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        capture_output=True,
        encoding="utf-8",
    )
    assert found.returncode == 2
    assert found.stderr == (
        "fedrows: The page needs the package jinja2, which is not installed: "
        "pip install fedrows[paper].\n"
    )
    assert not Path("paper").exists()


def test_the_list_names_every_experiment(capsys: Capture) -> None:
    assert main(["paper", "--list"]) == 0
    assert capsys.readouterr().out == "needs\tNeeds data\ntoy\tA toy\n"


def test_an_artefact_is_made_anew_when_something_changed(folder: Path) -> None:
    def outcome(**how: Any) -> str:
        [toy] = catalogue.chosen(["toy"])
        return Workplace(Path("paper"), workers=1, tell=lambda text: None, **how).make(toy)[1]

    assert outcome() == MADE
    assert outcome() == KEPT
    assert outcome(quick=True) == MADE
    assert outcome() == MADE
    (folder / "numbers.json").write_text("{}")
    assert outcome() == MADE
    (folder / "toy.py").write_text((folder / "toy.py").read_text() + "# another\n")
    assert outcome() == MADE
    run = next(iter(stamps("paper")))
    path_of(Path("paper"), run.partition(".")[0]).write_bytes(b"damaged")
    assert outcome() == MADE
    Path("paper", "artefacts", "toy.json").write_text('{"key": ')
    assert outcome() == MADE
    assert outcome() == KEPT


def test_the_others_that_were_made_stay_on_the_page() -> None:
    assert main(["paper", "toy", "--workers", "1"]) == 0
    assert main(["paper", "needs", "--allow-missing"]) == 0
    text = Path("paper", "index.html").read_text("utf-8")
    assert "A toy" in text
    assert "Needs data" in text


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_call_that_was_stopped_goes_on_to_the_same_numbers(
    number: signal.Signals, folder: Path
) -> None:
    add(folder, toy=TOY.replace("ROUNDS", "600"))
    script = (
        "import runpy, sys; from pathlib import Path\n"
        "from fedrows.paper import catalogue, workplace\n"
        f"workplace.SOURCE = Path({str(folder)!r})\n"
        "toy = runpy.run_path(str(workplace.SOURCE / 'toy.py'))\n"
        "catalogue.EXPERIMENTS = (toy['EXPERIMENT'],)\n"
        "from fedrows.cli import main; sys.exit(main(['paper', 'toy', '--workers', '1']))"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", script],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        stdout=subprocess.PIPE,
        encoding="utf-8",
    )
    while process.poll() is None and not list(Path("paper").glob("runs/*.gz")):
        time.sleep(0.01)
    process.send_signal(number)
    out, _ = process.communicate()
    assert not Path("paper", "artefacts").exists()
    if number != signal.SIGKILL:
        assert process.returncode == 130
        assert out.endswith("are kept: go on with: fedrows paper toy --workers 1\n")
    [kept] = stamps("paper").items()
    assert main(["paper", "toy", "--workers", "1"]) == 0
    assert kept in stamps("paper").items()
    assert main(["paper", "toy", "--workers", "1", "--out", "fresh"]) == 0
    assert loss() == loss("fresh")


def test_an_artefact_survives_its_file() -> None:
    cell = Cell("1 ± 2", 1.0, "3", 3.0, ("a", "b"))
    curve = Curve("c", (1.0, 2.0), (3.0, 4.0), (2.0, 3.0), (4.0, 5.0), "dots", ("a",))
    found = Artefact(
        "name",
        "Title",
        "Summary.",
        (ResultTable("key", "Title", ("a", "b"), ((cell, Cell("–")),), "note"),),
        (Figure("figure", "Title", (Panel("p", "x", "y", (curve,), True, True),), "note"),),
    )
    assert from_dict(json.loads(json.dumps(asdict(found)))) == found


def test_the_real_experiments_have_their_names() -> None:
    tables = (f"{table}-{task.key}" for table in ("table2", "table3") for task in TASKS)
    theorems = ("conditioning", "convergence", "criterion", "overhead")
    names = ("claims", "table1", "figure1", "example1", *tables, "table4", "table5", *theorems)
    assert tuple(one.name for one in REAL) == names


def test_experiments_say_whether_they_ask_for_runs() -> None:
    named = {one.name.partition("-")[0] for one in REAL if one.has_runs}
    assert named == {"claims", "table2", "table3", "table4"}
