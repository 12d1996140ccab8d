"""Learning rates by search: each algorithm's best of a grid, and FedAdam's server rate and τ.

The paper searches rates without giving its grid. Ours has the same rates for all algorithms of a
task; FedAdam keeps the paper's local rate and moments, and varies its server rate and τ. Every
candidate runs once, with a seed that no reported run has, for fewer rounds than those, on training
data from which a tenth is held out for validation. The best value on the validation examples
decides: of the loss where the paper's target is a train loss, and of the AUC on the CTR tasks. The
test set chooses nothing. The runs that are reported train on all training data.

Where the best of a grid lies at its edge, the next value beyond is tried, a few times. What is at
the edge of all that was tried even then is marked.

Without `--search`, the rates are those of searched_rates.json beside this file, which an
earlier search has written (`benchmarks/save_rates.py`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, product
from math import floor, log10
from pathlib import Path

from fedrows.measure.metric_choice import about, best_value, chooses
from fedrows.paper.evaluated_task import EvaluatedTask, Rates, Size
from fedrows.paper.experiment import Work
from fedrows.study import FinishedRun, Setting, Study

SEED = 1000
HELD_OUT = 0.1  # of the training examples, for validation
SERVER_RATES = (0.001, 0.01, 0.1, 1.0)
TAUS = (1e-4, 1e-3, 1e-2)
EXTENSIONS = 3  # how many times a grid grows at its edge
FILE = Path(__file__).with_name("searched_rates.json")

Tried = list[tuple[Rates, FinishedRun]]


@dataclass(frozen=True)
class SearchedRates:
    """What a search has found for a task; as searched_rates.json has it."""

    by: str  # where the rates come from, in a sentence
    chosen_on: str  # what has chosen the rates, in words, such as: validation loss
    at_edge: Sequence[str]  # whose rates lie at the edge of what was tried: others might do better
    rates: Mapping[str, Rates]  # by algorithm


def searched(work: Work, task: EvaluatedTask) -> SearchedRates:
    """The rates of a task: searched now, or as found before."""
    if not searches(work, task):
        return SearchedRates(**json.loads(FILE.read_text(encoding="utf-8"))[task.key])
    every, chosen_on = search(work, task), about(choice(task))[0]
    rates = {name: best(tried, choice(task)) for name, tried in every.items()}
    by = (
        f"Searched over {task.size(work).search_rounds} rounds with seed {SEED} by the best "
        f"{chosen_on} on {HELD_OUT:.0%} of the training examples, which were held "
        f"out, among rates {_listed(task.grid)}, and for FedAdam server rates "
        f"{_listed(SERVER_RATES)} and τ {_listed(TAUS)}; a best at the edge of its grid was "
        f"followed up to {EXTENSIONS} steps beyond."
    )
    at_edge = [name for name, tried in every.items() if edges(tried, rates[name])]
    return SearchedRates(by, chosen_on, at_edge, rates)


def choice(task: EvaluatedTask) -> str:
    """The validation metric that decides."""
    return "validation_loss" if task.metric == "train_loss" else chooses(task.metric)


def searches(work: Work, task: EvaluatedTask) -> bool:
    """Whether rates are searched now; a quick look searches where it is not reduced."""
    return work.search and task.size(work).whole


def search(work: Work, task: EvaluatedTask) -> dict[str, Tried]:
    """The candidates of every algorithm, each with its run."""
    size = task.size(work)
    by_algorithm: dict[str, Tried] = {name: [] for name in size.searched}
    wanted = {name: candidates(task, name) for name in size.searched}
    for _ in range(1 + EXTENSIONS):
        settings = {
            name: [_setting(task, size, name, rate) for rate in some]
            for name, some in wanted.items()
        }
        results = work.results(Study(list(chain(*settings.values())), [SEED]))
        for name, some in wanted.items():
            runs = (results.of(setting)[0] for setting in settings[name])
            by_algorithm[name] += zip(some, runs, strict=True)
        beyond_all = {name: beyond(tried, choice(task)) for name, tried in by_algorithm.items()}
        wanted = {name: some for name, some in beyond_all.items() if some}
        if not wanted:
            break
    return by_algorithm


def candidates(task: EvaluatedTask, algorithm: str) -> list[Rates]:
    """What an algorithm is tried with at first."""
    if algorithm == "fedadam":
        return [{"server_lr": rate, "tau": tau} for rate, tau in product(SERVER_RATES, TAUS)]
    return [{"lr": rate} for rate in task.grid]


def beyond(tried: Tried, metric: str) -> list[Rates]:
    """The candidates just outside of what was tried, next to the best; none if it lies inside."""
    best_rates = best(tried, metric)
    return [
        {**best_rates, name: _next(best_rates[name], up=up, fine=name == "lr")}
        for name, up in edges(tried, best_rates).items()
    ]


def edges(tried: Tried, rates: Rates) -> dict[str, bool]:
    """The rates that lie at the edge of what was tried: True for the upper edge."""
    at_edge = {}
    for name, value in rates.items():
        values = [rate[name] for rate, _ in tried]
        if value in (min(values), max(values)):
            at_edge[name] = value == max(values)
    return at_edge


def best(tried: Tried, metric: str) -> Rates:
    """The rates whose run had the best value at any evaluation; of equals, the first."""
    higher = about(metric)[1]
    values = [best_value(run.lines, metric) for _, run in tried]
    known = [value for value in values if value is not None]
    if not known:  # all diverged
        return tried[0][0]
    return tried[values.index(max(known) if higher else min(known))][0]


def show(rates: Rates) -> str:
    """'3', or '0.1, τ 0.001' for FedAdam's server."""
    words = {"lr": "", "server_lr": "server ", "tau": "τ "}
    return ", ".join(f"{words.get(name, name + ' ')}{value:g}" for name, value in rates.items())


def _next(value: float, up: bool, fine: bool) -> float:
    """The next value of 1, 3, 10, 30, …, or of 1, 10, 100, … if not fine."""
    power = floor(log10(value) + 1e-9)
    is_three = value / 10**power > 2
    half_steps = 2 * power + is_three + (1 if up else -1) * (1 if fine else 2)
    return float(f"{(3 if half_steps % 2 else 1)}e{half_steps // 2}")


def _listed(values: Sequence[float]) -> str:
    return ", ".join(f"{value:g}" for value in values)


def _setting(task: EvaluatedTask, size: Size, name: str, rate: Rates) -> Setting:
    rounds = size.search_rounds
    every = max(1, rounds // 5)
    return task.setting(
        size, name, rate, {"validation": HELD_OUT}, rounds=rounds, evaluate_every=every
    )
