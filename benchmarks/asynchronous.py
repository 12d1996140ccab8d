"""Virtual time to a target: synchronous rounds against rounds that do not wait.

    FEDROWS_DATA=… python benchmarks/asynchronous.py [TASK …] [--device cuda] [--processes 6]

For every task, kind of devices and seed:

    waiting   synchronous rounds of K clients, over-selection 1.3, by deadline
    smaller   synchronous rounds of M = K / 5 clients, so that they take as many steps as the next
    async     a step on every M updates, C = 10 M or 20 M clients at a time, by rule of staleness

All have the same number of updates. A run is judged by its least loss, a mean of three evaluations.
The target is 1 % above that of the synchronous run without a deadline. Each of `waiting` and the
three rules has a learning rate of its own for each kind of devices: of some, the one that is first
at the target, by validation examples and on a seed that is not measured again. There the target is
that of the best synchronous rate. On `amazon` a rule's rate must also reach the least loss of the
synchronous run that was chosen; if none does, it is the rate with the least loss. `smaller` has the
rate of `waiting`. The measured runs are judged by test examples. A run of which only the time to
the target is wanted ends there.

Every run that has ended is a line of the file `--runs`, and is not run again. So a command that was
stopped, by `--seconds` or otherwise, goes on where it was. Writes results/asynchronous.json: the
kinds of devices of which all runs are there, each with the machine that ran them. A task's other
kinds stay as they were, unless they were measured with other settings.
`python docs/make_asynchronous.py` writes the page.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch

from benchmarks.asynchronous_bench import (
    CLOCKS,
    NEAR,
    RULES,
    SETTINGS,
    SMALLER,
    Bench,
    Line,
    Run,
    bench_of,
    best,
    measured,
    outcome,
    reached,
    searched,
)
from benchmarks.speed.machine import facts

RESULTS = Path(__file__).parent / "results"
RESULT = RESULTS / "asynchronous.json"
KINDS = ("waiting", *RULES)
EXPLODED = 5.0  # a loss from which no run comes back
Done = Mapping[Run, list[Line]]
Wanted = Callable[[], Iterable[tuple[Run, float]]]


def target_of_search(done: Done, task: str, clock: str) -> float | None:
    """The loss that a rate is to reach, once all rates of the synchronous run are known."""
    runs = searched(task, clock, "waiting")
    if all(run in done for run in runs):
        return NEAR * min(best(done[run]) for run in runs)
    return None


def chosen(done: Done, task: str, clock: str) -> dict[str, Run]:
    """The run whose learning rate is chosen for every kind, once its search has ended."""
    target, choice = target_of_search(done, task, clock), {}
    if target is None:
        return {}

    least = math.inf  # that a rule's run must reach, too
    for kind in KINDS:
        runs = searched(task, clock, kind)
        if all(run in done for run in runs):
            choice[kind] = first_of(runs, done, target, least)
        if kind == "waiting" and SETTINGS[task].as_good:
            least = best(done[choice[kind]])
    return choice


def first_of(runs: Collection[Run], done: Done, target: float, least: float) -> Run:
    """Of the runs whose least loss is at most `least`, the first at the target.

    If none reaches the target, or `least`, the one with the least loss.
    """

    def worth(run: Run) -> tuple[bool, float, float]:
        seconds, loss = reached(done[run], target), best(done[run])
        if loss > least:
            return True, loss, 0.0
        return False, math.inf if seconds is None else seconds, loss

    return min(runs, key=worth)


def needed(done: Done, typed: argparse.Namespace) -> Iterator[tuple[Run, float]]:
    """The runs that can be run by now, and the loss at which each may end."""
    for clock, task in itertools.product(typed.clocks, typed.tasks):
        target = target_of_search(done, task, clock)
        for kind in KINDS:
            if kind == "waiting":
                yield from ((run, -math.inf) for run in searched(task, clock, kind))
            elif target is not None:
                ends = -math.inf if SETTINGS[task].as_good else target
                yield from ((run, ends) for run in searched(task, clock, kind))
        for seed in range(typed.seeds):
            runs = measured(seed, chosen(done, task, clock))
            for run in runs:
                if not only_seconds(run):
                    yield run, -math.inf
                elif (base := unhurried(runs)) in done:
                    yield run, NEAR * best(done[base])


def only_seconds(run: Run) -> bool:
    """Whether nothing but its time to the target is wanted of a run that is measured."""
    return run.kind == "smaller" or run.deadline is not None


def unhurried(runs: Iterable[Run]) -> Run:
    """The synchronous run without a deadline, whose least loss sets the target."""
    return next(run for run in runs if run.kind == "waiting" and run.deadline is None)


@cache
def _bench(task: str, device: str) -> Bench:
    torch.set_num_threads(1)
    return bench_of(task, device)


def run_one(run: Run, device: str, target: float) -> tuple[list[Line], float]:
    """A run until its loss is at most a target or has exploded, and how many seconds it took."""
    since, lines = time.monotonic(), list[Line]()
    for line in _bench(run.task, device).lines(run):
        lines.append(line)
        if line[1] <= target or not line[1] < EXPLODED:
            break
    return lines, time.monotonic() - since


def run_all(typed: argparse.Namespace, done: dict[Run, list[Line]], wanted: Wanted) -> None:
    """Runs what is missing, several at a time, until all is there or the time is over.

    wanted: gives the runs that can be run by now, and the loss at which each may end.
    """
    since = time.monotonic()
    pool = ProcessPoolExecutor(typed.processes, multiprocessing.get_context("spawn"))
    under_way: dict[Future[tuple[list[Line], float]], Run] = {}
    failed = set[Run]()
    with typed.runs.open("a", encoding="utf-8") as file, pool:
        keep(file, {"machine": machine(typed)})
        while True:
            busy = {*under_way.values()} | failed | done.keys()
            ready = ((run, target) for run, target in wanted() if run not in busy)
            if time.monotonic() - since < typed.seconds:
                for run, target in itertools.islice(ready, typed.processes - len(under_way)):
                    under_way[pool.submit(run_one, run, typed.device, target)] = run
            if not under_way:
                break
            for future in wait(under_way, return_when=FIRST_COMPLETED).done:
                run = under_way.pop(future)
                at = time.monotonic() - since
                if error := future.exception():
                    failed.add(run)
                    print(f"{at:6.0f} s  {run} failed: {error!r} {error.__cause__}", flush=True)
                    continue
                done[run], took = future.result()
                keep(file, {"run": asdict(run), "lines": done[run]})
                print(f"{at:6.0f} s  {run}: {best(done[run]):.4f}, took {took:.1f} s", flush=True)


def keep(file: Any, line: Mapping[str, Any]) -> None:
    """Writes a line that stays if the program is killed."""
    file.write(json.dumps(line) + "\n")
    file.flush()
    os.fsync(file.fileno())


def kept(path: Path) -> tuple[dict[Run, list[Line]], dict[tuple[str, str], dict[str, Any]]]:
    """The runs of a file, and for each task and kind of devices the machine that ran it last."""
    done: dict[Run, list[Line]] = {}
    machines: dict[tuple[str, str], dict[str, Any]] = {}
    machine: dict[str, Any] = {}
    for line in path.read_text("utf-8").splitlines() if path.exists() else ():
        content = json.loads(line)
        if "machine" in content:
            machine = content["machine"]
        else:
            run = Run(**content["run"])
            done[run] = [(now, loss) for now, loss in content["lines"]]
            machines[run.task, run.clock] = machine
    return done, machines


def machine(typed: argparse.Namespace) -> dict[str, Any]:
    """What the runs are made on."""
    named = torch.cuda.get_device_name() if typed.device == "cuda" else "CPU"
    return {**facts(), "device": named, "threads": 1}


def part_of(done: Done, task: str, clocks: Collection[str], seeds: int) -> dict[str, Any]:
    """What came of a task's runs; nothing if no kind of devices is complete."""
    part: dict[str, Any] = {}
    for clock in clocks:
        choice = chosen(done, task, clock)
        runs = [measured(seed, choice) for seed in range(seeds)]
        if len(choice) < len(KINDS) or not all(run in done for each in runs for run in each):
            continue
        target = target_of_search(done, task, clock)
        assert target is not None
        search = {
            kind: {run.named_rate: outcome(done[run], target)
                   for run in searched(task, clock, kind)}
            for kind in KINDS
        }  # fmt: skip
        part.setdefault("rates", {})[clock] = {k: run.rate for k, run in choice.items()}
        part.setdefault("schedules", {})[clock] = {k: run.schedule for k, run in choice.items()}
        part.setdefault("searched", {})[clock] = search
        part.setdefault("clocks", {})[clock] = [compared(done, each) for each in runs]
    if not part:
        return {}
    bench = bench_of(task)
    plan = bench.settings(Run(task, "constant", 0, "waiting")).plan
    count = plan.clients_per_round
    return {
        "rounds": plan.rounds,
        "clients": bench.data.clients,
        "clients_per_round": count,
        "buffer": count // SMALLER,
        "lr": plan.lr,
        "why": bench.setting.why,
        **part,
    }


def compared(done: Done, runs: Collection[Run]) -> dict[str, Any]:
    """The runs of a seed by kind and name, each with what came of it."""
    target = NEAR * best(done[unhurried(runs)])
    by_kind: dict[str, Any] = {"target": target, "waiting": {}, "smaller": {}, "async": {}}
    for run in runs:
        group = by_kind[run.kind if run.waits else "async"]
        came = outcome(done[run], target)
        group[run.name] = {"seconds": came["seconds"]} if only_seconds(run) else came
    return by_kind


def merged(before: Mapping[str, Any], part: Mapping[str, Any]) -> dict[str, Any]:
    """A task's part with the kinds of devices that were measured before, with equal settings."""
    by_clock = {name for name, x in part.items() if isinstance(x, Mapping)}
    settings = part.keys() - by_clock
    if before.keys() != part.keys() or any(before[name] != part[name] for name in settings):
        return dict(part)
    return {
        name: {**before[name], **part[name]} if name in by_clock else part[name] for name in part
    }


def written(key: str, part: Mapping[str, Any]) -> None:
    """Puts a part into the results, which keep their other parts."""
    whole = results()
    whole[key] = part
    RESULT.write_text(json.dumps(whole, indent=1) + "\n", "utf-8")


def results() -> dict[str, Any]:
    """What was measured up to now, by part."""
    whole: dict[str, Any] = json.loads(RESULT.read_text("utf-8")) if RESULT.exists() else {}
    return whole


def main() -> int:
    """Measures, prints and writes."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("tasks", nargs="*", default=[*SETTINGS], help=", ".join(SETTINGS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--clocks", nargs="*", default=CLOCKS)
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no run later")
    parser.add_argument("--runs", type=Path, default=Path("asynchronous.jsonl"))
    typed = parser.parse_args()
    done, _ = kept(typed.runs)
    run_all(typed, done, lambda: needed(done, typed))
    done, machines = kept(typed.runs)
    for task in typed.tasks:
        if part := part_of(done, task, CLOCKS, typed.seeds):
            made_on = {clock: machines[task, clock] for clock in part["clocks"]}
            written(task, merged(results().get(task, {}), {**part, "machines": made_on}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
