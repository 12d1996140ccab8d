"""Comparisons and studies of data, modules and algorithms that are given in Python."""

import json
import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from test_own_run import PLAN, Recommender, own_folder, ratings  # noqa: F401

import fedrows
from fedrows import catalogue, cli
from fedrows.algorithm import Algorithm
from fedrows.algorithms.fedavg import FedAvg
from fedrows.algorithms.fedsubavg import FedSubAvg
from fedrows.errors import FedrowsError, PlanError
from fedrows.study import Setting

SHORT: dict[str, Any] = {"rounds": 10, **PLAN}
STUDY = {"rounds": 6, "lr": 0.3, "clients_per_round": 5, "evaluate_every": 3}


@dataclass(frozen=True)
class Doubled(Algorithm):
    """An algorithm of the user's own."""

    additive: ClassVar[bool] = True

    def step_(self, params: Any, state: Any, total: Any, heat: Any, round_: Any) -> None:
        total.add_(params)
        total.add_(params)


def module(seed: int = 0) -> Recommender:
    torch.manual_seed(seed)
    return Recommender(20)


def numbers(lines: Any) -> list[dict[str, Any]]:
    """Lines without what is another every time."""
    return [{k: v for k, v in line.items() if k != "seconds"} for line in json_of(lines)]


def json_of(lines: Any) -> Any:
    return json.loads(json.dumps(lines))


def test_a_comparison_is_the_runs_that_simulate_makes() -> None:
    data = ratings()
    given = ["fedavg", FedSubAvg(cap=10), Doubled]
    found = fedrows.compare(data, module(), given, seeds=[0, 1], **SHORT)
    for algorithm, seed in (("fedavg", 0), (FedSubAvg(cap=10), 1), (Doubled(), 1)):
        alone = fedrows.simulate(data, module(), algorithm, seed=seed, **SHORT)
        name = alone.history[0]["algorithm"]
        mine = [one for one in found.lines if (one["algorithm"], one["seed"]) == (name, seed)]
        assert numbers(mine) == numbers(alone.history)
    assert "doubled" not in catalogue.names("algorithm")  # known only while it was used
    assert found.folder is None
    assert list(Path().iterdir()) == []


def test_the_folder_is_that_of_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    found = fedrows.compare(ratings(), module(), [FedSubAvg(cap=10)], seeds=[0], out="one", **SHORT)
    words = ["compare", "synthetic", "--clients=30", "--clients-per-round=5", "--rounds=2"]
    assert cli.main([*words, "--algorithms=fedavg", "--seeds=0", "--out=two"]) == 0
    assert {p.name for p in Path("one").iterdir()} == {p.name for p in Path("two").iterdir()}
    assert "<svg" in Path("one/report.html").read_text("utf-8")
    config = json.loads(Path("one/config.json").read_text("utf-8"))
    assert config["algorithms"][0]["cap"] == 10
    assert cli.main(["report", "one"]) == 0
    assert cli.main(["compare", "--resume", "one"]) == 2
    assert "compare(…, out=…, resume=True)" in capsys.readouterr().err
    assert found.summary["algorithms"]


def test_a_comparison_goes_on_and_grows_to_the_bit() -> None:
    given: dict[str, Any] = {"algorithms": ["fedavg", Doubled], **PLAN}
    whole = fedrows.compare(ratings(), module(), seeds=[0, 1], rounds=10, **given)

    def stop(done: int, of: int, label: str, round_: int) -> None:
        if done == 1 and round_ == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fedrows.compare(
            ratings(), module(), seeds=[0], rounds=5, out="part", progress=stop, **given
        )
    part = fedrows.compare(
        ratings(), module(), seeds=[0], rounds=5, out="part", resume=True, **given
    )
    assert {line["round"] for line in part.lines} == {5}
    grown = fedrows.compare(
        ratings(), module(), seeds=[0, 1], rounds=10, out="part", resume=True, **given
    )
    assert numbers(grown.lines) == numbers(whole.lines)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"lr": 0.1}, "lr 0.1 instead of 0.3 of fedavg would change the comparison in kept"),
        ({"seeds": [1]}, "no 0, which kept has"),
        ({"rounds": 5}, "rounds is 5, but kept has 10"),
        ({"algorithms": ["fedsubavg"]}, "kept compares fedavg"),
        ({"module": module(1)}, "with the same start values"),
        ({"data": ratings(1)}, "give it the same ones"),
        ({"overwrite": True}, "choose one"),
        ({"resume": False}, "exists already: choose another folder with out="),
    ],
)
def test_a_comparison_goes_on_as_it_began(change: dict[str, Any], said: str) -> None:
    given: dict[str, Any] = {
        "data": ratings(), "module": module(), "algorithms": ["fedavg"], "seeds": [0], **SHORT
    }  # fmt: skip
    fedrows.compare(out="kept", **given)
    before = {path: path.read_bytes() for path in Path("kept").rglob("*") if path.is_file()}
    with pytest.raises(FedrowsError, match=said):
        fedrows.compare(out="kept", **{"resume": True, **given, **change})
    assert {p: p.read_bytes() for p in Path("kept").rglob("*") if p.is_file()} == before


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"algorithms": ["fedsubavg", FedSubAvg(cap=2)]}, "given twice"),
        ({"algorithms": []}, "no algorithm to compare"),
        ({"algorithms": [Recommender]}, "The algorithm is"),
        ({"seeds": []}, "at least one"),
        ({"seeds": [0, 0]}, "each once"),
        ({"seeds": [0.5]}, "whole numbers"),
        ({"resume": True}, "no folder is named"),
        ({"learning_rate": 1}, "did you mean"),
        ({"round": 1}, "did you mean"),
        ({"seed": 1}, "seed"),
        ({"rates": {"fedavg": {"learning": 3}}}, "no option of fedavg or of the plan"),
        ({"target_metric": "test_aux"}, "did you mean test_auc"),
        ({"target_value": float("nan")}, "finite"),
        ({"target_rounds": 0}, "at least 1"),
        ({"rates": {"fedprox": {"lr": 1.0}}}, "fedprox"),
        ({"data": "ratings.csv"}, "no task called"),
        ({"data": {"user": [1]}}, "The data are a dict"),
        ({"module": None}, "The module is None"),
        ({"module": Recommender}, "Recommender"),
        ({"clients_per_round": 31}, "only 30 clients"),
    ],
)
def test_a_wrong_argument_is_said_and_leaves_nothing(change: dict[str, Any], said: str) -> None:
    given: dict[str, Any] = {"data": ratings(), "module": module(), "algorithms": "fedavg", **SHORT}
    with pytest.raises(FedrowsError, match=said):
        fedrows.compare(**{"out": None if "resume" in change else "new", **given, **change})
    assert not Path("new").exists()


def test_an_own_class_may_not_have_a_name_of_ours() -> None:
    other = dataclass(frozen=True)(type("FedProx", (FedAvg,), {"__doc__": "Another."}))
    with pytest.raises(PlanError, match="give the class another name"):
        fedrows.compare(ratings(), module(), [other], **SHORT)


def test_rates_of_a_search_and_metrics_of_ones_own_are_used() -> None:
    def positives(scores: Any, label: Any, client: Any) -> float:
        return float((scores > 0).mean())

    rates = {"fedavg": {"lr": 0.1}, "fedsubavg": {"cap": 3.0}}
    found = fedrows.compare(
        ratings(), module(), rates=rates, seeds=[0], metrics={"positives": positives}, **SHORT
    )
    alone = fedrows.simulate(
        ratings(), module(), "fedavg", metrics={"positives": positives}, **{**SHORT, "lr": 0.1}
    )
    mine = [line for line in found.lines if line["algorithm"] == "fedavg"]
    assert numbers(mine) == numbers(alone.history)
    assert "test_positives" in mine[0]


def test_a_task_by_name_is_compared_as_on_the_command_line() -> None:
    found = fedrows.compare(
        "synthetic", None, ["fedavg"], seeds=[0], options={"clients": 30, "items": 20},
        rounds=2, clients_per_round=5, threads=1, out="here",
    )  # fmt: skip
    words = ["compare", "synthetic", "--clients=30", "--items=20", "--clients-per-round=5"]
    words += ["--rounds=2", "--threads=1", "--algorithms=fedavg", "--seeds=0", "--out=there"]
    assert cli.main(words) == 0
    there = Path("there/metrics.jsonl").read_text("utf-8").splitlines()
    assert numbers(found.lines) == numbers([json.loads(line) for line in there])


def test_a_study_of_ones_own_makes_each_run_once() -> None:
    own = fedrows.OwnTask(ratings(), module())
    given = ["fedavg", FedSubAvg(cap=10), "fedsubavg", Doubled]
    study = fedrows.Study.grid(own, given, seeds=[0, 1], plan=STUDY)
    results = study.run("study")
    names = ["fedavg", "fedsubavg cap=10", "fedsubavg", "doubled"]
    assert list(dict.fromkeys(run.setting.name for run in results)) == names
    alone = fedrows.simulate(ratings(), module(), Doubled, seed=1, threads=1, **STUDY)
    assert numbers(results.runs[-1].lines) == numbers(alone.history)
    before = {path: path.stat().st_mtime_ns for path in Path("study/runs").iterdir()}
    assert len(before) == 8
    same = fedrows.OwnTask(ratings(), module())
    fedrows.Study.grid(same, given, seeds=[0, 1], plan=STUDY).run("study")
    assert {path: path.stat().st_mtime_ns for path in Path("study/runs").iterdir()} == before
    other = fedrows.OwnTask(ratings(), module(1))  # other start values are other runs
    fedrows.Study.grid(other, ["fedavg"], seeds=[0], plan=STUDY).run("study")
    assert len(list(Path("study/runs").iterdir())) == 9


def test_a_study_varies_options_of_ones_own() -> None:
    own = fedrows.OwnTask(ratings(validation=0.2), module())
    study = fedrows.Study.grid(
        own, [FedSubAvg(cap=10), Doubled], seeds=[0], plan=STUDY, vary={"lr": [0.1, 0.3]}
    )
    chosen = study.run("study").chosen()
    assert set(chosen) == {"fedsubavg", "doubled"}
    assert chosen["fedsubavg"].options["cap"] == 10
    again = fedrows.Study(list(chosen.values()), seeds=[5]).run("study")
    assert len(again.runs) == 2
    assert again.runs[0].command.startswith("Study([Setting.of(own, FedSubAvg(cap=10")
    mine = Setting.of("synthetic", Doubled, {**STUDY, "rounds": 3}, data={"clients": 30})
    [run] = fedrows.Study([mine], seeds=[0]).run("study").runs
    assert run.lines[-1]["algorithm"] == "doubled"


@pytest.mark.parametrize(
    ("task", "more", "said"),
    [
        (ratings(), {}, r"OwnTask\(data, module\)"),
        (None, {}, "The task is a NoneType"),
        (fedrows.OwnTask(ratings(), module()), {"data": {"validation": 0.1}}, "are your own"),
    ],
)
def test_a_study_says_what_a_task_is(task: Any, more: dict[str, Any], said: str) -> None:
    with pytest.raises(PlanError, match=said):
        fedrows.Study.grid(task, ["fedavg"], seeds=[0], **more)


def test_other_processes_do_not_know_what_is_given_in_python() -> None:
    own = fedrows.OwnTask(ratings(), module())
    study = fedrows.Study.grid(own, ["fedavg"], seeds=[0], plan=STUDY)
    with pytest.raises(PlanError, match="this process alone"):
        study.run("study", workers=2)
    with ThreadPoolExecutor(1) as executor:
        study.executor = executor
        with pytest.raises(PlanError, match="this process alone"):
            study.run("study")
    assert not Path("study").exists()


def test_they_show_themselves_in_one_line_and_in_a_notebook() -> None:
    found = fedrows.compare(ratings(), module(), seeds=[0], **SHORT)
    assert repr(found) == "Compared(fedavg, fedsubavg on ratings: 1 seed, 10 rounds)"
    shown = found._repr_html_() or ""
    assert "<table>" in shown
    assert "<svg" in shown
    assert len(found.frame("pandas")) == 4
    own = fedrows.OwnTask(ratings(), module())
    assert repr(own) == "OwnTask(Recommender on ratings, 30 clients)"
    study = fedrows.Study.grid(own, ["fedavg"], seeds=[0], plan=STUDY)
    study.run("study")
    assert "\n" not in repr(study)
    assert "<svg" in (study._repr_html_() or "")


def test_the_page_of_ones_own_study_says_nothing_of_the_paper() -> None:
    own = fedrows.OwnTask(ratings(), module())
    study = fedrows.Study.grid(own, ["fedavg"], seeds=[0], plan=STUDY)
    page = study.run("study").page("study", "Mine").read_text("utf-8")
    shown = re.sub(r"(?s)<(style|script).*?</\1>", "", page)
    assert "Mine" in shown
    assert "paper" not in shown.lower()
    assert "paper" not in Path("study/results.md").read_text("utf-8").lower()
    assert "Setting.of(own, FedAvg()" in page  # what repeats the run
