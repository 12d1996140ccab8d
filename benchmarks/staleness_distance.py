"""Two measures of a row's staleness: how often it moved since it was read, or how far.

    FEDROWS_DATA=… python benchmarks/staleness_distance.py [TASK …]

`often` is what `--staleness row` does. `far` counts how long the row's way was since the client
read it, in lengths of the client's own update of it: τ = way / ‖Δ‖. Heavy-tailed devices, C = 20 M,
the settings, rates and targets of `benchmarks/asynchronous.py`, which runs first. Puts the part
`distance` into asynchronous.json.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np
import torch

from benchmarks.asynchronous import RESULT, written
from benchmarks.asynchronous_bench import Run, bench_of, outcome
from benchmarks.speed.machine import facts
from fedrows.rows.params import Submodels
from fedrows.simulation import Simulation
from fedrows.simulator.asynchronous import AsyncRounds
from fedrows.simulator.pending_updates import Arrival

CLOCK, TIMES = "heavy-tail", 20


def by_distance(run: Simulation) -> None:
    """Lets a run count ways in place of moves."""
    schedule, tables = run.schedule, run.progress.params.tables
    assert isinstance(schedule, AsyncRounds)
    before = {table: tables[table].clone() for table in schedule.moves}
    for table, moves in schedule.moves.items():
        schedule.moves[table] = torch.zeros_like(moves, dtype=torch.float64)
    take = schedule.pending.take

    def stepped(update: Submodels) -> None:
        for table, way in schedule.moves.items():
            way += (tables[table] - before[table]).norm(dim=1).double()
            before[table].copy_(tables[table])

    def taken(clients: np.ndarray) -> Arrival:
        arrival = take(clients)
        update = arrival.upload.update
        for table, read in arrival.moves.items():
            now = schedule.moves[table][update.index[table].ids]
            own = update.rows[table].norm(dim=1).double().clamp(min=1e-12)
            arrival.moves[table] = now - (now - read) / own  # so that the difference is τ
        return arrival

    schedule.stepped = stepped  # type: ignore[method-assign]
    schedule.pending.take = taken  # type: ignore[method-assign, assignment]


def measure(task: str) -> list[dict[str, Any]]:
    """By seed and measure: the time to the synchronous target, and the least loss."""
    part = json.loads(RESULT.read_text("utf-8"))[task]
    bench, rate, runs = bench_of(task), part["rates"][CLOCK]["row"], []
    for seed, target in enumerate(x["target"] for x in part["clocks"][CLOCK]):
        run = Run(task, CLOCK, seed, "row", rate, times=TIMES)
        each: dict[str, Any] = {"target": target}
        for name, change in (("often", None), ("far", by_distance)):
            each[name] = outcome([*bench.lines(run, change)], target)
        runs.append(each)
        print(task, seed, each, flush=True)
    return runs


def main() -> int:
    """Measures, prints and writes."""
    torch.set_num_threads(1)
    tasks = sys.argv[1:] or ["synthetic"]
    by_task = {task: measure(task) for task in tasks}
    command = f"python benchmarks/staleness_distance.py {' '.join(tasks)}"
    written("distance", {**facts(), "command": command, "times": TIMES, "tasks": by_task})
    return 0


if __name__ == "__main__":
    sys.exit(main())
