"""Virtual time to the synchronous target by concurrency, on heavy-tailed devices.

    python benchmarks/asynchronous.py synthetic
    python benchmarks/asynchronous_sweeps.py

The task `synthetic` as in the first command, whose targets it takes, with other C / M. A run ends
at the target. Puts the part `concurrency` into results/asynchronous.json.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch

from benchmarks.asynchronous import RESULT, RULES, SETTINGS, Bench, load, written

TIMES = (2, 5, 40)  # C / M


def main() -> int:
    """Measures, prints and writes."""
    torch.set_num_threads(1)
    setting, clock = SETTINGS["synthetic"], "heavy-tail"
    before = json.loads(RESULT.read_text("utf-8"))["synthetic"]["clocks"][clock]
    targets = [x["target"] for x in before]
    data, runs = load(setting), []
    for seed, target in enumerate(targets):
        bench, found = Bench(setting, clock, seed, data), {}
        for rule in RULES:
            for times in TIMES:
                there = (x for x, loss in bench.without_waiting(rule, times) if loss <= target)
                found[f"{rule}, {times}"] = next(there, None)
        runs.append(found)
        print(f"seed {seed}: {found}", flush=True)
    written("concurrency", {"runs": runs}, "python benchmarks/asynchronous_sweeps.py")
    return 0


if __name__ == "__main__":
    sys.exit(main())
