"""Which bounds on single clients, and which rate under them, do best on validation examples.

    FEDROWS_DATA=… python -m benchmarks.robust_sweep --tasks amazon --out sweep.jsonl [--workers 6]

Every setting of bounds is run at the same rates, with and without 5 % of liars, for as many rounds,
on the data without the validation examples. Nothing here looks at test examples. A line of the file
is one point of one run; runs that are in the file are not repeated. The order is that of how much a
run tells, so a shorter time leaves out what matters less.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.lying_clients import LIARS, Setting, in_processes, loaded, measured, simulation
from fedrows import catalogue
from fedrows.robust import RowClip
from fedrows.runs.settings import presets

VALIDATION = {"movielens": 0.2, "amazon": 0.25, "amazon-wide": 0.25, "synthetic": 0.2}
ROUNDS = {"movielens": 300, "amazon": 300, "amazon-wide": 200, "synthetic": 30}
Line = dict[str, Any]
Job = tuple[str, str, float, float, int]  # task, bounds, rate, share of liars, seed


class TriedClip(RowClip):
    """A row-clip of which parts are left out, or whose bounds are multiples of the quantile."""

    times, skipped = 1.0, frozenset[str]()  # kinds of bounds, and tensors

    def _bounds(self, names: list[str], sizes: Tensor) -> Tensor:
        left_out = [bool(self.skipped & {*name.split("/")}) for name in names]
        bounds = super()._bounds(names, sizes) * self.times
        return torch.where(torch.tensor(left_out), torch.inf, bounds)


@dataclass(frozen=True)
class Bounds:
    """What single clients are bounded by."""

    clip: float | None = None
    weights: float | None = None  # the quantile
    cap: str | None = None
    algorithm: str = "fedsubavg"
    times: float = 1.0
    parts: str = ""  # tables or dense, if not both
    skipped: tuple[str, ...] = ()  # of largest-sent, largest-moved, mean-sent, mean-moved
    plan: Mapping[str, Any] = field(default_factory=dict)  # more options

    def setting(self, lr: float, share: float) -> Setting:
        plan = {"row_clip": self.clip, "weight_quantile": self.weights, "lr": lr, **self.plan}
        own = {} if self.cap is None else {"cap": self.cap}
        return Setting(plan, own, self.algorithm, share)


MEANS, SENT = ("mean-sent", "mean-moved"), ("largest-sent", "mean-sent")
MOVED, COHORT, BOUNDED = ("largest-moved", "mean-moved"), "cohort", "boundedsubavg"
BOUNDS = {
    "unbounded": Bounds(),
    "cap": Bounds(cap=COHORT),
    "private terms": Bounds(cap=COHORT, plan={"weighting": "uniform"}),
    "clip .75, weights .25, cap": Bounds(0.75, 0.25, COHORT),
    "clip .5, weights .25, cap": Bounds(0.5, 0.25, COHORT),
    "clip .25, weights .25, cap": Bounds(0.25, 0.25, COHORT),
    "bounded, clip .75, weights .25": Bounds(0.75, 0.25, algorithm=BOUNDED),
    "bounded, clip .5, weights .25": Bounds(0.5, 0.25, algorithm=BOUNDED),
    "bounded, clip .25, weights .25": Bounds(0.25, 0.25, algorithm=BOUNDED),
    "clip .75, weights .25": Bounds(0.75, 0.25),
    "clip .5, weights .25": Bounds(0.5, 0.25),
    "clip .75, weights .75": Bounds(0.75, 0.75),
    "clip .5, weights .75": Bounds(0.5, 0.75),
    "clip .9, weights .25": Bounds(0.9, 0.25),
    "clip .9, weights .75": Bounds(0.9, 0.75),
    "weights .25": Bounds(weights=0.25),
    "clip .75": Bounds(0.75),
    "clip .75 tables, weights .25": Bounds(0.75, 0.25, parts="tables"),
    "clip .75 dense, weights .25": Bounds(0.75, 0.25, parts="dense"),
    "clip .75 moved, weights .25": Bounds(0.75, 0.25, skipped=SENT),
    "clip .75 sent, weights .25": Bounds(0.75, 0.25, skipped=MOVED),
    "clip .75 largest, weights .25": Bounds(0.75, 0.25, skipped=MEANS),
    "bounded, clip .75, weights .75": Bounds(0.75, 0.75, algorithm=BOUNDED),
    "clip .25, weights .25": Bounds(0.25, 0.25),
    "bounded": Bounds(algorithm=BOUNDED),
    "weights .75": Bounds(weights=0.75),
    "2 medians, weights .25": Bounds(0.5, 0.25, times=2.0),
}
# What may become the default: FedSubAvg, whose cap private runs have as well.
CANDIDATES = tuple(name for name in BOUNDS if name.endswith("weights .25, cap"))
FREE = tuple(name for name, bounds in BOUNDS.items() if bounds.clip is None)  # liars break them
RATES = {
    "movielens": (0.2, 0.1, 0.4, 0.05),
    "amazon": (0.05, 0.1, 0.025, 0.2),
    "amazon-wide": (0.0125, 0.05),
    "synthetic": (0.1,),
}


def jobs(tasks: Sequence[str], seeds: Sequence[int]) -> list[Job]:
    """Every run, the most telling ones first."""
    every: list[Job] = []
    for task, seed in itertools.product(tasks, seeds):
        for lr, name, share in itertools.product(RATES[task], BOUNDS, (0.0, LIARS)):
            if not (share and name in FREE):
                every.append((task, name, lr, share, seed))
    return every


def lines_of(job: Job, count: int, device: str) -> list[Line]:
    """The validation metrics of one run, at three points of it."""
    task, name, lr, share, seed = job
    bounds, data = BOUNDS[name], loaded(task, VALIDATION[task])
    setting = bounds.setting(lr, share)
    simulated = simulation(task, data, setting, seed, count, device)
    clip = simulated.progress.row_clip
    if clip is not None:
        tried = TriedClip(clip.quantile, [])
        params = simulated.progress.params
        free = {"": {}, "tables": params.dense, "dense": params.tables}[bounds.parts]
        tried.windows, tried.times = clip.windows, bounds.times
        tried.skipped = frozenset({*bounds.skipped, *free})
        simulated.progress.row_clip = tried
    lines = measured(simulated, setting, "validation", (count // 3, 2 * count // 3))
    about = dict(zip(("task", "bounds", "lr", "liars", "seed"), job, strict=True))
    return [{**about, **line} for line in lines]


def read(path: Path) -> list[Line]:
    """The lines of a file of results; none if there is no file."""
    if not path.exists():
        return []
    lines = [json.loads(text) for text in path.read_text("utf-8").splitlines()]
    return [line for line in lines if "error" not in line]


def points(lines: Sequence[Line], task: str, bounds: str) -> dict[tuple[float, int], float]:
    """Rate and round → the mean AUC on validation examples of honest clients.

    With bounds it is the mean of runs with and without liars. Only points of as many seeds as any
    has are compared.
    """
    own = [line for line in lines if (line["task"], line["bounds"]) == (task, bounds)]
    values = defaultdict[tuple[float, int], dict[float, dict[int, float]]](
        lambda: defaultdict(dict)
    )
    for line in own:
        at = values[line["lr"], line["round"]]
        at[line["liars"]][line["seed"]] = line["validation_auc_of_honest"]
    wanted = 1 if bounds in FREE else 2
    whole = {at: x for at, x in values.items() if len(x) == wanted}
    most = max((min(map(len, x.values())) for x in whole.values()), default=0)
    return {
        at: statistics.mean(statistics.mean(seeds.values()) for seeds in x.values())
        for at, x in whole.items()
        if min(map(len, x.values())) == most
    }


def best_point(lines: Sequence[Line], task: str, bounds: str) -> tuple[float, int]:
    """The rate and the number of rounds that do best on validation examples; else the presets."""
    known = points(lines, task, bounds)
    if not known:
        preset, _ = presets(catalogue.task(task), BOUNDS[bounds].algorithm)
        return preset["lr"], preset.get("rounds", ROUNDS[task])
    return max(known, key=lambda at: known[at])


def best_bounds(lines: Sequence[Line], tasks: Sequence[str] = ("movielens", "amazon")) -> str:
    """The candidate whose best points are best, mean over the tasks."""
    scores = {
        name: statistics.mean(max(points(lines, task, name).values()) for task in tasks)
        for name in CANDIDATES
        if all(points(lines, task, name) for task in tasks)
    }
    return max(scores, key=lambda name: scores[name])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", default="movielens,amazon")
    parser.add_argument("--seeds", default="0,1")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=1e6)
    parser.add_argument("--out", type=Path, required=True)
    typed = parser.parse_args()
    seeds = [int(x) for x in typed.seeds.split(",")]
    done = {tuple(x[n] for n in ("task", "bounds", "lr", "liars", "seed")) for x in read(typed.out)}
    wanted = [job for job in jobs(typed.tasks.split(","), seeds) if job not in done]
    calls = [(job, ROUNDS[job[0]], typed.device) for job in wanted]
    in_processes(lines_of, calls, typed.workers, typed.seconds, typed.out)


if __name__ == "__main__":
    main()
