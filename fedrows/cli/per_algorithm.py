"""Options for one algorithm of several: `--set fedavg.lr=3`, and `--rates FILE` of `fedrows tune`.

Rates come before what is typed for all algorithms, and --set comes after it.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedrows import catalogue
from fedrows.cli.flags import Parser, TypedValues, UsageError, flag_of, values_for
from fedrows.cli.show import say
from fedrows.errors import UnknownNameError
from fedrows.options import options
from fedrows.plan import Plan
from fedrows.tuning.result import read_rates
from fedrows.tuning.space import DECIDED

FLAGS = ("set", "rates")


def add_rates(parser: Parser) -> None:
    parser.add_argument(
        "--rates",
        metavar="FILE",
        default=argparse.SUPPRESS,
        help="Take each algorithm's rates from this file, which `fedrows tune` has written; "
        "options that are typed come before it.",
    )


def add_set(parser: Parser) -> None:
    parser.add_argument(
        "--set",
        metavar="A.NAME=X",
        action="append",
        default=argparse.SUPPRESS,
        help="An option for one of the algorithms, as fedavg.lr=3; may be given again.",
    )


def rates_of(path: str | None, task: str, algorithms: Sequence[str]) -> dict[str, TypedValues]:
    """The rates of a file by algorithm, of those that are to run; some must be."""
    if path is None:
        return {}
    tuned_on, rates = read_rates(path)
    known = {catalogue.short(name): values for name, values in rates.items()} | rates
    by_algorithm = {name: dict(known[name]) for name in algorithms if name in known}
    if not by_algorithm:
        raise UsageError(
            f"--rates {path} has rates of {', '.join(rates) or 'nothing'}, but not of "
            f"{' or '.join(algorithms)}: tune those first, or leave it out."
        )
    for name, values in by_algorithm.items():
        _check_known(name, list(values), str(path))
    if tuned_on != task:
        say(f"Note: the rates in {path} were found on {tuned_on}, not on {task}.")
    if without := [name for name in algorithms if name not in by_algorithm]:
        say(f"Note: {path} has no rates of {', '.join(without)}, which keep their presets.")
    return by_algorithm


def set_of(words: Sequence[str], algorithms: Sequence[str]) -> dict[str, TypedValues]:
    by_algorithm: dict[str, TypedValues] = {}
    for word in words:
        key, equals, text = word.partition("=")
        whose, dot, name = key.strip().rpartition(".")
        if not equals or not dot or not text.strip():
            raise UsageError(f"--set {word} makes no sense: write --set fedavg.lr=3.")
        if whose not in algorithms:
            raise UnknownNameError("algorithm in this comparison", whose, algorithms)
        name = name.replace("-", "_")
        _check_known(whose, [name], f"--set {word}")
        typed = {flag_of(name).replace("-", "_"): text.strip()}
        for owner in (Plan, catalogue.algorithm(whose)):
            by_algorithm[whose] = by_algorithm.get(whose, {}) | values_for(owner, typed)[0]
    return by_algorithm


def parts_of(values: Mapping[str, Any], owner: type) -> tuple[TypedValues, TypedValues]:
    own = {item.name for item in options(owner)}
    plan = {name: value for name, value in values.items() if name not in own}
    return plan, {name: value for name, value in values.items() if name in own}


def refuse_when_resumed(typed: Mapping[str, Any], path: Path) -> None:
    """Raises a UsageError if rates are given for a run that has its own."""
    for flag in FLAGS:
        if flag in typed:
            raise UsageError(
                f"--{flag} would change the run in {path}: leave it out, or start a new run with "
                "--out."
            )


def _check_known(algorithm: str, names: Sequence[str], where: str) -> None:
    """Raises if an option is not known, or is one that all algorithms share."""
    known = [
        item.name
        for owner in (Plan, catalogue.algorithm(algorithm))
        for item in options(owner)
    ]  # fmt: skip
    for name in names:
        if name in DECIDED:
            raise UsageError(
                f"{where} would give {algorithm} a {name.replace('_', '-')} of its own, which all "
                f"runs that are compared share: use --{name.replace('_', '-')}."
            )
        if name not in known:
            raise UnknownNameError(f"option of {algorithm}", name, {*known} - {*DECIDED})
