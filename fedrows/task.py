"""A task: data that can be loaded, the model that fits them, and the settings they are run with.

One file in `datasets/` adds one, by defining `TASK = Task(...)`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from fedrows import catalogue
from fedrows.data.federation import FederatedData
from fedrows.errors import PlanError
from fedrows.files.fetch import Source
from fedrows.options import options
from fedrows.plan import Plan

Presets = Mapping[str, Any]


@dataclass(frozen=True)
class Task:
    """Data, a model and presets, under one name."""

    name: str
    summary: str  # one sentence
    options: type  # a dataclass of options, checked when it is made
    load: Callable[[Any], FederatedData]  # takes such options
    model: str  # a name in models/
    plan: Presets = field(default_factory=dict)
    algorithms: Mapping[str, Presets] = field(default_factory=dict)  # its options, and the plan's
    source: Source | None = None  # None: nothing to fetch


def presets(task: Task, algorithm: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """What a task presets for one algorithm: of the plan, and of the algorithm's own options.

    What the task says for the algorithm comes before what it says for all of them.
    """
    own_names = {item.name for item in options(catalogue.algorithm(algorithm))}
    plan, own = dict(task.plan), dict[str, Any]()
    for name, value in task.algorithms.get(algorithm, {}).items():
        (own if name in own_names else plan)[name] = value
    known = {item.name for item in options(Plan)}
    if strange := sorted(plan.keys() - known):
        raise PlanError(
            f"Task {task.name} presets {strange[0]!r} for {algorithm}, "
            "which is an option of neither the plan nor the algorithm."
        )
    return plan, own
