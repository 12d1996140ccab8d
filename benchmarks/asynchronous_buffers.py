"""Amazon with buffers as large as a cohort: M = K, C = 10 M, on heavy-tailed devices.

    FEDROWS_DATA=… python benchmarks/asynchronous.py amazon
    FEDROWS_DATA=… python benchmarks/asynchronous_buffers.py [--processes 2]

The task `amazon` as in the first command, whose targets it takes. The rules of staleness have
rates of their own for these buffers, chosen as there: by validation examples, on a fourth seed.
`row` is also run with the rate of the synchronous run, which is not searched for: with M = K a step
is as large. Beside them stands a synchronous run that asks as many clients as train here at a time,
and takes the first K. Three fresh seeds repeat `row` with the synchronous rate and the synchronous
runs. Every run that has ended is a line of the file `--runs`, and is not run again. Puts the part
`buffers` into results/asynchronous.json.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.asynchronous import first_of, kept, results, run_all, written
from benchmarks.asynchronous_bench import (
    NEAR,
    OVER,
    SEARCH_SEED,
    SETTINGS,
    Line,
    Run,
    best,
    outcome,
)

TASK, CLOCK, TIMES = "amazon", "heavy-tail", 10
RULES = ("row", "version")
FRESH = (3, 4, 5)  # seeds
RATES = (2.0, 4.0, 8.0)  # times that of the plan: the largest that the first command tries
Done = dict[Run, list[Line]]
Ends = dict[Run, float]  # runs, and the loss at which each may end


def candidates(rule: str) -> list[Run]:
    """The runs that choose the rate of a rule."""
    schedule = SETTINGS[TASK].schedules[0]
    return [
        Run(TASK, CLOCK, SEARCH_SEED, rule, rate, schedule, times=TIMES, smaller=1)
        for rate in RATES
    ]


def bounds(part: dict[str, Any]) -> tuple[float, float]:
    """The target of the search, and the least loss of the synchronous run that was chosen in it."""
    searched = part["searched"][CLOCK]["waiting"]
    chosen = waiting(part, SEARCH_SEED)
    return NEAR * min(x["best"] for x in searched.values()), searched[chosen.named_rate]["best"]


def waiting(part: dict[str, Any], seed: int) -> Run:
    """The synchronous run that asks as many clients as train at a time without waiting."""
    rate, schedule = (part[x][CLOCK]["waiting"] for x in ("rates", "schedules"))
    return Run(TASK, CLOCK, seed, "waiting", rate, schedule, over=float(TIMES))


def measured(part: dict[str, Any], done: Done, seed: int) -> dict[str, Run]:
    """The runs of a seed, by name; `same` is `row` with the rate of the synchronous run."""
    target, least = bounds(part)
    runs = {rule: first_of(candidates(rule), done, target, least) for rule in RULES}
    runs["same"] = replace(runs["row"], rate=part["rates"][CLOCK]["waiting"])
    return {x: replace(run, seed=seed) for x, run in runs.items()} | {
        "waiting": waiting(part, seed)
    }


def runs_of(part: dict[str, Any], done: Done) -> Iterable[dict[str, Any]]:
    """What came of each seed."""
    for seed, before in enumerate(part["clocks"][CLOCK]):
        runs = measured(part, done, seed)
        came = {name: outcome(done[run], before["target"]) for name, run in runs.items()}
        yield {
            "waiting": {"seconds": came["waiting"]["seconds"]},  # it ended there
            "async": {rule: came[rule] for rule in RULES},
            "same": came["same"],
        }


def fresh(part: dict[str, Any], seed: int) -> tuple[Run, list[Run]]:
    """The synchronous run that sets the target of a fresh seed, and the runs beside it."""
    base = replace(waiting(part, seed), over=OVER)
    limits = [replace(base, deadline=x) for x in SETTINGS[TASK].deadlines]
    same = replace(candidates("row")[0], seed=seed, rate=base.rate, schedule=base.schedule)
    return base, [*limits, same]


def fresh_of(part: dict[str, Any], done: Done) -> Iterable[dict[str, Any]]:
    """What came of each fresh seed, as of the seeds before."""
    for base, others in (fresh(part, seed) for seed in FRESH):
        target = NEAR * best(done[base])
        came = {run: outcome(done[run], target) for run in (base, *others)}
        yield {
            "target": target,
            "waiting": {run.name: x for run, x in came.items() if run.waits},
            "smaller": {},
            "async": {run.name: x for run, x in came.items() if not run.waits},
        }


def main() -> int:
    """Measures, prints and writes."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--runs", type=Path, default=Path("asynchronous_buffers.jsonl"))
    typed = parser.parse_args()
    typed.device, typed.seconds = "cpu", math.inf
    part = results()[TASK]
    done, _ = kept(typed.runs)
    searched = [(run, -math.inf) for rule in RULES for run in candidates(rule)]
    run_all(typed, done, lambda: searched)
    ends: Ends = {}
    for seed, before in enumerate(part["clocks"][CLOCK]):
        for run in measured(part, done, seed).values():
            ends[run] = before["target"] if run.waits else -math.inf
    plans = [fresh(part, seed) for seed in FRESH]
    ends |= {base: -math.inf for base, _ in plans}
    run_all(typed, done, ends.items)
    for base, others in plans:
        target = NEAR * best(done[base])
        ends |= {run: target if run.waits else -math.inf for run in others}
    run_all(typed, done, ends.items)
    target, least = bounds(part)
    chosen = {rule: first_of(candidates(rule), done, target, least) for rule in RULES}
    result = {
        "command": "python benchmarks/asynchronous_buffers.py",
        "buffer": part["clients_per_round"],
        "times": TIMES,
        "rates": {rule: run.rate for rule, run in chosen.items()},
        "searched": {
            rule: {run.named_rate: outcome(done[run], target) for run in candidates(rule)}
            for rule in RULES
        },
        "runs": [*runs_of(part, done)],
        "fresh": {"seeds": FRESH, "runs": [*fresh_of(part, done)]},
    }
    _, machines = kept(typed.runs)
    written("buffers", {**machines[TASK, CLOCK], **result})
    return 0


if __name__ == "__main__":
    sys.exit(main())
