"""What simulating asynchronous rounds costs against synchronous ones, and how a fleet starts.

    FEDROWS_DATA=… python benchmarks/async_cost.py [TASK …]

What an update takes of the processor, asynchronous over synchronous. Both runs stand side by side
in one thread and take turns, so that what else the machine does hits both. The synchronous run has
K clients in a round and no clock. The asynchronous run steps on K updates too, with 10 K clients
under way on heavy-tailed devices, with staleness by row. The same for K / 5 in both. Shown are
medians over the turns. Then a federation of a million clients with a clock is started in a process
of its own; its seconds are also given as the processor's. Writes results/async_cost.json.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch

from benchmarks.asynchronous_bench import ALGORITHM
from benchmarks.speed.machine import facts, peak
from fedrows import catalogue
from fedrows.plan import Plan
from fedrows.runs.settings import Settings, presets
from fedrows.simulation import Simulation

RESULT = Path(__file__).parent / "results" / "async_cost.json"
# Options and plan beside the presets, and how many updates a turn has.
TASKS: dict[str, tuple[dict[str, Any], dict[str, Any], int]] = {
    "synthetic": ({}, {"clients_per_round": 50}, 1000),
    "movielens": ({}, {"clients_per_round": 50}, 500),
    "movielens-mf": ({}, {"clients_per_round": 100}, 500),
    "amazon": ({"history": 10}, {"clients_per_round": 50}, 100),
}
MILLION, LIMIT, MOST_SECONDS, MOST_BYTES = 1_000_000, 1.5, 60.0, 4 * 2**30


def started(task: str, options: dict[str, Any], **plan: Any) -> Simulation:
    """A run of a task's presets with some changes."""
    named, of = catalogue.task(task), catalogue.algorithm(ALGORITHM)
    usual, own = presets(named, ALGORITHM)
    chosen = named.options(**options)
    made = Plan(**{**usual, "device": "cpu", "rounds": 10**6, "threads": 1, **plan})
    run = Settings(named, chosen, of(**own), made).simulation(named.load(chosen))
    run.prepare()
    return run


def seconds(rounds: Iterator[Any], count: int) -> float:
    """What some rounds take of the processor."""
    since = time.process_time()
    for _ in range(count):
        next(rounds)
    return time.process_time() - since


def compare(task: str, turns: int) -> dict[str, Any]:
    """For K and K / 5: microseconds of an update in each kind of run, and their ratio."""
    options, plan, updates = TASKS[task]
    by_size = {}
    for size in (plan["clients_per_round"], plan["clients_per_round"] // 5):
        changes = {"mode": "async", "clock": "heavy-tail", "concurrency": 10 * size}
        usual = {**plan, "clients_per_round": size}
        both = [started(task, options, **usual), started(task, options, **usual, **changes)]
        running = [run.rounds() for run in both]
        for rounds in running:
            seconds(rounds, 12)  # until as many are under way as can be
        times: list[list[float]] = []
        count = max(2, updates // size)
        for _ in range(turns):
            times.append([1e6 * seconds(rounds, count) / (count * size) for rounds in running])
        by_size[f"{size}"] = {
            "sync": median(a for a, _ in times),
            "async": median(b for _, b in times),
            "ratio": median(b / a for a, b in times),
        }
    return by_size


def million() -> dict[str, Any]:
    """Starts a run of a million clients with a clock, to the end of its first step."""
    since = time.perf_counter()
    run = started(
        "synthetic", {"clients": MILLION, "examples_per_client": 10.0}, clients_per_round=100,
        mode="async", clock="heavy-tail", buffer=100, concurrency=1000,
    )  # fmt: skip
    loaded = time.perf_counter() - since
    next(run.rounds())
    whole, processor = time.perf_counter() - since, time.process_time()
    since = time.perf_counter()
    again = Simulation(run._federation, run.model, run.algorithm, run.plan)
    clock = time.perf_counter() - since
    assert again.schedule is not None
    return {"clients": MILLION, "seconds": whole, "processor": processor,
            "with_data": loaded, "without_data": clock, "peak_bytes": peak()}  # fmt: skip


def main() -> int:
    """Measures, prints and writes."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("tasks", nargs="*", default=[], help=", ".join(TASKS))
    parser.add_argument("--turns", type=int, default=9)
    parser.add_argument("--million", action="store_true", help="only start a million clients")
    parser.add_argument("--start", action="store_true", help="measure only the start again")
    typed = parser.parse_args()
    torch.set_num_threads(1)
    if typed.million:
        print(json.dumps(million()))
        return 0
    results = json.loads(RESULT.read_text("utf-8"))["tasks"] if typed.start else {}
    for task in () if typed.start else typed.tasks or TASKS:
        results[task] = compare(task, typed.turns)
        print(task, json.dumps(results[task]), flush=True)
    command = [sys.executable, __file__, "--million"]
    start = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    print(json.dumps(start))
    goals = [
        goal(f"asynchronous over synchronous update, {task}, M = K = {size}", x["ratio"], LIMIT)
        for task, sizes in results.items() for size, x in sizes.items()
    ]  # fmt: skip
    what = "processor seconds to start 10^6 clients with a clock"
    goals.append(goal(what, start["processor"], MOST_SECONDS))
    goals.append(goal("memory of that start, GiB", start["peak_bytes"] / 2**30, MOST_BYTES / 2**30))
    made = {**facts(), "command": "python benchmarks/async_cost.py", "tasks": results,
            "million": start, "goals": goals}  # fmt: skip
    RESULT.write_text(json.dumps(made, indent=1) + "\n", "utf-8")
    return 0


def goal(what: str, value: float, most: float) -> dict[str, Any]:
    """A goal, what was measured, and whether the goal is reached."""
    return {"what": what, "value": value, "at_most": most, "met": value <= most}


if __name__ == "__main__":
    sys.exit(main())
