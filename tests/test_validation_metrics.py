"""Metrics of validation examples, metrics of one's own, and choices that never look at the test."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from commands import RUN
from commands import fedrows as command
from torch import nn

import fedrows
from fedrows.data.federation import FederatedData
from fedrows.errors import PlanError, PluginError
from fedrows.measure.evaluation import Evaluator
from fedrows.measure.metric_choice import about, best_line, chooses, measured
from fedrows.measure.own_metrics import load_metrics
from fedrows.measure.summary import summarise, table
from fedrows.models.logistic import Logistic
from fedrows.plan import Plan
from fedrows.report.result_sentences import headline
from fedrows.rows.params import Params
from fedrows.study import FinishedRun, Results, Setting

PLAN = Plan(device="cpu")
PARAMS = Params({"item": torch.tensor([[2.0], [-1.0], [0.5]])}, {"bias": torch.tensor(0.0)})


def federation(validation: bool = True, **more: Any) -> FederatedData:
    """Two clients, three training, five validation and four test examples."""
    part = np.array([0, 1, 1, 2, 2, 0, 0, 1, 1, 1, 2, 2])  # 1 is validation, 2 test
    columns = {
        "client": np.arange(12) // 6,
        "ids": {"item": np.array([0, 1, 2, 0, 1, 2, 0, 2, 1, 0, 2, 1])},
        "label": np.array([1, 0, 1, 1, 0, 1, 0, 1, 1, 0, 0, 1]),
        "test": part == 2,
        "tables": {"item": 3},
    }
    return FederatedData.build(**columns, validation=part == 1 if validation else None, **more)


def test_validation_is_measured_as_the_test_is():
    """With the parts exchanged, so are the metrics."""
    data = federation()
    other = FederatedData(**{**vars(data), "test": data.validation, "validation": data.test})
    found = Evaluator(Logistic(data), data, PLAN)(PARAMS)
    swapped = Evaluator(Logistic(other), other, PLAN)(PARAMS)
    for name in ("loss", "accuracy", "auc", "gauc"):
        assert found[f"validation_{name}"] == swapped[f"test_{name}"]
        assert found[f"test_{name}"] == swapped[f"validation_{name}"]
        assert found[f"test_{name}"] != found[f"validation_{name}"]


def test_without_validation_there_is_no_key_and_the_facts_are_as_ever():
    evaluator = Evaluator(Logistic(federation(False)), federation(False), PLAN)
    assert not [key for key in evaluator(PARAMS) if key.startswith("validation")]
    assert "validation_examples" not in evaluator.facts()
    data = federation()
    assert Evaluator(Logistic(data), data, PLAN).facts()["validation_examples"] == 5


class Guess(nn.Module):
    """Guesses 0 for every item."""

    def __init__(self) -> None:
        super().__init__()
        self.item = nn.Embedding(3, 1)
        nn.init.zeros_(self.item.weight)

    def forward(self, item):
        return self.item(item)[:, 0]


def test_errors_of_numbers():
    data = federation(labels="numbers")
    line = fedrows.simulate(data, Guess(), "fedavg", rounds=1, lr=1e-9).history[0]
    assert line["test_rmse"] == pytest.approx(math.sqrt(2 / 4), abs=1e-6)
    assert line["test_mae"] == pytest.approx(2 / 4, abs=1e-6)
    assert line["test_loss"] == pytest.approx(line["test_rmse"] ** 2 / 2)  # as docs/metrics.md says
    assert line["validation_mae"] == pytest.approx(3 / 5, abs=1e-6)


def positives(scores, label, client):
    assert scores.dtype == np.float64
    assert scores.shape == label.shape == client.shape
    return label.sum() + 10 * len(set(client.tolist()))


def test_a_metric_of_ones_own():
    data = federation()
    found = Evaluator(Logistic(data), data, PLAN, {"positives": positives})(PARAMS)
    assert (found["test_positives"], found["validation_positives"]) == (22, 23)
    result = fedrows.simulate(data, Guess(), "fedavg", rounds=1, metrics={"positives": positives})
    assert result.history[-1]["test_positives"] == 22


def failing(scores, label, client):
    raise ZeroDivisionError("by zero")


@pytest.mark.parametrize(
    ("metrics", "names"),
    [
        ({"My metric": positives}, ["'My metric'", "small letters"]),
        ({"auc": positives}, ["'auc'", "built-in"]),
        ({"mine": 3}, ["'mine'", "int", "function"]),
        ({"mine": failing}, ["'mine'", "5 examples", "by zero"]),
        ({"mine": lambda *_: "high"}, ["'mine'", "no number"]),
        (["auc"], ["['auc']", "map names to functions"]),
    ],
)
def test_bad_metrics_are_named(metrics, names):
    data = federation()
    with pytest.raises(PluginError) as caught:
        Evaluator(Logistic(data), data, PLAN, metrics)(PARAMS)
    assert all(name in str(caught.value) for name in names), caught.value


@pytest.mark.parametrize(
    ("references", "names"),
    [
        (["nowhere"], ["'nowhere'", "module:name"]),
        (["math:no_such"], ["'math:no_such'", "no_such"]),
        (["gone.py:f"], ["'gone.py:f'", "cannot be read"]),
        (["math:sqrt", "cmath:sqrt"], ["'sqrt'", "another name"]),
    ],
)
def test_bad_references_are_named(references, names):
    with pytest.raises(PluginError) as caught:
        load_metrics(references)
    assert all(name in str(caught.value) for name in names), caught.value


LINES = [
    {"round": 10, "train_loss": 0.6, "validation_auc": 0.70, "test_auc": 0.60, "test_loss": 0.5},
    {"round": 20, "train_loss": 0.5, "validation_auc": 0.80, "test_auc": 0.65, "test_loss": 0.4},
    {"round": 30, "train_loss": 0.4, "validation_auc": 0.75, "test_auc": 0.90, "test_loss": 0.6},
]


def test_validation_chooses_the_round_of_a_test_metric():
    """The test AUC is best in round 30, the validation AUC in round 20."""
    assert best_line(LINES, "test_auc")["round"] == 20
    assert best_line(LINES, "validation_auc")["round"] == 20
    assert best_line(LINES, "test_loss")["round"] == 20  # there is no validation loss
    assert best_line(LINES, "train_loss")["round"] == 30
    assert best_line(LINES, "test_gauc") is None
    assert chooses("train_loss") == "train_loss"


def test_own_metrics_have_a_direction_and_a_title():
    assert about("test_hit_rate") == ("test hit rate", True, 4)
    assert about("test_pinball_loss")[1] is False
    assert measured([{"round": 1, "test_hit_rate": 0.5, "test_auc": math.nan}]) == ["test_hit_rate"]


def lines_of(algorithm: str, validation: bool = True) -> list[dict[str, Any]]:
    return [
        {"algorithm": algorithm, "seed": 0}
        | {k: v for k, v in line.items() if validation or not k.startswith("validation")}
        for line in LINES
    ]


def test_summary_and_table_report_the_test_at_the_round_that_validation_chose():
    summary = summarise(lines_of("fedavg"))
    [entry] = summary["algorithms"]
    assert entry["metrics"]["test_auc"]["best"]["mean"] == 0.65
    assert entry["metrics"]["validation_auc"]["best"]["mean"] == 0.8
    assert summary["chosen_on_validation"] == ["test_auc"]
    titles, _ = table(summary)
    assert "Test AUC at best validation AUC" in titles
    assert "Best test loss" in titles
    summary = summarise(lines_of("fedavg", validation=False))
    assert summary["algorithms"][0]["metrics"]["test_auc"]["best"]["mean"] == 0.9
    assert summary["chosen_on_validation"] == []
    assert "Best test AUC" in table(summary)[0]


def test_the_headline_says_what_chose():
    lines = [{k: v for k, v in line.items() if k != "test_loss"} for line in lines_of("fedavg")]
    assert headline(summarise(lines)) == (
        "FedAvg came to a test AUC of 0.650 at its best validation AUC within 30 rounds."
    )


def finished(task: str, lr: float, seed: int, values: list[Any]) -> FinishedRun:
    setting = Setting(task, "fedavg", {"lr": lr}, label=f"lr={lr}")
    lines = [{"validation_auc": value, "test_auc": 1 - (value or 0)} for value in values]
    return FinishedRun(f"{lr}{seed}", setting, seed, lines, {}, "", 0.0, {})


def test_a_study_chooses_settings_on_validation_alone():
    """Means of the seeds' best values: 0.65 at 0.1, 0.7 at 0.3; at 1 a seed has diverged."""
    runs = [
        finished("synthetic", 0.1, 0, [0.5, 0.6]), finished("synthetic", 0.1, 1, [0.7, 0.5]),
        finished("synthetic", 0.3, 0, [0.8, 0.1]), finished("synthetic", 0.3, 1, [0.6, 0.6]),
        finished("synthetic", 1.0, 0, [0.9, 0.9]), finished("synthetic", 1.0, 1, [None, None]),
    ]  # fmt: skip
    assert Results(runs).chosen("validation_auc") == {"fedavg": runs[2].setting}
    with pytest.raises(PlanError, match=r"'test_auc'.*not measured on validation"):
        Results(runs).chosen("test_auc")
    with pytest.raises(PlanError, match=r"'validation_loss'.*hold validation examples out"):
        Results(runs).chosen()


def test_the_command_line(tmp_path: Path):
    code = "def share(scores, label, client):\n    return float((scores > 0).mean())\n"
    (tmp_path / "mine.py").write_text(code)
    out, reference = tmp_path / "run", f"{tmp_path / 'mine.py'}:share"
    command(*RUN, "--validation", "0.2", "--metric", reference, "--out", str(out))
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert {"validation_auc", "validation_share", "test_share"} <= lines[-1].keys()
    assert "Validation AUC" in (out / "report.html").read_text()
    assert json.loads((out / "config.json").read_text())["metrics"] == [reference]
    command("run", "--resume", str(out), "--rounds", "13")
    last = json.loads((out / "metrics.jsonl").read_text().splitlines()[-1])
    assert last["round"] == 13
    assert 0 <= last["validation_share"] <= 1
