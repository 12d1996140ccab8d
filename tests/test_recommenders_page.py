"""docs/recommenders.md has the numbers of the results files, and no others."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "docs"))

import make_recommenders

from benchmarks import preset_times


def test_the_tables_are_those_of_the_results() -> None:
    text = make_recommenders.PAGE.read_text("utf-8")
    assert make_recommenders.page(text) == text
    assert make_recommenders.page(text.replace(".8126", ".9126")) == text


def test_the_readmes_table_is_that_of_the_results() -> None:
    text = make_recommenders.README.read_text("utf-8")
    assert make_recommenders.readme(text) == text
    assert "| `movielens-rank` | HR@10 | popularity .4599 |" in text


def test_the_readme_shows_what_validation_prefers() -> None:
    algorithms = {
        "fedavg": {"test_auc": [0.5, 0.7], "by": 0.3},
        "fedadam:tau=1": {"test_auc": [0.6, 0.6], "by": 0.9},
        "fedsubavg": {"test_auc": [0.9], "by": 0.8},
        "centralsgd": {"test_auc": [0.95], "by": 1.0},
    }
    found = {"anchors": {"als": {"test_auc": 0.91}}, "algorithms": algorithms}
    shown = make_recommenders.compared(found, "test_auc", "by")
    assert shown == ["CentralSGD .9500", "`fedadam` .6000", ".6000"]


def test_means_and_spreads_are_written_with_their_seeds() -> None:
    assert make_recommenders.shown([0.75, 0.77]) == ".7600 ± .0141 (2)"
    assert make_recommenders.shown([0.75]) == ".7500 (1)"


def test_a_plain_run_is_timed_and_others_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preset_times, "CORES", 1)
    file = tmp_path / "times.json"
    file.write_text(json.dumps({"other": 1}))
    assert preset_times.main(["synthetic"], file) == 0
    found = json.loads(file.read_text())
    assert found["other"] == 1
    one = found["synthetic"]
    assert (one["algorithm"], one["rounds"], one["machine"]["threads"]) == ("fedsubavg", 300, 1)
    assert 0 < one["processor_seconds"] < 1.1 * one["seconds"]  # on one core
    assert one["metrics"]["test_auc"] > 0.8
    shown = make_recommenders.times({"synthetic": one})
    assert f"AUC {make_recommenders.short(one['metrics']['test_auc'])}" in shown


def test_a_process_with_too_few_cores_times_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preset_times, "CORES", 10_000)
    assert preset_times.main(["synthetic"], tmp_path / "times.json") == 2
    assert not (tmp_path / "times.json").exists()
