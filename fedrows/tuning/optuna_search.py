"""A search by one of Optuna's samplers: it is asked for values and told how good they were."""

from __future__ import annotations

import math
from types import ModuleType
from typing import Any

from fedrows.errors import PlanError, UnknownNameError
from fedrows.tuning.methods import Ask, Search
from fedrows.tuning.space import SearchAxis, Space

SAMPLERS = {"tpe": "TPESampler", "gp": "GPSampler", "cmaes": "CmaEsSampler", "qmc": "QMCSampler"}


def optuna_search(space: Space, rounds: int, budget: int, seed: int, sampler: str) -> Search:
    """As many whole runs as the budget has, one after another, each where the sampler says."""
    if sampler not in SAMPLERS:
        raise UnknownNameError("sampler of Optuna", sampler, SAMPLERS)
    optuna = _optuna()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        made = getattr(optuna.samplers, SAMPLERS[sampler])(seed=seed)
    except ImportError as error:
        raise PlanError(
            f"The sampler {sampler} needs the package {error.name}, which is not installed: "
            f"pip install {error.name}."
        ) from error
    study = optuna.create_study(direction="maximize", sampler=made)
    wanted = {axis.name: _distribution(axis, optuna.distributions) for axis in space.axes}
    return _asked(study, optuna, wanted, rounds, budget // rounds)


def _asked(study: Any, optuna: ModuleType, wanted: Any, rounds: int, count: int) -> Search:
    for _ in range(count):
        trial = study.ask(wanted)
        values = {name: _rounded(value) for name, value in trial.params.items()}
        [score] = yield [Ask(values, rounds)]
        if score == -math.inf:
            study.tell(trial, state=optuna.trial.TrialState.FAIL)
        else:
            study.tell(trial, score)


def _optuna() -> ModuleType:
    try:
        import optuna
    except ImportError:
        raise PlanError(
            "The method optuna needs the package optuna, which is not installed: "
            "pip install fedrows[tune]."
        ) from None
    return optuna


def _distribution(axis: SearchAxis, of: ModuleType) -> Any:
    """A range on a log scale, or one of the values."""
    if not axis.ranged:
        return of.CategoricalDistribution(axis.values)
    low, high = axis.values[0], axis.values[-1]
    kind = of.IntDistribution if axis.whole else of.FloatDistribution
    return kind(low, high, log=True)


def _rounded(value: Any) -> Any:
    return float(f"{value:.3g}") if isinstance(value, float) else value
