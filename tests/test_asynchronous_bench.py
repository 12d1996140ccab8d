"""benchmarks/asynchronous.py: which runs it makes, and when each may end."""

from __future__ import annotations

import argparse
import math

import pytest

from benchmarks import asynchronous_buffers as buffers
from benchmarks.asynchronous import KINDS, chosen, merged, needed, unhurried
from benchmarks.asynchronous_bench import NEAR, SETTINGS, Bench, Line, Run, measured, searched

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


def test_buffers_as_large_as_a_cohort_take_as_many_updates() -> None:
    bench = Bench(SETTINGS["amazon"], data=None)  # type: ignore[arg-type]
    usual, large = Run("amazon", CLOCK, 0, "row", times=10), buffers.candidates("row")[0]
    plans = [bench.plan(run) for run in (usual, large)]
    assert [x["buffer"] for x in plans] == [20, 100]
    assert [x["concurrency"] for x in plans] == [200, 1000]
    assert [x["rounds"] * x["buffer"] for x in plans] == [3000, 3000]
    part = {"rates": {CLOCK: {"waiting": 4}}, "schedules": {CLOCK: {"waiting": "cosine"}}}
    assert bench.plan(buffers.waiting(part, 0))["over_select"] == 10


def test_rates_for_large_buffers_are_chosen_by_the_target_that_was_recorded() -> None:
    """Of the rates that end as low as the chosen synchronous run, 0.61, the first at 0.606."""
    searched = {"2, cosine": {"best": 0.6}, "4, cosine": {"best": 0.61}}
    part = {"searched": {CLOCK: {"waiting": searched}}, "rates": {CLOCK: {"waiting": 4}},
            "schedules": {CLOCK: {"waiting": "cosine"}}}  # fmt: skip
    target, least = buffers.bounds(part)
    assert (target, least) == (pytest.approx(0.606), 0.61)
    rows, versions = buffers.candidates("row"), buffers.candidates("version")
    done = {run: [(8.0, 0.6)] for run in rows + versions}
    done[rows[1]] = [(7.0, 0.605)]
    done[rows[2]] = [(5.0, 0.605), (6.0, 0.7)]  # sooner, but it ends too high
    found = buffers.measured(part, done, seed=1)
    chosen = {name: (x.kind, x.rate, x.seed) for name, x in found.items()}
    assert chosen["row"] == ("row", 4, 1)
    assert chosen["same"] == ("row", 4, 1)
    assert chosen["version"] == ("version", 2, 1)
    assert found["waiting"] == buffers.waiting(part, 1)
