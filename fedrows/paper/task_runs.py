"""The runs behind Table 2 and Table 3 of one task, and what they come to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from fedrows import catalogue
from fedrows.measure.summary import METRICS, number, summarise
from fedrows.measure.trivial_baselines import baselines
from fedrows.paper import rates_search
from fedrows.paper.cells import by_round
from fedrows.paper.evaluated_task import ALL, EvaluatedTask, Rates
from fedrows.paper.experiment import Work
from fedrows.runs.settings import presets
from fedrows.study import FinishedRun, Setting, Study


@dataclass(frozen=True)
class RunGroup:
    """Runs side by side: by algorithm, or by K; and what each of them came to."""

    runs: dict[str, list[FinishedRun]]
    entries: dict[str, dict[str, Any]]  # by name, as `fedrows.measure.summary` has them
    target: dict[str, Any]
    rates: dict[str, Rates]
    at_edge: frozenset[str] = frozenset()  # those whose rates lie at the edge of what was tried

    def first(self, name: str) -> float | None:
        """The mean of rounds to the target; None unless every seed got there."""
        stat = self.entries[name]["rounds_to_target"]
        return None if None in stat["values"] else number(stat["mean"])

    def best(self, name: str, metric: str) -> float | None:
        """The best value, mean over seeds."""
        return number(self.entries[name]["metrics"][metric]["best"]["mean"])

    def rounds(self, name: str) -> int:
        """How many rounds its runs have."""
        return int(self.entries[name]["rounds"])

    def behind(self, name: str, others: Sequence[str], metric: str) -> dict[int, list[str]]:
        """For every evaluated round, those of the others that it is not better than.

        Means over seeds are compared; who has no finite value is behind.
        """
        sign = 1 if METRICS[metric][1] else -1
        means = {other: _means(self.runs[other], metric) for other in others}
        return {
            at: [
                other
                for other, values in means.items()
                if own is None or ((it := values.get(at)) is not None and sign * own <= sign * it)
            ]
            for at, own in _means(self.runs[name], metric).items()
        }


def compare(work: Work, task: EvaluatedTask) -> dict[str, RunGroup]:
    """All algorithms of a task at the paper's rates, and at searched rates."""
    size = task.size(work)
    preset = {name: _preset(task, name) for name in ALL}
    runs = _made(work, {name: task.setting(size, name) for name in preset}, size.seeds)
    paper = _block(task, runs, preset)
    searched = rates_search.searched(work, task)
    rates = {name: searched.rates[name] for name in size.searched if name in searched.rates}
    settings = {name: task.setting(size, name, own) for name, own in rates.items()}
    runs = _made(work, settings, size.searched_seeds or size.seeds)
    edge = frozenset(searched.at_edge)
    return {"paper": paper, "searched": replace(_block(task, runs, rates), at_edge=edge)}


def sweep(work: Work, task: EvaluatedTask) -> RunGroup:
    """FedSubAvg with K varied, and CentralSGD with the default K, whose loss may be the target."""
    size = task.size(work)
    settings = {
        f"K = {k}": task.setting(size, "fedsubavg", clients_per_round=k) for k in size.sweep
    }
    settings["centralsgd"] = task.setting(size, "centralsgd")
    runs = _made(work, settings, size.seeds)
    return _block(task, runs, {})


def trivial(work: Work, task: EvaluatedTask) -> dict[str, dict[str, float]]:
    """The trivial baselines on the task's data, measured as its runs are."""
    return baselines(work.load(task.key), task.size(work).plan.get("train_sample", 10_000))


def _made(
    work: Work, settings: dict[str, Setting], seeds: Sequence[int]
) -> dict[str, list[FinishedRun]]:
    results = work.results(Study(list(settings.values()), seeds))
    return {name: results.of(setting) for name, setting in settings.items()}


def _block(
    task: EvaluatedTask, runs: dict[str, list[FinishedRun]], rates: dict[str, Rates]
) -> RunGroup:
    lines = [
        {**line, "algorithm": name, "seed": run.seed}
        for name, some in runs.items()
        for run in some
        for line in run.lines
    ]
    summary = summarise(lines, task.target)
    return RunGroup(
        runs, {entry["name"]: entry for entry in summary["algorithms"]}, summary["target"], rates
    )


def _preset(task: EvaluatedTask, name: str) -> Rates:
    """The rates that a task presets: the local one, and FedAdam's server rate and τ."""
    plan, own = presets(catalogue.task(task.key), name)
    if name != "fedadam":
        return {"lr": plan["lr"]}
    algorithm = catalogue.algorithm(name)(**own)
    return {key: getattr(algorithm, key) for key in ("server_lr", "tau")}


def _means(runs: Sequence[FinishedRun], metric: str) -> dict[int, float | None]:
    """The mean over seeds of a metric at each evaluated round; None if a seed has no value."""
    return {
        round_: None if None in values else sum(v for v in values if v is not None) / len(values)
        for round_, values in by_round(runs, metric).items()
    }
