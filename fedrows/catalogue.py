"""Algorithms, models and tasks by name: each is a file in a folder, found without registration."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING

from fedrows.errors import UnknownNameError

if TYPE_CHECKING:  # nothing is imported until it is asked for
    from fedrows.algorithm import Algorithm
    from fedrows.data.federation import FederatedData
    from fedrows.model import Model
    from fedrows.task import Task

DEFAULT = "fedsubavg"  # the algorithm that runs unless another is named, and reports are about
BASELINE = "fedavg"  # the algorithm whose rounds a speed-up is counted in
REFERENCE = "centralsgd"  # the algorithm on pooled data whose best is the target of the others
FOLDERS = {"algorithm": "algorithms", "model": "models", "task": "datasets"}


def names(kind: str) -> list[str]:
    """The names of everything of a kind (algorithm, model or task), sorted; imports none of it."""
    if kind not in FOLDERS:
        raise UnknownNameError("kind of thing", kind, FOLDERS)
    folder = importlib.import_module(f"fedrows.{FOLDERS[kind]}")
    found = (module.name for module in pkgutil.iter_modules(folder.__path__))
    return sorted(name for name in found if not name.startswith("_"))


def algorithm(name: str) -> type[Algorithm]:
    """The algorithm's class: the one in its file that is called like it, but for capitals."""
    module = _module("algorithm", name)
    for word, value in vars(module).items():
        if word.lower() == name and isinstance(value, type):
            return value
    raise TypeError(f"{module.__name__} defines no class whose name in lower case is {name!r}.")


def title(name: str) -> str:
    """The algorithm's name as people write it; a name that is not known here stays as it is."""
    return algorithm(name).shown() if name in names("algorithm") else name


def colours() -> dict[str, int]:
    """Name → the colour in reports, of all algorithms that have one of their own."""
    known = {name: algorithm(name).colour for name in names("algorithm")}
    return {name: colour for name, colour in known.items() if colour is not None}


def summable() -> list[str]:
    """The algorithms that need no more than the sum of the updates."""
    return [name for name in names("algorithm") if algorithm(name).summable]


def model(name: str) -> Callable[[FederatedData, int], Model]:
    """The function that builds the model for some data, its start values drawn with a seed."""
    build: Callable[[FederatedData, int], Model] = _module("model", name).build
    return build


def task(name: str) -> Task:
    """The task of a data set."""
    found: Task = _module("task", name).TASK
    return found


def _module(kind: str, name: str) -> ModuleType:
    """The file behind a name."""
    known = names(kind)
    if name not in known:
        raise UnknownNameError(kind, name, known)
    return importlib.import_module(f"fedrows.{FOLDERS[kind]}.{name}")
