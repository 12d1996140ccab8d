"""A task: data that can be loaded, the model that fits them, and the settings they are run with.

A file in `datasets/`, or a plug-in, adds one by defining `TASK = Task(...)`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedrows.data.federation import FederatedData
from fedrows.files.fetch import Source

Presets = Mapping[str, Any]


@dataclass(frozen=True)
class Task:
    """Data, a model and presets, under one name."""

    name: str
    summary: str  # one sentence
    options: type  # a dataclass of options, checked when it is made
    load: Callable[[Any], FederatedData]  # takes such options
    model: str  # the name or the reference of one
    plan: Presets = field(default_factory=dict)
    algorithms: Mapping[str, Presets] = field(default_factory=dict)  # its options, and the plan's
    source: Source | None = None  # None: nothing to fetch
    files: Callable[[Any], list[Path]] | None = None  # that it reads beside, given its options
    held_out: float = 0.1  # share of the training examples that a search keeps for validation
    metrics: Mapping[str, Callable[..., float]] | None = None  # given in Python with the data
