"""What is searched: the values of each option, and the next one where the best lies at the edge.

lr=0.03..3        half-decades: 0.03, 0.1, 0.3, 1, 3
tau=1e-8..1e-2:4  so many values, the same factor apart
mu=0,0.01,0.1     these; words are listed in the same way: batches=draw,epoch
fedadam.tau=…     for one algorithm only
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import Field, dataclass
from typing import Any

from fedrows.errors import PlanError, UnknownNameError
from fedrows.options import kind, options
from fedrows.plan import Plan

TriedValues = dict[str, Any]  # option → value: what one trial has of its own
MOST = 1000  # values of one option
DECIDED = ("seed", "rounds", "evaluate_every", "device", "threads", "deterministic", "watch_metric")
HOW = "write NAME=LOW..HIGH, NAME=LOW..HIGH:COUNT or NAME=A,B,C"


@dataclass(frozen=True)
class SearchAxis:
    """One option and the values it is tried with, numbers in rising order."""

    name: str
    values: tuple[Any, ...]
    whole: bool = False  # whether its values are whole numbers
    ranged: bool = False  # whether everything between the first and the last may be tried
    above: float = 0.0  # what lies beyond every value that the option allows
    below: float = math.inf

    @property
    def numeric(self) -> bool:
        """Whether its values are numbers, several of them, so that there is a next one."""
        return len(self.values) > 1 and all(
            isinstance(value, int | float) and not isinstance(value, bool) for value in self.values
        )

    def beyond(self, tried: Sequence[Any], up: bool) -> Any:
        """The next value outside of those that were tried; None if there is none."""
        known = sorted({value for value in tried if value > 0})
        if not self.numeric or not known or (not up and min(tried) <= 0):
            return None
        edge, inner = (known[-1], known[-2:-1]) if up else (known[0], known[1:2])
        factor = math.sqrt(10) if not inner else max(edge / inner[0], inner[0] / edge)
        value: float = half_decade_from(edge, up)
        if inner and not math.isclose(half_decade_from(inner[0], up), edge, rel_tol=1e-6):
            value = float(f"{edge * factor if up else edge / factor:.3g}")
        if self.whole:
            value = round(value)
        return value if self.above < value < self.below and value not in tried else None


@dataclass(frozen=True)
class Space:
    """Everything that one algorithm is tried with."""

    axes: tuple[SearchAxis, ...]

    def grid(self) -> list[TriedValues]:
        """Every combination of the values."""
        names = [axis.name for axis in self.axes]
        every = itertools.product(*(axis.values for axis in self.axes))
        return [dict(zip(names, values, strict=True)) for values in every]

    def edges(self, tried: Sequence[TriedValues], best: TriedValues) -> dict[str, bool]:
        """The options whose best value is an outermost one that was tried: True for the upper."""
        numeric = [axis.name for axis in self.axes if axis.numeric]
        return edges(tried, {name: best[name] for name in numeric})

    def beyond(self, tried: Sequence[TriedValues], best: TriedValues) -> list[TriedValues]:
        """The combinations just outside of what was tried, next to the best."""
        more = []
        for name, up in self.edges(tried, best).items():
            axis = next(axis for axis in self.axes if axis.name == name)
            value = axis.beyond([values[name] for values in tried], up)
            if value is not None:
                more.append({**best, name: value})
        return more


def edges(tried: Sequence[Mapping[str, Any]], best: Mapping[str, Any]) -> dict[str, bool]:
    """The options whose best value is the largest (True) or the smallest that was tried."""
    at_edge = {}
    for name, value in best.items():
        values = [values_[name] for values_ in tried]
        if value in (min(values), max(values)):
            at_edge[name] = value == max(values)
    return at_edge


def half_decade_from(value: float, up: bool) -> float:
    """The next of 1, 3, 10, 30, …; from any other value, the one that is √10 times as far."""
    power = math.floor(math.log10(value) + 1e-9)
    lead = value / 10.0**power
    for number, three in ((1, 0), (3, 1)):
        if math.isclose(lead, number, rel_tol=1e-6):
            steps = 2 * power + three + (1 if up else -1)
            return float(f"{3 if steps % 2 else 1}e{steps // 2}")
    return float(f"{value * math.sqrt(10) ** (1 if up else -1):.3g}")


def half_decades(low: float, high: float) -> list[float]:
    """Values from low to high in half-decades, both ends included."""
    values = [low]
    while (value := half_decade_from(values[-1], up=True)) < high * (1 + 1e-6):
        values.append(value)
    return values if math.isclose(values[-1], high, rel_tol=1e-6) else [*values, high]


def spaces(
    algorithms: Mapping[str, type], search: Mapping[str, str | Sequence[Any]]
) -> dict[str, Space]:
    """The space of each algorithm: what was asked for that it has, or else its usual rates.

    algorithms: their classes by name. search: values by option, or by ALGORITHM.OPTION.
    """
    by_algorithm = {}
    asked = [(*_split(key, algorithms), key) for key in search]
    for name, of in algorithms.items():
        own = {item.name: (of, item) for item in options(of)}
        known = {item.name: (Plan, item) for item in options(Plan)} | own
        axes: dict[str, SearchAxis] = {}
        for whose, option, key in sorted(asked, key=lambda asked_for: asked_for[0] is not None):
            if (whose is None and option in known) or whose == name:
                axes[option] = axis_of(key, search[key], *known[option])
        by_algorithm[name] = Space(tuple(axes.values() or _usual(own, known)))
    return by_algorithm


def axis_of(key: str, given: str | Sequence[Any], owner: type, item: Field[Any]) -> SearchAxis:
    """The values of one option, as they were written, or as a list."""
    plain, _ = kind(owner, item)
    values, ranged = _values(key, given, owner, item)
    if len(set(values)) < len(values):
        twice = next(value for value in values if values.count(value) > 1)
        raise PlanError(f"{key} is to be tried with {twice!r} twice: name each value once.")
    numbers = plain in (int, float) and all(isinstance(value, int | float) for value in values)
    least, most = item.metadata["least"], item.metadata["most"]
    return SearchAxis(
        item.name,
        tuple(sorted(values) if numbers else values),
        plain is int,
        ranged,
        0.0 if least is None else least * (1 - 1e-9),
        math.inf if most is None else most * (1 + 1e-9),
    )


def _usual(own: Mapping[str, Any], known: Mapping[str, Any]) -> Iterator[SearchAxis]:
    """The rates that an algorithm has of its own; the clients' rate if it has none."""
    names = [name for name, (_, item) in own.items() if item.metadata["search"]] or ["lr"]
    for name in names:
        owner, item = known[name]
        yield axis_of(name, item.metadata["search"], owner, item)


def _split(key: str, algorithms: Mapping[str, type]) -> tuple[str | None, str]:
    """The algorithm that values are for, None for all, and the option; both must exist."""
    whose, dot, name = key.rpartition(".")
    name = name.replace("-", "_")
    if dot and whose not in algorithms:
        raise UnknownNameError("algorithm to tune", whose, algorithms)
    classes = [algorithms[whose]] if dot else list(algorithms.values())
    known = [item.name for owner in (Plan, *classes) for item in options(owner)]
    if name in DECIDED:
        raise PlanError(
            f"{name} cannot be searched: it is the same in all trials; give it to the whole search."
        )
    if name not in known:
        what = f"option of {whose}" if dot else "option of " + " or ".join(algorithms)
        raise UnknownNameError(what, name, {*known} - {*DECIDED})
    return whose or None, name


def _values(
    key: str, given: str | Sequence[Any], owner: type, item: Field[Any]
) -> tuple[list[Any], bool]:
    """The values, and whether they are a range."""
    plain, _ = kind(owner, item)
    if not isinstance(given, str):
        if not isinstance(given, Sequence) or not given:
            raise PlanError(f"The values of {key} are {given!r}: give a list, or text; {HOW}.")
        return list(given), False
    low, dots, rest = given.partition("..")
    if not dots:
        words = [word.strip() for word in given.split(",")]
        if not all(words):
            raise PlanError(f"{key}={given} leaves a value out: {HOW}.")
        return [_value(key, word, owner, item) for word in words], False
    if plain not in (int, float):
        raise PlanError(f"{key}={given} is a range, but {key} is no number: {HOW}.")
    high, colon, count = rest.partition(":")
    first, last = _number(key, low), _number(key, high)
    if not 0 < first < last < math.inf:
        why = "does not rise" if first >= last else "does not start above 0, as a log scale must"
        raise PlanError(f"{key}={given} is a range that {why}: {HOW}.")
    if colon and not (count.strip().isdecimal() and 2 <= int(count) <= MOST):
        raise PlanError(f"{key}={given} has {count!r} values, but must have 2 to {MOST}: {HOW}.")
    values = _spaced(first, last, int(count)) if colon else half_decades(first, last)
    return (sorted({round(value) for value in values}) if plain is int else values), True


def _spaced(low: float, high: float, count: int) -> list[float]:
    """So many values from low to high, the same factor apart."""
    step = (high / low) ** (1 / (count - 1))
    return [low, *(float(f"{low * step**i:.3g}") for i in range(1, count - 1)), high]


def _number(key: str, word: str) -> float:
    try:
        number = float(word)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise PlanError(f"{key} has {word!r}, which is no number: {HOW}.")
    return number


def _value(key: str, word: str, owner: type, item: Field[Any]) -> Any:
    """One word of a list in the option's own type."""
    plain, optional = kind(owner, item)
    if optional and word.lower() == "none":
        return None
    if word in item.metadata["words"]:
        return word
    if plain is bool:
        known = {"true": True, "yes": True, "false": False, "no": False}
        if word.lower() not in known:
            raise PlanError(f"{key} has {word!r}, but must be true or false.")
        return known[word.lower()]
    if plain is str:
        return word
    number = _number(key, word)
    return int(number) if plain is int and number == int(number) else number
