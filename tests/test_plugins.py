"""Algorithms, models, tasks, writers and mechanisms of others: installed, or named by file."""

from __future__ import annotations

import importlib
import json
import shutil
import sys
from pathlib import Path

import pytest
from commands import SMALL, Capture

from fedrows import Study, catalogue
from fedrows.cli import main
from fedrows.errors import PlanError, PluginError, UnknownNameError
from fedrows.flower.node.joining import use_plugins
from fedrows.flower.wire.contract import DeployedTask, make_contract

KINDS = tuple(catalogue.FOLDERS)
FIND = {kind: getattr(catalogue, kind) for kind in KINDS}
A_BUILT_IN = {"algorithm": "fedavg", "model": "logistic", "task": "synthetic"}
A_BUILT_IN |= {"writer": "log", "mechanism": "gaussian"}
RUN = ["run", "synthetic", *SMALL, "--rounds", "2"]

ALGORITHM = """
from dataclasses import dataclass
from fedrows.algorithm import Algorithm
from fedrows.options import option

@dataclass(frozen=True)
class Halved(Algorithm):
    factor: float = option(0.5, "Share of the mean that the model moves by.", above=0)
    items: int = option(1, "An option that a task has as well.", least=1)

    def step_(self, params, state, total, heat, round_):
        total.add_(params, {t: rows.values.new_full((len(rows.values),), self.factor)
                            for t, rows in total.rows.items()})
"""
TASK = """
from dataclasses import replace
from fedrows.datasets.synthetic import TASK as OTHER

TASK = replace(OTHER, name="other", model="net.py:build")
"""
NET = """
from fedrows.models.logistic import Logistic

def build(data, seed):
    return Logistic(data)
"""


@pytest.fixture(autouse=True)
def _as_in_a_new_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A folder of its own, and nothing left of what another test has loaded."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(catalogue, "_REFERRED", {})
    monkeypatch.setattr(sys, "path", [*sys.path])
    before = set(sys.modules)
    catalogue._installed.cache_clear()
    yield
    catalogue._installed.cache_clear()
    for name in set(sys.modules) - before:
        if name.partition(".")[0] in ("given", "fedrows_example"):
            del sys.modules[name]


@pytest.fixture
def mine() -> Path:
    for name, text in {"mine.py": ALGORITHM, "task.py": TASK, "net.py": NET}.items():
        Path(name).write_text(text)
    return Path("mine.py").absolute()


def install(kind: str, name: str, value: str, module: str | None = None) -> None:
    """A distribution `given` 1.2 with one entry point, and perhaps its module."""
    about = Path("site/given-1.2.dist-info")
    about.mkdir(parents=True, exist_ok=True)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: given\nVersion: 1.2\n")
    with (about / "entry_points.txt").open("a") as file:
        file.write(f"[{catalogue.GROUPS[kind]}]\n{name} = {value}\n")
    if module is not None:
        Path("site/given.py").write_text(module)
    sys.path.append(str(Path("site").absolute()))
    catalogue._installed.cache_clear()


def says(error: pytest.ExceptionInfo[PluginError], *parts: str) -> None:
    """The error is one sentence with these parts."""
    text = str(error.value)
    assert text.count("\n") == 0
    assert text.endswith(".")
    for part in parts:
        assert part in text


# ---- by file


def test_an_algorithm_of_a_file_runs_with_flags_of_its_own(mine: Path, capsys: Capture) -> None:
    words = ["--algorithm", "mine.py:Halved", "--factor", "0.25", "--items", "2", "--out", "a"]
    small = [word.replace("--items", "--data-items") for word in SMALL]
    assert main(["run", "synthetic", *small, "--rounds", "2", *words]) == 0
    config = json.loads(Path("a/config.json").read_text())
    assert config["algorithm"] == {
        "name": "halved",
        "from": f"{mine}:Halved",
        "factor": 0.25,
        "items": 2,
    }
    assert config["task"]["items"] == 20
    assert "Halved" in Path("a/report.html").read_text()


def test_a_run_goes_on_with_its_plug_in_from_another_folder(
    mine: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["--algorithm", "mine.py:Halved", "--data-items=20"]
    small = [word for word in SMALL if not word.startswith("--items")]
    once = ["run", "task.py:TASK", *small, *words]
    assert main([*once, "--rounds", "4", "--out", "whole"]) == 0
    assert main([*once, "--rounds", "2", "--out", "parts"]) == 0
    elsewhere = Path("elsewhere")
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    monkeypatch.setattr(catalogue, "_REFERRED", {})
    assert main(["run", "--resume", "../parts", "--rounds", "4"]) == 0
    whole, parts = (
        [json.loads(x) | {"seconds": 0} for x in (Path("..") / name).read_text().splitlines()]
        for name in ("whole/metrics.jsonl", "parts/metrics.jsonl")
    )
    assert whole[-1] == parts[-1]
    capsys.readouterr()
    mine.unlink()
    monkeypatch.setattr(catalogue, "_REFERRED", {})
    assert main(["run", "--resume", "../parts", "--rounds", "5"]) == 2
    assert f"{mine} (No such file or directory)" in capsys.readouterr().err


def test_help_shows_the_flags_of_a_plug_in_that_is_named(mine: Path, capsys: Capture) -> None:
    assert main(["run", "synthetic", "--algorithm", "mine.py:Halved", "--help"]) == 0
    assert "--factor" in capsys.readouterr().out


def test_explain_and_heat_take_references(mine: Path, capsys: Capture) -> None:
    small = ["--clients", "30", "--examples-per-client", "8"]
    assert main(["heat", "task.py:TASK", *small, "--items", "20"]) == 0
    words = ["--algorithm", "mine.py:Halved", "--clients-per-round", "5", "--data-items", "20"]
    assert main(["privacy", "explain", "task.py:TASK", *small, *words]) == 0


def test_a_study_makes_runs_anew_when_the_file_has_changed(mine: Path) -> None:
    def study() -> Study:
        data = {"clients": 30, "items": 20, "examples_per_client": 8}
        plan = {"rounds": 2, "clients_per_round": 5}
        algorithms = ["fedavg", "mine.py:Halved"]
        return Study.grid("task.py:TASK", algorithms, seeds=[0], plan=plan, data=data)

    first = study()
    results = first.run("study", workers=1)
    assert [run.setting.name for run in results] == ["fedavg", "halved"]
    fedavg, halved = first.ids()
    assert study().ids().keys() == {fedavg, halved}
    mine.write_text(ALGORITHM.replace("0.5", "0.6"))
    assert fedavg in study().ids()
    assert halved not in study().ids()


def test_a_reference_that_names_no_object(mine: Path) -> None:
    for text in ("mine.py", "mine.py:", ":Halved", "mine.py:not a name"):
        with pytest.raises(PluginError, match="write module:Name or path/to/file"):
            catalogue.algorithm(text)


def test_two_files_with_one_name(mine: Path) -> None:
    shutil.copy("mine.py", "copy.py")
    catalogue.algorithm("mine.py:Halved")
    catalogue.algorithm("mine.py:Halved")
    with pytest.raises(PluginError) as error:
        catalogue.algorithm("copy.py:Halved")
    says(error, "'copy.py:Halved' has the name halved", f"{mine}:Halved")


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_that_does_not_import(kind: str) -> None:
    for text, why in (
        ("import missing_package", "ModuleNotFoundError: No module named 'missing_package'"),
        ("x =", "SyntaxError"),
        ("raise SystemExit(3)", "SystemExit: 3"),
        ("raise ValueError('two\\nlines.')", "ValueError: two lines"),
    ):
        Path("bad.py").write_text(text)
        with pytest.raises(PluginError) as error:
            FIND[kind]("bad.py:Name")
        file = str(Path("bad.py").absolute())
        says(error, f"The {kind} 'bad.py:Name' does not import", file, why)


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_or_module_that_is_not_there(kind: str) -> None:
    with pytest.raises(PluginError) as error:
        FIND[kind]("none.py:Name")
    says(error, f"The {kind} 'none.py:Name'", str(Path("none.py").absolute()))
    with pytest.raises(PluginError) as error:
        FIND[kind]("no_such.module:Name")
    says(error, f"The {kind} 'no_such.module:Name' does not import", "No module named 'no_such'")


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_without_such_a_name(kind: str) -> None:
    Path("empty.py").write_text("")
    with pytest.raises(PluginError) as error:
        FIND[kind]("empty.py:Name")
    says(error, "is not there", f"{Path('empty.py').absolute()} defines no Name")


@pytest.mark.parametrize("kind", KINDS)
def test_an_object_of_another_kind(kind: str) -> None:
    Path("odd.py").write_text("Name = 3\nclass Other: pass\n")
    with pytest.raises(PluginError) as error:
        FIND[kind]("odd.py:Name")
    article = "an" if kind == "algorithm" else "a"
    file = Path("odd.py").absolute()
    says(error, f"The {kind} 'odd.py:Name' ({file}) is of type int, but {article} {kind} must be")
    if kind in ("algorithm", "task", "mechanism"):
        with pytest.raises(PluginError, match="is the class Other, but"):
            FIND[kind]("odd.py:Other")


def test_a_class_without_its_methods() -> None:
    Path("odd.py").write_text(
        "from fedrows.algorithm import Algorithm\nclass Half(Algorithm): pass\n"
    )
    with pytest.raises(PluginError, match=r"odd\.py\) has no step_: define the method"):
        catalogue.algorithm("odd.py:Half")
    Path("odd.py").write_text(
        "from fedrows.privacy.mechanism import Mechanism\nclass Half(Mechanism): pass\n"
    )
    with pytest.raises(PluginError, match=r"odd\.py\) has no entry, explanation, noised: define"):
        catalogue.mechanism("odd.py:Half")


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("algorithm", ALGORITHM.replace("Halved", "FedAvg") + "\nName = FedAvg\n"),
        ("task", TASK.replace('"other"', '"movielens"') + "\nName = TASK\n"),
        ("mechanism", "from fedrows.privacy.mechanisms.gaussian import Gaussian as Name\n"),
        ("model", "def logistic(data, seed): ...\n"),
        ("writer", "def prometheus(text): ...\n"),
    ],
)
def test_a_file_with_the_name_of_a_built_in_one(kind: str, text: str) -> None:
    Path("odd.py").write_text(text)
    word = {"model": "logistic", "writer": "prometheus"}.get(kind, "Name")
    with pytest.raises(PluginError) as error:
        FIND[kind](f"odd.py:{word}")
    says(error, str(Path("odd.py").absolute()), f"has the name of a built-in {kind}")


def test_a_model_that_returns_something_else(mine: Path) -> None:
    Path("net.py").write_text("def build(data, seed):\n    return {}\n")
    task = catalogue.task("task.py:TASK")
    with pytest.raises(PluginError) as error:
        catalogue.model(task.model)(task.load(task.options(clients=5, items=5)), 0)
    says(error, str(Path("net.py").absolute()), "returned what is of type dict", "a torch module")


# ---- by entry point


@pytest.mark.parametrize("kind", KINDS)
def test_listing_imports_no_plug_in(kind: str) -> None:
    install(kind, "newcomer", "given:Name", "raise ValueError")
    assert "newcomer" in catalogue.names(kind)
    assert "newcomer" not in catalogue.built_in(kind)
    assert "given" not in sys.modules


@pytest.mark.parametrize("kind", KINDS)
def test_an_installed_plug_in_that_is_broken(kind: str, capsys: Capture) -> None:
    """It is named with its distribution and its file; those who do not use it notice nothing."""
    install(kind, "newcomer", "given:Name", "import missing_package")
    file = str(Path("site/given.py").absolute())
    about = f"The {kind} plug-in 'newcomer' of given 1.2 (given:Name)"
    with pytest.raises(PluginError) as error:
        FIND[kind]("newcomer")
    says(error, about, "does not import", file, "No module named 'missing_package'")
    Path("site/given.py").write_text("Name = 3\nnothing = None\n")
    with pytest.raises(PluginError) as error:
        FIND[kind]("newcomer")
    says(error, about, "is of type int")
    sys.modules.pop("given")
    Path("site/given.py").write_text("# another length, so that no old bytecode is taken\n")
    with pytest.raises(PluginError) as error:
        FIND[kind]("newcomer")
    says(error, about, "is not there", f"{file} defines no Name")
    assert main(["--help"]) == 0
    assert main(["run", "--help"]) == 0
    assert main(["data"]) == 0
    assert main([*RUN, "--out", "a"]) == 0
    assert main(["report", "a"]) == 0


@pytest.mark.parametrize("kind", KINDS)
def test_an_installed_plug_in_with_the_name_of_a_built_in_one(kind: str) -> None:
    install(kind, A_BUILT_IN[kind], "given:Name", "")
    with pytest.raises(PluginError) as error:
        FIND[kind](A_BUILT_IN[kind])
    says(error, f"plug-in '{A_BUILT_IN[kind]}' of given 1.2", f"name of a built-in {kind}")
    if kind in ("writer", "mechanism"):  # runs that do not name it take our own
        assert main([*RUN, "--out", "a", "--log", "text"]) == 0


@pytest.mark.parametrize("kind", KINDS)
def test_a_taken_name_disturbs_no_run_of_others(kind: str, capsys: Capture) -> None:
    taken = {**A_BUILT_IN, "task": "movielens", "model": "lstm"}[kind]
    install(kind, taken, "given:thing", "thing = None")
    assert main(["run", "--help"]) == 0
    assert main(["run", "synthetic", "--help"]) == 0
    assert main([*RUN, "--algorithm", "fedsubavg", "--out", "a"]) == 0
    assert main(["compare", *RUN[1:], "--algorithms", "fedsubavg,fedprox", "--out", "b"]) == 0
    capsys.readouterr()
    if kind == "algorithm":
        assert main([*RUN, "--algorithm", taken, "--out", "c"]) == 2
        assert "'fedavg' of given 1.2 (given:thing)" in capsys.readouterr().err
        assert main([*RUN, "--algorithm", "scaffold", "--privacy", "index", "--out", "c"]) == 2
        assert "fedavg, " in capsys.readouterr().err  # the list of what is summable


def test_an_entry_point_that_is_called_otherwise() -> None:
    install("algorithm", "third", "given:Halved", ALGORITHM)
    with pytest.raises(PluginError) as error:
        catalogue.algorithm("third")
    says(error, "'third' of given 1.2", "is called 'halved'")


def test_an_unknown_name_suggests_a_plug_in() -> None:
    install("algorithm", "newcomer", "given:Name")
    with pytest.raises(UnknownNameError, match=r"did you mean newcomer\?"):
        catalogue.algorithm("newcomr")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("def opened(text):\n    raise OSError('no room')\n", "cannot be opened (no room)"),
        ("def opened(text):\n    return 3\n", "opened int, which lacks a method of"),
    ],
)
def test_a_writer_that_cannot_write(text: str, sentence: str, capsys: Capture) -> None:
    Path("bad.py").write_text(text)
    assert main([*RUN, "--out", "a", "--writer", "bad.py:opened=x"]) == 2
    assert sentence in capsys.readouterr().err
    assert main([*RUN, "--out", "a", "--writer", "log"]) == 2
    assert "--writer log is one of our own" in capsys.readouterr().err
    assert not Path("a").exists()


def test_the_demo_takes_what_is_installed_only(mine: Path, capsys: Capture) -> None:
    assert main(["deploy", "demo", "synthetic", "--algorithm", "mine.py:Halved"]) == 2
    assert "nodes know what is installed" in capsys.readouterr().err


def test_a_message_cannot_make_a_node_import_a_file(mine: Path) -> None:
    """A run names algorithms by name. A file is known only if the node's own operator says so."""
    none = lambda *_: None  # noqa: E731
    nothing = DeployedTask("any", shard=none, model=none, server=none)
    for text in (f"{mine}:Halved", "mine:Halved", "mine.py:Halved"):
        with pytest.raises(PlanError, match="over a network an algorithm goes by its name"):
            make_contract(nothing, {"algorithm": text})
    with pytest.raises(UnknownNameError):
        make_contract(nothing, {"algorithm": "halved"})
    assert catalogue.names("algorithm") == catalogue.built_in("algorithm")
    use_plugins({"plugins": f"{mine}:Halved"})
    assert make_contract(nothing, {"algorithm": "halved", "factor": 0.25}).algorithm.factor == 0.25


def test_the_app_of_a_project_brings_an_algorithm(
    mine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both sides import the app, which has loaded it beside the task."""
    monkeypatch.syspath_prepend(str(mine.parent))
    Path("app_task.py").write_text(
        "from fedrows import catalogue\ncatalogue.algorithm('mine:Halved')\n"
    )
    importlib.import_module("app_task")
    none = lambda *_: None  # noqa: E731
    task = DeployedTask("any", shard=none, model=none, server=none)
    agreed = make_contract(task, {"algorithm": "halved", "factor": 0.25})
    assert agreed.algorithm.factor == 0.25
    for name in ("app_task", "mine"):
        del sys.modules[name]
