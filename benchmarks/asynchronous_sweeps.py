"""Virtual time to the synchronous target by concurrency and by rate, on heavy-tailed devices.

    python benchmarks/asynchronous.py synthetic
    python benchmarks/asynchronous_sweeps.py [--rates]

The task `synthetic` as in the first command, whose targets it takes. With other C / M, a run ends
at the target. With `--rates`, C = 20 M and the learning rate of the task times 2 and 4: a weight
by version makes all steps smaller, which a larger rate may make up for. Puts the part `concurrency`
or `rates` into results/asynchronous.json.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch

from benchmarks.asynchronous import RESULT, RULES, SETTINGS, Bench, load, outcome, written

TIMES = (2, 5, 40)  # C / M
RATES = (2, 4)  # times the task's


def by_concurrency(bench: Bench, target: float) -> dict[str, float | None]:
    """The seconds to the target by rule and C / M."""
    found = {}
    for rule, times in itertools.product(RULES, TIMES):
        there = (x for x, loss in bench.without_waiting(rule, times) if loss <= target)
        found[f"{rule}, {times}"] = next(there, None)
    return found


def by_rate(bench: Bench, target: float) -> dict[str, dict[str, float | None]]:
    """The seconds to the target, and the loss at the end, by rate: also of waiting rounds."""
    found = {}
    for rate in RATES:
        faster = replace(bench.setting, plan={"lr": rate * bench.base.plan.lr})
        other = Bench(faster, bench.clock, bench.seed, bench.data)
        found[f"waiting, {rate}"] = outcome([*other.waiting(None)], target)
        for rule in ("row", "version"):
            found[f"{rule}, {rate}"] = outcome([*other.without_waiting(rule, 20)], target)
    return found


def main() -> int:
    """Measures, prints and writes."""
    torch.set_num_threads(1)
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rates", action="store_true", help="by rate, not by concurrency")
    rates = parser.parse_args().rates
    setting, clock = SETTINGS["synthetic"], "heavy-tail"
    before = json.loads(RESULT.read_text("utf-8"))["synthetic"]["clocks"][clock]
    data, runs = load(setting), []
    for seed, target in enumerate(x["target"] for x in before):
        bench = Bench(setting, clock, seed, data)
        runs.append((by_rate if rates else by_concurrency)(bench, target))
        print(f"seed {seed}: {runs[-1]}", flush=True)
    command = f"python benchmarks/asynchronous_sweeps.py{' --rates' * rates}"
    written("rates" if rates else "concurrency", {"runs": runs}, command)
    return 0


if __name__ == "__main__":
    sys.exit(main())
