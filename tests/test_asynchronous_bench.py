"""benchmarks/asynchronous.py: which runs it makes, and when each may end."""

from __future__ import annotations

import argparse
import math

import pytest

from benchmarks.asynchronous import KINDS, chosen, merged, needed, unhurried
from benchmarks.asynchronous_bench import NEAR, SETTINGS, Line, Run, measured, searched

CLOCK = "heavy-tail"
GIVEN = argparse.Namespace(tasks=["amazon"], clocks=[CLOCK], seeds=1)
Done = dict[Run, list[Line]]


@pytest.fixture
def done() -> Done:
    """All runs that choose a rate; the larger it is, the sooner a loss of 0.5 is reached."""
    runs = [run for kind in KINDS for run in searched("amazon", CLOCK, kind)]
    return {run: [(10 / run.rate, 0.5)] for run in runs}


def test_a_synchronous_run_chooses_among_more_schedules_than_the_rules() -> None:
    setting = SETTINGS["amazon"]
    waiting, row = (searched("amazon", CLOCK, kind) for kind in ("waiting", "row"))
    assert {run.schedule for run in waiting} == {*setting.schedules}
    assert {run.schedule for run in row} == {setting.schedules[0]}
    assert {run.rate for run in waiting} == {run.rate for run in row} == {*setting.rates}


def test_the_rate_that_is_first_at_the_target_is_chosen(done: Done) -> None:
    largest = max(SETTINGS["amazon"].rates)
    assert {run.rate for run in chosen(done, "amazon", CLOCK).values()} == {largest}


def test_a_rules_rate_must_be_as_good_as_the_synchronous_one(done: Done) -> None:
    for run in searched("amazon", CLOCK, "row"):
        done[run] = [(10 / run.rate, 0.5 if run.rate <= 2 else 0.502)]  # below the target, too
    assert chosen(done, "amazon", CLOCK)["row"].rate == 2
    for run in searched("amazon", CLOCK, "row"):
        done[run] = [(10 / run.rate, 0.501 + 0.001 * run.rate)]
    assert chosen(done, "amazon", CLOCK)["row"].rate == min(SETTINGS["amazon"].rates)


def test_runs_of_which_only_the_time_is_wanted_end_at_the_target(done: Done) -> None:
    runs = measured(0, chosen(done, "amazon", CLOCK))
    base = unhurried(runs)
    before = {run: target for run, target in needed(done, GIVEN) if run.seed == 0}
    assert before[base] == -math.inf
    assert all(run.deadline is None and run.kind != "smaller" for run in before)
    done[base] = [(5.0, 0.8), (6.0, 0.7)]
    after = {run: target for run, target in needed(done, GIVEN) if run.seed == 0}
    assert after.keys() == {*runs}
    ending = {run for run, target in after.items() if target == NEAR * 0.75}
    assert ending == {run for run in runs if run.deadline is not None or run.kind == "smaller"}
    assert {after[run] for run in runs if run not in ending} == {-math.inf}


def test_a_kind_of_devices_joins_those_that_were_measured_with_equal_settings() -> None:
    def part(clock: str, rounds: int = 30) -> dict:
        runs = {name: {clock: name} for name in ("rates", "schedules", "clocks", "machines")}
        return {"rounds": rounds, "lr": 0.1, **runs}

    both = merged(part("constant"), part("log-normal"))
    assert both["clocks"] == {"constant": "clocks", "log-normal": "clocks"}
    assert both["machines"].keys() == {"constant", "log-normal"}
    assert both["rounds"] == 30
    assert merged(part("constant", 20), part("log-normal")) == part("log-normal")
    assert merged({}, part("log-normal")) == part("log-normal")
