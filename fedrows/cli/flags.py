"""Flags, made from the options of dataclasses. Errors in what was typed are one line.

A flag's value stays text until it is known whose option it is: two tasks may have an option of
the same name. A task's option that is called like one of the plan or of an algorithm gets `data-`
in front: --seed is the run's, --data-seed the data's. An option of a task's model gets `model-` if
it is called like any of these. Options of a privacy mechanism have `dp-`.
"""

from __future__ import annotations

import argparse
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import Field
from typing import Any, NoReturn

from fedrows.errors import FedrowsError, PlanError, UnknownNameError
from fedrows.options import default, kind, options

TypedValues = dict[str, Any]  # option name → value
DATA = "data-"  # before an option of a task that is called like another's
MODEL = "model-"  # the same before an option of a model
HELP = ("-h", "--help")
METAVARS = {int: "N", float: "X", str: "TEXT"}


class UsageError(FedrowsError):
    """Words on the command line that make no sense together."""


class Parser(argparse.ArgumentParser):
    """An argument parser that raises a UsageError where argparse prints its usage and exits."""

    def __init__(self, command: str, description: str) -> None:
        super().__init__(
            f"fedrows {command}",
            description=description,
            allow_abbrev=False,
            exit_on_error=False,
            formatter_class=_Help,
        )

    def parse(self, words: Sequence[str]) -> dict[str, Any]:
        """What was typed, by name; a call for help is answered, and ends the command."""
        if asks_for_help(words):
            self.print_help()
            raise SystemExit(0)
        for word in words:
            if word == "--":
                break
            flag = word.split("=")[0]
            if flag.startswith("-") and not _is_number(word) and flag not in self.flags:
                raise UnknownNameError("option", flag, self.flags)
        try:
            typed, rest = self.parse_known_args(words)
        except argparse.ArgumentError as error:
            raise UsageError(_sentence(error)) from None
        if rest:
            raise UsageError(f"{rest[0]!r} is one word too many: see {self.prog} --help.")
        return vars(typed)

    @property
    def flags(self) -> list[str]:
        return list(self._option_string_actions)

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message[:1].upper()}{message[1:]}: see {self.prog} --help.")


class _Help(argparse.HelpFormatter):
    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=30)

    def add_usage(self, usage: Any, actions: Any, groups: Any, prefix: Any = None) -> None:
        """The usage in one line: sixty optional flags tell nobody anything."""
        words = [self._format_args(a, a.dest) for a in actions if not a.option_strings]
        short = " ".join(["%(prog)s", *words, "[options]"])
        super().add_usage(short, actions, groups, prefix)


def add_options(
    parser: argparse.ArgumentParser,
    title: str,
    owners: Iterable[type],
    presets: Mapping[str, Any],
    prefixed: Collection[str] = (),
    without: Collection[str] = (),
    prefix: str = DATA,
) -> None:
    """A group of flags for the options of some dataclasses, those of one name in one flag.

    presets: defaults that come before the dataclasses' own, as shown in the help.
    """
    group = parser.add_argument_group(title)
    by_name: dict[str, list[tuple[type, Field[Any]]]] = {}
    for owner in owners:
        for item in (item for item in options(owner) if item.name not in without):
            by_name.setdefault(item.name, []).append((owner, item))
    for name, items in by_name.items():
        flag = flag_of(name, prefixed, prefix)
        if f"--{flag}" in parser._option_string_actions:
            continue  # another task's option of the same name
        owner, item = items[0]
        plain, _ = kind(owner, item)
        helps = list(dict.fromkeys(_help(o, i, presets) for o, i in items))
        more: dict[str, Any] = {"action": argparse.BooleanOptionalAction}
        if plain is not bool:
            choices = item.metadata["choices"]
            more = {"metavar": "|".join(choices) if choices else METAVARS[plain]}
        group.add_argument(
            f"--{flag}",
            dest=flag.replace("-", "_"),
            default=argparse.SUPPRESS,
            help=" / ".join(helps).replace("%", "%%"),
            **more,
        )


def asks_for_help(words: Sequence[str]) -> bool:
    return any(word in HELP for word in words)


def comma_list(text: str | None) -> list[str]:
    return [word.strip() for word in (text or "").split(",") if word.strip()]


def whole_number(flag: str, typed: str, least: int = 1, most: int | None = None) -> int:
    if not typed.isdecimal() or int(typed) < least or (most is not None and int(typed) > most):
        domain = f"of at least {least}" if most is None else f"from {least} to {most}"
        raise UsageError(f"{flag} is {typed!r}, but must be a whole number {domain}.")
    return int(typed)


def whole_number_or_none(
    flag: str, typed: str | None, least: int = 1, most: int | None = None
) -> int | None:
    return None if typed is None else whole_number(flag, typed, least, most)


def flag_of(name: str, prefixed: Collection[str] = (), prefix: str = DATA) -> str:
    """The flag of an option, without its dashes in front."""
    return (prefix if name in prefixed else "") + name.replace("_", "-")


def values_for(
    owner: type, typed: Mapping[str, Any], prefixed: Collection[str] = (), prefix: str = DATA
) -> tuple[TypedValues, dict[str, Any]]:
    """What was typed for one dataclass, by its own names, and the rest."""
    values, left = {}, dict(typed)
    for item in options(owner):
        flag = flag_of(item.name, prefixed, prefix)
        key = flag.replace("-", "_")
        if key in left:
            values[item.name] = _value(owner, item, left.pop(key), flag)
    return values, left


def _value(owner: type, item: Field[Any], typed: Any, flag: str) -> Any:
    """What was typed as the option's own type; `none` for an option that may be left open."""
    plain, optional = kind(owner, item)
    if not isinstance(typed, str) or plain is str:
        return typed
    if optional and typed.lower() == "none":
        return None
    if typed in item.metadata["words"]:
        return typed
    try:
        return plain(typed)
    except ValueError:
        wanted = "a whole number" if plain is int else "a number"
        raise PlanError(f"{flag} is {typed!r}, but must be {wanted}.") from None


def _help(owner: type, item: Field[Any], presets: Mapping[str, Any]) -> str:
    usual = presets.get(item.name, default(item))
    if kind(owner, item)[0] is bool:
        usual = "yes" if usual else "no"
    return f"{item.metadata['help']} (default: {'none' if usual is None else usual})"


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True


def _sentence(error: argparse.ArgumentError) -> str:
    name = (error.argument_name or "The command line").split("/")[0]  # of --lazy/--no-lazy
    if error.message.startswith("expected"):
        return f"{name} needs a value."
    if error.message.startswith("ignored explicit argument"):
        return f"{name} takes no value."
    return f"{name}: {error.message}."
