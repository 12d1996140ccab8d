"""Two measures of a row's staleness: how often it moved since it was read, or how far.

    FEDROWS_DATA=… python benchmarks/staleness_distance.py [TASK …]

`often` is what `--staleness row` does. `far` counts how long the row's way was since the client
read it, in lengths of the client's own update of it: τ = way / ‖Δ‖. Heavy-tailed devices, C = 20 M,
the settings of `benchmarks/asynchronous.py`. Puts the part `distance` into asynchronous.json.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch

from benchmarks.asynchronous import SETTINGS, Bench, final, load, reached, written
from fedrows.rows.params import Submodels
from fedrows.simulation import Simulation
from fedrows.simulator.asynchronous import AsyncRounds
from fedrows.simulator.pending_updates import Arrival

TIMES = 20


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

    def taken(clients: list[int]) -> Arrival:
        arrival = take(clients)
        update = arrival.upload.update
        for table, read in arrival.moves.items():
            now = schedule.moves[table][update.index[table].ids]
            own = update.rows[table].norm(dim=1).double().clamp(min=1e-12)
            arrival.moves[table] = now - (now - read) / own  # so that the difference is τ
        return arrival

    schedule.stepped = stepped  # type: ignore[method-assign]
    schedule.pending.take = taken  # type: ignore[method-assign, assignment]


def measure(task: str, seeds: int = 3) -> list[dict[str, Any]]:
    """By seed and measure: the time to the synchronous target, and the loss at the end."""
    setting = SETTINGS[task]
    data, found = load(setting), []
    for seed in range(seeds):
        bench = Bench(setting, "heavy-tail", seed, data)
        target = final([*bench.waiting(None)])
        each: dict[str, Any] = {"target": target}
        for name, change in (("often", None), ("far", by_distance)):
            lines = [*bench.without_waiting("row", TIMES, change=change)]
            each[name] = {"seconds": reached(lines, target), "final": final(lines)}
        found.append(each)
        print(task, seed, each, flush=True)
    return found


def main() -> int:
    """Measures, prints and writes."""
    torch.set_num_threads(1)
    tasks = sys.argv[1:] or ["synthetic"]
    part = {"times": TIMES, "tasks": {task: measure(task) for task in tasks}}
    written("distance", part, f"python benchmarks/staleness_distance.py {' '.join(tasks)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
