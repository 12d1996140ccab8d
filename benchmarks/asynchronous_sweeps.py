"""Virtual time to the synchronous target by concurrency, and by how heavy the tail of devices is.

    python benchmarks/asynchronous_sweeps.py [--seeds 3]

The task `synthetic` with the setting of `benchmarks/asynchronous.py`. The first sweep has devices
of the kind heavy-tail and C = 1 M … 40 M. The second has devices from a file, whose speed and
network are divided by Pareto numbers of a given α, and C = 20 M. A run ends at the target. Puts the
parts `concurrency` and `tail` into results/asynchronous.json.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np
import torch

from benchmarks.asynchronous import RULES, SETTINGS, Bench, Line, final, load, named, written
from fedrows.simulator.devices import DOWN, SPEED, UP

TIMES = (1, 5, 10, 20, 40)  # C / M
TAILS = (4.0, 2.0, 1.2, 1.0)  # α: the smaller, the heavier
AT = 20  # C / M of the second sweep
DEADLINES = (None, 5.0)
SLOWEST = 1000.0


def until(lines: Iterator[Line], target: float) -> float | None:
    """The virtual seconds until the target; the run is not made any longer than that."""
    return next((now for now, loss in lines if loss <= target), None)


def waited(bench: Bench) -> tuple[float, dict[str, float | None]]:
    """The target, and when synchronous runs reach it, by deadline."""
    patient = [*bench.waiting(None)]
    target = final(patient)
    found = {named(None): until(iter(patient), target)}
    for deadline in DEADLINES[1:]:
        found[named(deadline)] = until(bench.waiting(deadline), target)
    return target, found


def devices(path: Path, clients: int, alpha: float, seed: int) -> None:
    """Writes a table of devices with Pareto slowness, of which one in twenty updates is lost."""
    random = np.random.default_rng(seed)
    slow, far = (np.minimum(random.pareto(alpha, clients) + 1, SLOWEST) for _ in range(2))
    lines = ["client,speed,down,up,dropout"]
    lines += [f"{i},{SPEED / s},{DOWN / f},{UP / f},0.05"
              for i, (s, f) in enumerate(zip(slow, far, strict=True))]  # fmt: skip
    path.write_text("\n".join(lines) + "\n", "utf-8")


def main() -> int:
    """Measures, prints and writes."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seeds", type=int, default=3)
    given = parser.parse_args()
    torch.set_num_threads(1)
    setting = SETTINGS["synthetic"]
    data, command = load(setting), "python benchmarks/asynchronous_sweeps.py"
    runs: list[dict[str, Any]] = []
    for seed in range(given.seeds):
        bench = Bench(setting, "heavy-tail", seed, data)
        target, waiting = waited(bench)
        found = {
            rule: {t: until(bench.without_waiting(rule, t), target) for t in TIMES}
            for rule in RULES
        }
        runs.append({"target": target, "waiting": waiting, "async": found})
        print(f"concurrency, seed {seed}: {runs[-1]}", flush=True)
    written("concurrency", {"runs": runs}, command)
    tails: dict[str, list[dict[str, Any]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for alpha in TAILS:
            tails[f"{alpha:g}"] = []
            for seed in range(given.seeds):
                path = Path(folder) / f"{alpha:g}-{seed}.csv"
                devices(path, data.clients, alpha, seed)
                bench = Bench(setting, str(path), seed, data)
                target, waiting = waited(bench)
                found = {rule: until(bench.without_waiting(rule, AT), target) for rule in RULES}
                tails[f"{alpha:g}"].append({"target": target, "waiting": waiting, "async": found})
                print(f"α = {alpha:g}, seed {seed}: {tails[f'{alpha:g}'][-1]}", flush=True)
    written("tail", {"times": AT, "runs": tails}, command)
    return 0


if __name__ == "__main__":
    sys.exit(main())
