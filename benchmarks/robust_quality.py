"""What the bounds on single clients cost, and what they save: quality with and without liars.

    FEDROWS_DATA=… python -m benchmarks.robust_quality --runs runs.jsonl
    python -m benchmarks.robust_quality --runs runs.jsonl --summarise "the machine"    into results/

Bounded and unbounded runs each have the rate and the number of rounds that `robust_sweep` has found
best on validation examples, among as many; the seeds are others than there. A run ends with an AUC
on test examples: of all clients, and of those that are honest in the runs with liars. A liar also
trains its own row, which nobody else holds, the wrong way: its own examples say how well it harms
itself, those of the others what the bounds save. The spread is the largest difference between two
seeds of the unbounded run without liars, on the same examples. The bounds are those of a
deployment; private runs have another weighting and no row-clip.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
from collections.abc import Sequence
from math import nan
from pathlib import Path

from benchmarks.lying_clients import LIARS, Setting, in_processes, loaded, measured, simulation
from benchmarks.robust_sweep import BOUNDS as TRIED
from benchmarks.robust_sweep import Line, best_bounds, best_point, read

RESULTS = Path(__file__).parent / "results"
SWEEP, RESULT = RESULTS / "robust_sweep.jsonl", RESULTS / "robust_quality.json"
# Name → whose rate it has, None being the chosen bounds, and the share of liars.
SETTINGS: dict[str, tuple[str | None, float]] = {
    "unbounded": ("unbounded", 0.0),
    "bounded": (None, 0.0),
    "bounded, 5 % liars": (None, LIARS),
    "private": ("private terms", 0.0),
    "unbounded, 5 % liars": ("unbounded", LIARS),
}
METRICS = (("test_auc", ""), ("test_auc_of_honest", "_of_honest"))


def setting_of(lines: Sequence[Line], chosen: str, task: str, name: str) -> tuple[Setting, int]:
    """The setting of a name, and for how many rounds it is run."""
    bounds, share = SETTINGS[name]
    lr, count = best_point(lines, task, bounds or chosen)
    return TRIED[bounds or chosen].setting(lr, share), count


def lines_of(
    task: str, name: str, seed: int, setting: Setting, count: int, device: str
) -> list[Line]:
    """The test metrics of one run."""
    data = loaded(task)
    (line,) = measured(simulation(task, data, setting, seed, count, device), setting, "test")
    about = {"task": task, "setting": name, "seed": seed, "lr": setting.plan["lr"]}
    return [{**about, **line}]


def summary(lines: Sequence[Line]) -> list[Line]:
    """Mean and spread of every setting, and how many spreads it is behind the unbounded run."""
    rows = []
    for task in dict.fromkeys(line["task"] for line in lines):
        own = [line for line in lines if line["task"] == task]
        for name in SETTINGS:
            runs = sorted((x for x in own if x["setting"] == name), key=lambda x: int(x["seed"]))
            if not runs:
                continue
            row: Line = {"task": task, "setting": name, "lr": runs[0]["lr"]}
            row["rounds"] = runs[0]["round"]
            for metric, of in METRICS:
                base = [x[metric] for x in own if x["setting"] == "unbounded"]
                values = [x[metric] for x in runs]
                spread = max(base) - min(base)
                behind = statistics.mean(base) - statistics.mean(values)
                row[metric] = round(statistics.mean(values), 4)
                row[f"seeds{of}"] = [round(x, 4) for x in values]
                row[f"spreads_behind{of}"] = round(behind / spread, 2) if spread else nan
            rows.append(row)
    return rows


def summarise(runs: Path, machine: str) -> None:
    """Writes what a file of runs comes to."""
    lines, sweep = read(runs), read(SWEEP)
    result = {
        "machine": machine,
        "bounds": best_bounds(sweep),
        "summary": summary(lines),
        "runs": lines,
    }
    RESULT.write_text(json.dumps(result, indent=1) + "\n")
    for row in result["summary"]:
        print({name: x for name, x in row.items() if not name.startswith("seeds")})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", default="movielens,amazon")
    parser.add_argument("--seeds", default="6,7,8,9,10")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=1e6)
    parser.add_argument("--runs", type=Path, required=True)
    parser.add_argument("--summarise", metavar="MACHINE", help="write the result of --runs")
    typed = parser.parse_args()
    if typed.summarise:
        summarise(typed.runs, typed.summarise)
        return
    sweep, calls = read(SWEEP), []
    chosen = best_bounds(sweep)
    print("chosen:", chosen, flush=True)
    for task, name in itertools.product(typed.tasks.split(","), SETTINGS):
        setting, count = setting_of(sweep, chosen, task, name)
        print(task, name, setting, count, flush=True)
        calls += [
            (task, name, int(seed), setting, count, typed.device) for seed in typed.seeds.split(",")
        ]
    in_processes(lines_of, calls, typed.workers, typed.seconds, typed.runs)


if __name__ == "__main__":
    main()
