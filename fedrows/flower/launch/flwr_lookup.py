"""Finds the parts of flwr that a patch replaces; where one is missing, says what cannot be done."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

from fedrows.flower.launch.processes import LaunchError


def module_with(name: str, attributes: Sequence[str], what: str) -> Any:
    """A module that has these attributes, or a LaunchError that says what cannot be done."""
    try:
        module = importlib.import_module(name)
    except ImportError:
        raise unexpected(name, what) from None
    for attribute in attributes:
        if not hasattr(module, attribute):
            raise unexpected(f"{name}.{attribute}", what)
    return module


def attribute_of(owner: type, name: str, what: str) -> Any:
    """An attribute of a class of flwr, or a LaunchError that says what cannot be done."""
    if not hasattr(owner, name):
        raise unexpected(f"{owner.__name__}.{name}", what)
    return getattr(owner, name)


def unexpected(name: str, what: str) -> LaunchError:
    """The error that flwr is another one than the patches are written for."""
    return LaunchError(
        f"This flwr is not built as expected ({name} is missing or different), so {what}: "
        "use flwr 1.41."
    )
