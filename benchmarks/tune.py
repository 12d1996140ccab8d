"""The default search of `fedrows tune` beside the full grid, on MovieLens.

    nice python benchmarks/tune.py

Both search the same values with the same seed, one trial after another in one process, each in a
folder of its own. The two take turns by algorithm, so that a busy machine slows both. Then the
grid's best and the search's choice run with three other seeds: what counts is whether the choice is
within the spread of those seeds. Test examples are not looked at.
"""

from __future__ import annotations

import json
import platform
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

import fedrows
from fedrows import catalogue
from fedrows.files.whole import as_json, write_whole
from fedrows.tuning import methods
from fedrows.tuning.result import Tuned
from fedrows.tuning.space import spaces
from fedrows.tuning.tuner import ETA

RESULT = Path(__file__).parent / "results" / "tune.json"
TASK, ROUNDS = "movielens", 300
ALGORITHMS = ("fedavg", "fedsubavg", "fedadam")
BEST_KNOWN = {  # of docs/results.md, searched by fedrows/paper/rates_search.py
    "fedavg": {"lr": 3.0},
    "fedsubavg": {"lr": 0.3},
    "fedadam": {"server_lr": 0.01, "tau": 1e-6},
}
SEEDS = (0, 1, 2)


def main() -> None:
    """Measures, and writes after every algorithm."""
    results: dict[str, Any] = {}
    budget, sizes = usual_budget(ROUNDS)
    for name in ALGORITHMS:
        with tempfile.TemporaryDirectory() as folder:
            tune(name, "halving", Path(folder) / "warm", rounds=4)  # loads the data once
            quick, quick_times = timed(name, "halving", Path(folder) / "halving", budget)
            grid = sizes[name] * ROUNDS  # and nothing beyond its edges
            whole, whole_times = timed(name, "grid", Path(folder) / "grid", grid)
        candidates = {
            "halving": quick.rates[name],
            "grid": whole.rates[name],
            "best_known": BEST_KNOWN[name],
        }
        runs: dict[str, Any] = {}
        for values in candidates.values():
            if str(values) not in runs:
                runs[str(values)] = over_seeds(name, values)
        results[name] = {
            "halving": about(quick, name) | quick_times,
            "grid": about(whole, name) | whole_times,
            "best_known": BEST_KNOWN[name],
            "seeds": {label: runs[str(values)] for label, values in candidates.items()},
        }
        write(budget, results)
        print(json.dumps({name: results[name]["seeds"]}), flush=True)


def tune(name: str, method: str, out: Path, **more: Any) -> Tuned:
    """One search in this process."""
    more = {"rounds": ROUNDS, **more}
    return fedrows.tune(TASK, None, name, method=method, workers=1, device="cpu", out=out, **more)


def usual_budget(rounds: int) -> tuple[int, dict[str, int]]:
    """What `fedrows tune` gives each of the three by default, and how large their grids are."""
    every = spaces({name: catalogue.algorithm(name) for name in ALGORITHMS}, {})
    sizes = {name: len(space.grid()) for name, space in every.items()}
    return methods.usual_budget("halving", list(sizes.values()), rounds, ETA), sizes


def timed(name: str, method: str, out: Path, budget: int | None) -> tuple[Tuned, dict[str, float]]:
    """A search, and the seconds it took: of the clock, and of the processor."""
    wall, cpu = time.perf_counter(), time.process_time()
    tuned = tune(name, method, out, budget=budget)
    return tuned, {
        "seconds": round(time.perf_counter() - wall, 1),
        "cpu_seconds": round(time.process_time() - cpu, 1),
    }


def about(tuned: Tuned, name: str) -> dict[str, Any]:
    """What a search came to."""
    chosen = tuned.chosen[name]
    return {
        "chosen": chosen.values,
        "value": chosen.value,
        "rounds": tuned.spent(name),
        "trials": len(tuned.trials),
        "note": tuned.note(name),
    }


def over_seeds(name: str, values: dict[str, Any]) -> dict[str, Any]:
    """The metric of some values with each seed that no search had."""
    search = {key: [value] for key, value in values.items()}
    by_seed = []
    for seed in SEEDS:
        tuned = fedrows.tune(
            TASK, None, name, search=search, method="grid", seed=seed, trials=1, workers=1,
            device="cpu", rounds=ROUNDS,
        )  # fmt: skip
        by_seed.append(tuned.chosen[name].value)
    known = [value for value in by_seed if value is not None]
    return {
        "values": by_seed,
        "mean": statistics.fmean(known),
        "sd": statistics.stdev(known),
    }


def write(budget: int, results: dict[str, Any]) -> None:
    """Writes what is known so far."""
    total = {
        key: sum(one["halving"][key] for one in results.values())
        / sum(one["grid"][key] for one in results.values())
        for key in ("seconds", "cpu_seconds", "rounds")
    }
    content = {
        "task": TASK,
        "rounds": ROUNDS,
        "budget": budget,
        "metric": "validation_loss",
        "share_of_the_grid": {key: round(value, 3) for key, value in total.items()},
        "algorithms": results,
        "machine": {"python": platform.python_version(), "torch": torch.__version__},
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
    }
    write_whole(RESULT, as_json(content, indent=1))


if __name__ == "__main__":
    main()
