"""Whether a plug-in is what it is named as: of its kind, whole, and with options that make flags.

`what` is how an error names the plug-in, and `wanted` what it must be.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Collection
from dataclasses import Field, fields, is_dataclass
from pathlib import Path
from typing import Any

from fedrows.errors import PluginError
from fedrows.files.plugins import file_of


def check_is(right: bool, plugin: Any, wanted: str, what: str, file: str) -> None:
    """Raises a PluginError unless an object is right."""
    if not right:
        raise PluginError(f"{what} ({file}) is {kind_of(plugin)}, but {wanted}.")


def check_class(plugin: Any, parent: type, wanted: str, what: str, file: str) -> None:
    """Raises a PluginError unless an object is a class derived from a parent, with all methods."""
    right = isinstance(plugin, type) and issubclass(plugin, parent)
    check_is(right, plugin, wanted, what, file)
    if inspect.isabstract(plugin):
        missing = ", ".join(sorted(plugin.__abstractmethods__))
        raise PluginError(f"{what} ({source_of(plugin)}) has no {missing}: define the method.")


def check_options(owner: type, parent: type, taken: Collection[str], what: str) -> None:
    """Raises a PluginError if an option of a class would have no flag of its own."""
    inherited = {item.name for item in fields(parent)} if is_dataclass(parent) else set[str]()
    announced = [name for name, value in vars(owner).items() if isinstance(value, Field)]
    if not is_dataclass(owner) or announced:
        raise PluginError(
            f"{what} has options in {owner.__name__}, which is no dataclass: write "
            "@dataclass(frozen=True) before the class."
        )
    for item in fields(owner):
        if item.name in inherited:
            continue
        if "help" not in item.metadata:
            raise PluginError(
                f"{what} has a field {item.name} that is no option: give it the value "
                "fedrows.options.option(default, help)."
            )
        if item.name in taken:
            raise PluginError(
                f"{what} has an option {item.name}, which is the name of one of the plan: "
                "give it another."
            )


def source_of(thing: Any, file: Path | None = None) -> str:
    """The file that something is defined in, or else its module."""
    module = sys.modules.get(getattr(thing, "__module__", ""))
    return str(file or (file_of(module) if module else "of an unknown file"))


def kind_of(thing: Any) -> str:
    """What something is, with its article: the class A, of type int."""
    word = f"class {thing.__name__}" if isinstance(thing, type) else type(thing).__name__
    return f"the {word}" if isinstance(thing, type) else f"of type {word}"
