"""Ways to search, as generators without I/O: they yield what to try and are sent how good it was.

    grid      every combination, each for all rounds
    random    combinations drawn at random, each for all rounds
    halving   successive halving (Jamieson and Talwalkar, AISTATS 2016): all combinations for few
              rounds, the best of them for eta times as many, and so on up to all rounds
    optuna    one of Optuna's samplers is asked for values and told how good they were

Grids and halving follow a best value at the edge of what was tried, while the budget lasts.
"""

from __future__ import annotations

import math
import random as randomness
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from fedrows.errors import PlanError, UnknownNameError
from fedrows.tuning.space import SearchAxis, Space, TriedValues

EXTENSIONS = 3  # how often one search goes beyond an edge
GAIN = 1e-3  # of the score: what a value beyond an edge must be better by to go on from there
FULL_RUNS = 10  # for each algorithm by default, in searches whose space has no size
SAMPLERS = {"tpe": "TPESampler", "gp": "GPSampler", "cmaes": "CmaEsSampler", "qmc": "QMCSampler"}


@dataclass(frozen=True)
class Ask:
    """One trial to make: what it is tried with, and for how many rounds."""

    values: TriedValues
    rounds: int


Search = Generator[list[Ask], list[float], None]  # sent back: scores, higher is better


def grid(space: Space, rounds: int, budget: int) -> Search:
    """Every combination for all rounds, and what lies beyond an edge."""
    wanted = space.grid()
    asks = [Ask(values, rounds) for values in wanted]
    scores = dict(enumerate((yield asks)))
    yield from _follow_edges(
        space, asks, scores, list(wanted), rounds, budget - len(asks) * rounds, EXTENSIONS
    )


def random(space: Space, rounds: int, budget: int, seed: int) -> Search:
    """As many combinations as the budget has runs; numbers of a range are drawn on a log scale."""
    draw = randomness.Random(seed)
    some: list[TriedValues] = []
    for _ in range(100 * (budget // rounds)):  # a small space may have fewer
        values = {axis.name: drawn(axis, draw) for axis in space.axes}
        if values not in some:
            some.append(values)
        if len(some) == budget // rounds:
            break
    yield [Ask(values, rounds) for values in some]


def drawn(axis: SearchAxis, draw: randomness.Random) -> object:
    """A value of an axis, at random."""
    if not axis.ranged:
        return draw.choice(axis.values)
    low, high = math.log(axis.values[0]), math.log(axis.values[-1])
    value = math.exp(draw.uniform(low, high))
    return round(value) if axis.whole else float(f"{value:.3g}")


def halving(space: Space, rounds: int, budget: int, eta: int, seed: int) -> Search:
    """All combinations for few rounds, then fewer of them for more, up to one for all rounds."""
    wanted = space.grid()
    while cost(len(wanted), rounds, eta) > budget and len(wanted) > 1:
        wanted.pop(randomness.Random(seed + len(wanted)).randrange(len(wanted)))
    steps = schedule(len(wanted), rounds, eta)
    left, extensions = budget, EXTENSIONS
    tried = list(wanted)
    for number, (count, length) in enumerate(steps):
        asks = [Ask(values, length) for values in wanted[:count]]
        scores = dict(enumerate((yield asks)))
        left -= count * length
        reserve = sum(many * long for many, long in steps[number + 1 :])
        spent, used = yield from _follow_edges(
            space, asks, scores, tried, length, left - reserve, extensions
        )
        left, extensions = left - spent, extensions - used
        order = sorted(range(len(asks)), key=lambda i: -scores[i])  # of equals, the first
        wanted = [asks[i].values for i in order]


def schedule(count: int, rounds: int, eta: int) -> list[tuple[int, int]]:
    """The steps of halving: how many combinations, and for how many rounds each.

    A step keeps one of eta, and lasts eta times as long as the one before; the last keeps one. Of
    steps of the same length, which very short runs come to, there is only the first.
    """
    counts = [count]
    while counts[-1] > 1:
        counts.append(max(1, counts[-1] // eta))
    lengths = [max(1, math.ceil(rounds / eta**number)) for number in range(len(counts))]
    steps = dict[int, int]()
    for many, length in zip(counts, reversed(lengths), strict=True):
        steps.setdefault(length, many)
    return [(many, length) for length, many in steps.items()]


def cost(count: int, rounds: int, eta: int) -> int:
    """How many rounds halving needs for so many combinations, without any beyond an edge."""
    return sum(many * length for many, length in schedule(count, rounds, eta))


def _follow_edges(
    space: Space,
    asks: list[Ask],
    scores: dict[int, float],
    tried: list[TriedValues],
    rounds: int,
    left: int,
    extensions: int,
) -> Generator[list[Ask], list[float], tuple[int, int]]:
    """Tries what lies beyond a best at an edge; returns the rounds it took and how often it did.

    asks, scores and tried get what was tried.
    """
    spent = used = 0
    while used < extensions:
        best = max(scores, key=lambda i: scores[i])
        if scores[best] == -math.inf:
            break
        more = space.beyond(tried, asks[best].values)
        more = more[: max(0, (left - spent) // rounds)]
        if not more:
            break
        new = [Ask(values, rounds) for values in more]
        new_scores = yield new
        scores.update(enumerate(new_scores, start=len(scores)))
        asks += new
        tried += more
        spent, used = spent + len(new) * rounds, used + 1
        if max(new_scores) <= scores[best] + GAIN * abs(scores[best]):
            break
    return spent, used


def check_budget(method: str, sizes: Sequence[int], rounds: int, budget: int) -> None:
    """Raises a PlanError if a budget has not one run, or less than a grid needs."""
    if method == "grid" and max(sizes) * rounds > budget >= rounds:
        raise PlanError(
            f"The budget is {budget} rounds for each algorithm, but {max(sizes)} combinations for "
            f"{rounds} rounds need {max(sizes) * rounds}: allow more, or choose another method."
        )
    if budget < rounds:
        raise PlanError(
            f"The budget is {budget} rounds for each algorithm, but a run has {rounds}: allow at "
            "least so many, or make runs shorter with rounds."
        )


def usual_budget(method: str, sizes: Sequence[int], rounds: int, eta: int) -> int:
    """Rounds for each algorithm, the same for all: what the largest space needs, and some more."""
    if method == "halving":
        return max(cost(size, rounds, eta) for size in sizes) + rounds
    if method == "grid":
        return (max(sizes) + EXTENSIONS) * rounds
    return FULL_RUNS * rounds


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
