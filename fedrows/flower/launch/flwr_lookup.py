"""Finds the parts of flwr that a patch replaces; where one is missing, says what cannot be done."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from operator import attrgetter
from typing import Any

from fedrows.flower.launch.processes import LaunchError


def module_with(name: str, attributes: Sequence[str], what: str) -> Any:
    """A module that has these attributes, or a LaunchError that says what cannot be done.

    An attribute of a class of the module is named with its class: `Class.method`.
    """
    try:
        module = importlib.import_module(name)
    except ImportError:
        raise unexpected(name, what) from None
    for attribute in attributes:
        try:
            attrgetter(attribute)(module)
        except AttributeError:
            raise unexpected(f"{name}.{attribute}", what) from None
    return module


def unexpected(name: str, what: str) -> LaunchError:
    """The error that flwr is another one than the patches are written for."""
    return LaunchError(
        f"This flwr is not built as expected ({name} is missing or different), so {what}: "
        "use flwr 1.41."
    )
