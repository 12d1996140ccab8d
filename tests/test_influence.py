"""The tables of what liars can do are those that were measured, and say what they should."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
RESULT = json.loads((ROOT / "benchmarks" / "results" / "influence.json").read_text())
SETTINGS = {
    "unbounded": "unbounded, nobody lies",
    "bounded": "default bounds, nobody lies",
    "unbounded, 5 % liars": "unbounded, 5 % of the clients lie",
    "bounded, 5 % liars": "default bounds, 5 % of the clients lie",
    "private": "the terms of private runs, nobody lies",
}
QUALITY = json.loads((ROOT / "benchmarks" / "results" / "robust_quality.json").read_text())


def test_the_page_has_the_table_that_was_measured() -> None:
    pytest.importorskip("flwr")
    from benchmarks.influence import page_with

    page = (ROOT / "docs" / "over-the-network.md").read_text()
    assert page_with(page, RESULT) == page


def test_by_default_a_liar_does_no_more_than_an_honest_round() -> None:
    rules = {line["rule"]: line for line in RESULT["rules"]}
    uncapped, cold = rules["default without cap"], "cold, 100000 examples"
    assert 2 * rules["default of deployments"][cold] < uncapped[cold]
    largest = rules["default of deployments"].pop("honest_largest")
    del rules["default of deployments"]["rule"]
    assert all(moved <= largest for moved in rules["default of deployments"].values())
    assert rules["FedSubAvg, cap 100"]["cold, 100000 examples"] > 100


@pytest.mark.slow
def test_measured_again_a_liar_still_does_no_more(data_folder: Path) -> None:
    from benchmarks.influence import measure

    for line in measure()["rules"]:
        if line["rule"] == "default of deployments":
            honest = line.pop("honest_largest")
            assert all(x <= honest for name, x in line.items() if name != "rule")


def _by_setting() -> dict[tuple[str, str], dict[str, Any]]:
    return {(line["task"], line["setting"]): line for line in QUALITY["summary"]}


def test_the_default_bounds_keep_what_was_promised() -> None:
    """Spreads behind the unbounded run without liars, by the difference of its own seeds.

    A liar trains its own rows the wrong way, so its own examples are not among those that count.
    """
    for task in ("movielens", "amazon"):
        by = {name: _by_setting()[task, name] for name in SETTINGS}
        assert by["bounded"]["spreads_behind"] <= 1
        assert by["bounded"]["spreads_behind_of_honest"] <= 1
        assert by["bounded, 5 % liars"]["spreads_behind_of_honest"] <= 2
        assert by["unbounded, 5 % liars"]["spreads_behind_of_honest"] > 10
        assert by["private"]["spreads_behind"] <= 1
        assert all(len(line["seeds"]) == 5 for line in by.values())


def test_quality_was_measured_under_the_bounds_of_deployments() -> None:
    """With the rate and rounds that do best on validation examples, on other seeds than there."""
    pytest.importorskip("flwr")
    from benchmarks import robust_quality
    from benchmarks.robust_sweep import BOUNDS as TRIED
    from benchmarks.robust_sweep import best_bounds, read
    from fedrows.algorithms.fedsubavg import FedSubAvg
    from fedrows.flower.wire.contract import BOUNDS, UNTOLD

    sweep = read(robust_quality.SWEEP)
    chosen = best_bounds(sweep)
    assert QUALITY["bounds"] == chosen
    plan = {"row_clip": TRIED[chosen].clip, "weight_quantile": TRIED[chosen].weights}
    assert plan == BOUNDS
    private = TRIED["private terms"]
    assert {"cap": TRIED[chosen].cap} == {"cap": private.cap} == FedSubAvg.deployed
    assert private.plan == UNTOLD
    for line in QUALITY["summary"]:
        setting, rounds = robust_quality.setting_of(sweep, chosen, line["task"], line["setting"])
        assert (line["lr"], line["rounds"]) == (setting.plan["lr"], rounds)
    assert not {line["seed"] for line in sweep} & {line["seed"] for line in QUALITY["runs"]}
    assert not any("test" in name for line in sweep for name in line)
    assert robust_quality.summary(QUALITY["runs"]) == QUALITY["summary"]


@pytest.mark.parametrize(("setting", "title"), SETTINGS.items())
def test_the_page_has_the_quality_that_was_measured(title: str, setting: str) -> None:
    page, cells = (ROOT / "docs" / "over-the-network.md").read_text(), [title]
    for task in ("movielens", "amazon"):
        line = _by_setting()[task, setting]
        for of in ("", "_of_honest"):
            cells.append(f"{line[f'test_auc{of}']:.3f}".lstrip("0"))
            behind = line[f"spreads_behind{of}"]
            sign = "\N{MINUS SIGN}" if behind < 0 else ""
            shown = sign + f"{abs(behind):.1f}".removeprefix("0")
            cells.append("" if setting == "unbounded" else shown)
    assert f"| {' | '.join(cells)} |".replace("|  |", "| |").replace("|  |", "| |") in page
