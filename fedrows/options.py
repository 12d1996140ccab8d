"""Options: dataclass fields with a line of help and the values they may take.

A plan, an algorithm and a task are dataclasses of such fields, and so are the options of a model.
The command line makes its flags from them, and each instance checks itself when it is made.
"""

from __future__ import annotations

import inspect
import math
import types
from collections.abc import Callable, Iterator, Sequence
from dataclasses import MISSING, Field, dataclass, field, fields
from functools import cache, wraps
from numbers import Integral, Real
from typing import Any, ParamSpec, TypeVar, Union, get_args, get_origin, get_type_hints

from fedrows.errors import PlanError, UnknownKeywordError

Build = TypeVar("Build", bound=Callable[..., Any])
OWNERS = ("self", "cls")
_Given = ParamSpec("_Given")
Returned = TypeVar("Returned")


def option(
    default: Any,
    help: str,
    *,
    above: float | None = None,
    least: float | None = None,
    most: float | None = None,
    choices: Sequence[str] | None = None,
    words: Sequence[str] = (),
    search: str = "",
) -> Any:
    """A dataclass field with its help and its domain: > above, ≥ least, ≤ most, one of choices.

    words: texts that an option of numbers may have in place of a number. search: of a rate, the
    values that `fedrows tune` tries at first (see `tuning.space`).
    """
    domain = {"above": above, "least": least, "most": most, "choices": choices, "words": words}
    return field(default=default, metadata={"help": help, "search": search, **domain})


def takes(of: type) -> Callable[[Build], Build]:
    """Says that a function which builds a model takes these options, each by its name."""

    def marked(build: Build) -> Build:
        build.options = of  # type: ignore[attr-defined]
        return build

    return marked


def keywords(call: Callable[..., Any]) -> list[str]:
    """The names that a function takes its arguments by."""
    loose = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    parameters = inspect.signature(call).parameters.values()
    return [item.name for item in parameters if item.kind not in loose and item.name not in OWNERS]


def known_keywords(call: Callable[_Given, Returned]) -> Callable[_Given, Returned]:
    """The function, which names the nearest keyword when it is given one that it does not have."""
    known = keywords(call)

    @wraps(call)
    def checked(*positional: _Given.args, **named: _Given.kwargs) -> Returned:
        for name in named:
            if name not in known:
                shown = call.__qualname__.removesuffix(".__init__").rpartition(".")[2]
                raise UnknownKeywordError(shown, name, known)
        return call(*positional, **named)

    return checked


@dataclass(frozen=True)
class NoOptions:
    """The options of whatever has none."""


def kind(of: type, item: Field[Any]) -> tuple[type, bool]:
    """An option's plain type, and whether it may be None."""
    hint = _hints(of)[item.name]
    if get_origin(hint) in (Union, types.UnionType):
        plain = next(part for part in get_args(hint) if part is not type(None))
        return plain, True
    return hint, False


@cache
def _hints(of: type) -> dict[str, Any]:
    """The types of a class's fields, worked out once."""
    return get_type_hints(of)


def options(of: type) -> Iterator[Field[Any]]:
    """The fields of a dataclass that are options."""
    return (item for item in fields(of) if "help" in item.metadata)


def default(item: Field[Any]) -> Any:
    """What an option is when nobody says otherwise."""
    return None if item.default is MISSING else item.default


def check(owner: Any, prefix: str = "") -> None:
    """Raises a PlanError that names the first option of `owner` whose value cannot be right.

    prefix: what stands before the options' names on the command line.
    """
    for item in options(type(owner)):
        value = getattr(owner, item.name)
        wanted = _complaint(value, *kind(type(owner), item), item.metadata)
        if wanted:
            flag = prefix + item.name.replace("_", "-")
            raise PlanError(f"{flag} is {value!r}, but must be {wanted}.")


def _complaint(value: Any, plain: type, optional: bool, domain: Any) -> str | None:
    """What the value should have been, or None when it is right."""
    if value is None:
        return None if optional else f"given as {_words(plain)}"
    if domain["words"] and value in domain["words"]:
        return None
    if plain is bool or plain is str:
        if not isinstance(value, plain):
            return _words(plain)
    elif isinstance(value, bool) or not isinstance(value, Integral if plain is int else Real):
        return " or ".join([_words(plain), *domain["words"]])
    elif not math.isfinite(value):
        return "a finite number"
    above, least, most, choices = (domain[k] for k in ("above", "least", "most", "choices"))
    if above is not None and value <= above:
        return f"above {above}"
    if least is not None and value < least:
        return f"at least {least}"
    if most is not None and value > most:
        return f"at most {most}"
    if choices is not None and value not in choices:
        return f"one of {', '.join(choices)}"
    return None


def _words(plain: type) -> str:
    return {int: "a whole number", float: "a number", bool: "true or false", str: "text"}[plain]
