"""Learning rates by search: each algorithm's best of a grid, and FedAdam's server rate and τ.

The paper searches rates without giving its grid. Ours has the same rates for all algorithms of a
task; FedAdam keeps the paper's local rate and moments, and varies its server rate and τ. Every
candidate runs once, with a seed that no reported run has, for fewer rounds than those. The best
value of the metric that the paper plots decides: train loss on MovieLens and Sent140, and test AUC
on the CTR tasks, where nothing else was held out. There the choice has seen the test set, for every
algorithm alike: an AUC at searched rates is what a search can show, not what a new day would.

Without `--search`, the rates are those of searched_rates.json beside this file, which an
earlier search has written (`save_rates`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

from fedrows.measure.summary import METRICS, number
from fedrows.paper.evaluated_task import EvaluatedTask, Rates, Size
from fedrows.paper.experiment import Work
from fedrows.study import FinishedRun, Setting, Study

SEED = 1000
SERVER_RATES = (0.001, 0.01, 0.1, 1.0)
TAUS = (1e-4, 1e-3, 1e-2)
FILE = Path(__file__).with_name("searched_rates.json")


def rates(work: Work, task: EvaluatedTask) -> dict[str, Rates]:
    """The searched rates of a task, by algorithm: searched now, or as found before."""
    if searches(work, task):
        return {name: best(tried, task.metric) for name, tried in search(work, task).items()}
    return dict(_saved()[task.key]["rates"])


def origin(work: Work, task: EvaluatedTask) -> str:
    """Where those rates come from, in a sentence."""
    if not searches(work, task):
        return str(_saved()[task.key]["by"])
    size = task.size(work)
    return (
        f"Searched over {size.search_rounds} rounds with seed {SEED} by the best "
        f"{METRICS[task.metric][0]}, among rates {_listed(task.grid)}, and for FedAdam "
        f"server rates {_listed(SERVER_RATES)} and τ {_listed(TAUS)}."
    )


def searches(work: Work, task: EvaluatedTask) -> bool:
    """Whether rates are searched now; a quick look searches where it is not reduced."""
    return work.search and task.size(work).whole


def search(work: Work, task: EvaluatedTask) -> dict[str, list[tuple[Rates, FinishedRun]]]:
    """The candidates of every algorithm, each with its run."""
    size = task.size(work)
    wanted: dict[str, list[tuple[Rates, Setting]]] = {}
    for name in size.searched:
        tried = candidates(task, name)
        wanted[name] = [(rate, _setting(task, size, name, rate)) for rate in tried]
    study = Study([setting for tried in wanted.values() for _, setting in tried], [SEED])
    results = work.results(study)
    return {
        name: [(rate, results.of(setting)[0]) for rate, setting in tried]
        for name, tried in wanted.items()
    }


def candidates(task: EvaluatedTask, algorithm: str) -> list[Rates]:
    """What an algorithm is tried with."""
    if algorithm == "fedadam":
        return [{"server_lr": rate, "tau": tau} for rate, tau in product(SERVER_RATES, TAUS)]
    return [{"lr": rate} for rate in task.grid]


def best(tried: list[tuple[Rates, FinishedRun]], metric: str) -> Rates:
    """The rates whose run had the best value at any evaluation; of equals, the first."""
    higher = METRICS[metric][1]
    values = [value_of(run, metric) for _, run in tried]
    known = [value for value in values if value is not None]
    if not known:  # all diverged
        return tried[0][0]
    return tried[values.index(max(known) if higher else min(known))][0]


def at_edge(task: EvaluatedTask, given: Rates) -> bool:
    """Whether rates lie at the edge of what was tried, so that others beyond might do better."""
    tried = {"lr": task.grid, "server_lr": SERVER_RATES, "tau": TAUS}
    return any(value in (min(tried[name]), max(tried[name])) for name, value in given.items())


def value_of(run: FinishedRun, metric: str) -> float | None:
    """A run's best value; None if it never had one."""
    known = [x for x in (number(line.get(metric)) for line in run.lines) if x is not None]
    return (max if METRICS[metric][1] else min)(known, default=None)


def show(given: Rates) -> str:
    """'3', or '0.1, τ 0.001' for FedAdam's server."""
    words = {"lr": "", "server_lr": "server ", "tau": "τ "}
    return ", ".join(f"{words.get(name, name + ' ')}{value:g}" for name, value in given.items())


def _listed(values: Sequence[float]) -> str:
    return ", ".join(f"{value:g}" for value in values)


def _setting(task: EvaluatedTask, size: Size, name: str, rate: Rates) -> Setting:
    rounds = size.search_rounds
    return task.setting(size, name, rate, rounds=rounds, evaluate_every=max(1, rounds // 5))


def _saved() -> Mapping[str, Any]:
    saved: Mapping[str, Any] = json.loads(FILE.read_text(encoding="utf-8"))
    return saved
