"""A search in one call: `fedrows.tune`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import nn

from fedrows import catalogue
from fedrows.algorithm import Algorithm
from fedrows.data.federation import FederatedData
from fedrows.errors import PlanError
from fedrows.measure.own_metrics import OwnMetrics
from fedrows.model import Loss, Model
from fedrows.options import options as options_of
from fedrows.plan import Plan
from fedrows.runs.own_task import GivenAlgorithm, OwnTask, algorithm_of
from fedrows.runs.settings import Settings, check_known, presets
from fedrows.study import Say
from fedrows.tuning.page import write
from fedrows.tuning.result import Tuned
from fedrows.tuning.space import spaces
from fedrows.tuning.trials import ModuleRun, TaskRun, Tunable
from fedrows.tuning.tuner import ETA, SEED, Tuner


def tune(
    data: str | FederatedData,
    module: nn.Module | Model | None = None,
    algorithms: GivenAlgorithm | Sequence[GivenAlgorithm] = catalogue.DEFAULT,
    *,
    search: Mapping[str, str | Sequence[Any]] | None = None,
    method: str = "halving",
    by: str = "",
    budget: int | None = None,
    trials: int | None = None,
    eta: int = ETA,
    seed: int = SEED,
    sampler: str = "tpe",
    confirm: Sequence[int] = (),
    out: str | Path | None = None,
    workers: int | None = None,
    executor: Executor | None = None,
    device: str = "auto",
    say: Say | None = None,
    options: Mapping[str, Any] | None = None,
    embeddings: Mapping[str, str | Sequence[str]] | None = None,
    dense: Sequence[str] = (),
    personal: Sequence[str] = (),
    one_by_one: bool = False,
    loss: Loss | None = None,
    metrics: OwnMetrics | None = None,
    **plan: Any,
) -> Tuned:
    """Searches rates and options on validation examples; test examples have no say.

    data: federated data with validation examples, together with a module; or the name of a task.
    search: values by option, such as {"lr": "0.03..3", "fedadam.tau": [1e-8, 1e-4]}; without it,
    each algorithm's usual rates. method: halving, grid, random, or optuna with a sampler of its.
    by: the metric of validation examples that decides. budget: rounds for each algorithm; trials:
    the same, counted in whole runs. confirm: seeds with which the chosen values are trained and
    tested in the end. out: a folder for trials, rates and page, in which a search that was stopped
    goes on. options: the task's own. workers, executor: who makes the trials. embeddings, dense,
    personal, one_by_one, loss and metrics are those of `simulate`. The rest is the plan's.
    """
    listed = [algorithms] if isinstance(algorithms, str | type | Algorithm) else list(algorithms)
    made: list[Tunable]
    if isinstance(data, str):
        made = [_task_run(data, algorithm, options or {}, plan) for algorithm in listed]
    else:
        own = OwnTask(data, module, embeddings, dense, personal, one_by_one, loss, metrics)  # type: ignore[arg-type]  # it says what is wrong with None
        made = [_own_run(own, algorithm_of(algorithm), plan) for algorithm in listed]
    runs = {run.algorithm.name: run for run in made}
    tuner = Tuner(
        data if isinstance(data, str) else data.name,
        runs,
        spaces({name: type(run.algorithm) for name, run in runs.items()}, search or {}),
        method,
        by,
        rounds_of(budget, trials, runs),
        eta,
        seed,
        sampler,
        None if out is None else Path(out),
        executor,
        workers,
        device,
        say,
    )
    tuned = tuner.run()
    if confirm:
        tuned = tuner.confirm(tuned, list(confirm))
    if out is not None:
        tuned.save(out)
        write(tuned, Path(out))
    return tuned


def rounds_of(
    budget: int | None, trials: int | None, runs: Mapping[str, Tunable]
) -> int | None:  # fmt: skip
    """The budget in rounds, which may be given in whole runs."""
    if budget is not None and trials is not None:
        raise PlanError("budget and trials say the same thing in two ways: give one of them.")
    if trials is None:
        return budget
    if trials < 1:
        raise PlanError(f"trials is {trials}, but must be at least 1.")
    return trials * next(iter(runs.values())).plan.rounds


def with_validation(settings: Settings, given: Mapping[str, Any]) -> Settings:
    """The same, with validation examples held out if the task can and nobody said how many."""
    names = {item.name for item in options_of(type(settings.options))}
    if "validation" not in names or "validation" in given or settings.options.validation:
        return settings
    share = settings.task.held_out
    return replace(settings, options=replace(settings.options, validation=share))


def _task_run(
    task: str, algorithm: GivenAlgorithm, options: Mapping[str, Any], plan: Mapping[str, Any]
) -> TaskRun:
    chosen = catalogue.task(task)
    if not isinstance(algorithm, str):
        raise PlanError("With a task's name, algorithms are named as well: such as 'fedavg'.")
    check_known(f"option of task {task}", options, chosen.options)
    check_known("option of the plan", plan, Plan)
    of = catalogue.algorithm(algorithm)
    preset, own = presets(chosen, of().name)
    settings = Settings(chosen, chosen.options(**options), of(**own), Plan(**{**preset, **plan}))
    return TaskRun(with_validation(settings, options).config())


def _own_run(own: OwnTask, algorithm: Algorithm, plan: Mapping[str, Any]) -> ModuleRun:
    check_known("option of the plan", plan, Plan)
    made = Plan(**{"clients_per_round": min(50, own.data.clients), **plan})
    algorithm.check_plan(made)
    return ModuleRun(own, algorithm, made)
