"""Virtual time to the synchronous target by concurrency, on heavy-tailed devices.

    python benchmarks/asynchronous.py synthetic
    python benchmarks/asynchronous_sweeps.py

The task `synthetic` as in the first command, whose targets and learning rates it takes, with other
C / M. A run ends at the target. Puts the part `concurrency` into results/asynchronous.json.
"""

from __future__ import annotations

import itertools
import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch

from benchmarks.asynchronous import RESULT, written
from benchmarks.asynchronous_bench import RULES, Bench, Run, bench_of
from benchmarks.speed.machine import facts

TASK, CLOCK = "synthetic", "heavy-tail"
TIMES = (2, 5, 40)  # C / M


def by_concurrency(
    bench: Bench, seed: int, target: float, rates: dict[str, float]
) -> dict[str, float | None]:
    """The seconds to the target by rule and C / M."""
    seconds = {}
    for rule, times in itertools.product(RULES, TIMES):
        run = Run(TASK, CLOCK, seed, rule, rates[rule], times=times)
        seconds[run.name] = next((x for x, loss in bench.lines(run) if loss <= target), None)
    return seconds


def main() -> int:
    """Measures, prints and writes."""
    torch.set_num_threads(1)
    part = json.loads(RESULT.read_text("utf-8"))[TASK]
    bench, runs = bench_of(TASK), []
    for seed, target in enumerate(x["target"] for x in part["clocks"][CLOCK]):
        runs.append(by_concurrency(bench, seed, target, part["rates"][CLOCK]))
        print(f"seed {seed}: {runs[-1]}", flush=True)
    command = "python benchmarks/asynchronous_sweeps.py"
    written("concurrency", {**facts(), "command": command, "runs": runs})
    return 0


if __name__ == "__main__":
    sys.exit(main())
