"""docs/asynchronous-results.md against what was measured, and its tables by hand."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "docs"))
import make_asynchronous as page


def test_the_page_and_its_picture_are_those_of_the_results() -> None:
    results, cost = page.read()
    text = page.PAGE.read_text("utf-8")
    assert page.written(text, results, cost) == text
    assert page.PAGE.with_suffix(".svg").read_text("utf-8") == page.picture(results)


def run(waited: float, row: float | None, version: float | None, best: float) -> dict:
    found = {"row, 20": (row, best), "version, 20": (version, 0.6), "none, 20": (None, 9.0)}
    return {
        "target": 0.505,
        "waiting": {"none": {"seconds": 2 * waited, "best": 0.5}, "5": {"seconds": waited}},
        "smaller": {},
        "async": {name: {"seconds": s, "best": x} for name, (s, x) in found.items()},
    }


@pytest.fixture
def case() -> page.Case:
    return page.Case("amazon", "heavy-tail", 20, [run(100, 20, None, 0.4), run(80, 20, 40, 0.5)])


def test_times_sooner_are_means_over_seeds_against_the_best_deadline(case: page.Case) -> None:
    assert case.waited() == [100, 80]
    assert case.ratio("row") == pytest.approx((5 + 4) / 2)


def test_a_rule_that_misses_the_target_once_has_no_ratio(case: page.Case) -> None:
    assert case.ratio("version") == 0
    results = {"amazon": {"clocks": {"heavy-tail": case.runs}}}
    line = page.gains(results).splitlines()[2]
    assert "| 90 | – | 4.5 × | not reached (1 of 2) | not reached (2 of 2) |" in line


def test_which_goals_are_reached_is_read_off_the_numbers(case: page.Case) -> None:
    results = {"amazon": {"clocks": {"heavy-tail": case.runs}}}
    cost = {"goals": [{"what": "ratio", "value": 1.6, "at_most": 1.5, "met": False}]}
    lines = page.goals(results, cost).splitlines()[2:]
    assert [line.split(" | ")[-1] for line in lines] == ["yes |"] * 4 + ["**no** |"]
    slow = {"amazon": {"clocks": {"heavy-tail": [run(50, 20, 10, 0.7)] * 2}}}
    lines = page.goals(slow, cost).splitlines()[2:]
    assert [line.split(" | ")[-1] for line in lines] == ["**no** |"] * 5


def test_a_rate_that_falls_is_shown_with_its_schedule() -> None:
    chosen = {"waiting": 2, "row": 1, "version": 1, "none": 0.5}
    part = {"lr": 0.05, "rates": {"constant": chosen}}
    part["searched"] = {"constant": {"waiting": {"1, cosine": {}, "2, cosine": {}, "2": {}}}}
    part["schedules"] = {"constant": {**dict.fromkeys(chosen, "constant"), "row": "cosine"}}
    line = page.rates({"amazon": part}).splitlines()[2]
    assert "| 0.05, 0.1 | 0.1 | 0.05, cosine | 0.05 | 0.025 |" in line


def test_kinds_of_devices_that_were_measured_elsewhere_say_where() -> None:
    here = {"cpu": "one", "torch": "2.11", "date": "2026-11-18T22:03:59"}
    there = {"cpu": "other", "torch": "2.13", "date": "2026-11-19T22:03:59"}
    part = {"clients": 5, "clients_per_round": 2, "rounds": 3, "buffer": 1, "why": "presets"}
    clocks = {"constant": [{}], "log-normal": [{}], "heavy-tail": [{}]}
    machines = {"constant": here, "log-normal": there, "heavy-tail": here}
    said = page.settings({"amazon": {**part, "clocks": clocks, "machines": machines}})
    assert "constant and heavy-tail on one, PyTorch 2.11, 2026-11-18; log-normal on other" in said
    alike = page.settings({"amazon": {**part, "clocks": clocks, "machines": {"constant": here}}})
    assert alike.endswith("asynchronous.py amazon`, one, PyTorch 2.11, 2026-11-18.\n")


def test_buffers_as_large_as_a_cohort_are_a_case_of_their_own(case: page.Case) -> None:
    own = {"row": {"seconds": 25, "best": 0.4}, "version": {"seconds": 50, "best": 0.5}}
    same = {"seconds": 50, "best": 0.45}
    again = {**run(60, 20, None, 0.5), "async": {"row, 10": {"seconds": 15, "best": 0.51}}}
    found = {
        "times": 10,
        "buffer": 100,
        "runs": [{"waiting": {"seconds": s}, "async": own, "same": same} for s in (30, 70)],
        "fresh": {"seeds": [3, 4], "runs": [again] * 2},
    }
    machine = {"command": "python x.py", "cpu": "one", "torch": "2", "date": "2026-11-19T20"}
    results = {"amazon": {"clocks": {"heavy-tail": case.runs}}, "buffers": {**machine, **found}}
    line = page.gains(results).splitlines()[3]
    assert "| 10, M = K | 90 | – | 3.6 × | 1.8 × | – |" in line
    equal, same_rate, once_more = page.buffers(results).splitlines()[:3]
    assert "takes the first 100 reaches the target in 50.0 s, and `row` in 25.0 s" in equal
    assert "`row` needs 50.0 s and synchronous rounds 90.0 s, 1.8 × as long" in same_rate
    assert "is -0.0500 from theirs" in same_rate
    assert "seeds, 3 and 4: `row` needs 15.0 s and synchronous rounds 60.0 s, 4.0 ×" in once_more
    goals = page.goals(results, {}).splitlines()[2:5]
    shown = [line.split(" | ")[1:] for line in goals]
    assert shown == [["4.5 ×", "yes |"], ["1.8 ×", "**no** |"], ["4.0 ×", "**no** |"]]  # 0.51


def test_only_runs_that_end_as_well_count_as_sooner() -> None:
    """The faster case ends worse than the synchronous run by more than the range of its seeds."""
    bad, good = (page.Case("amazon", "heavy-tail", 20, [run(100, s, 50, x)] * 2)
                 for s, x in ((10, 0.6), (25, 0.5)))  # fmt: skip
    assert not bad.ends_well
    assert good.ends_well
    assert page.fastest([bad, good]) is good
    assert page.fastest([bad]) is None
