"""The numbers of a study as a tidy frame: a row per setting, seed and evaluated round."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from typing import Any

from fedrows.errors import UnknownNameError
from fedrows.study.finished import FinishedRun, StudyError

PACKAGES = ("polars", "pandas")


def frame(runs: Sequence[FinishedRun], package: str) -> Any:
    """The frame; what a setting gives beside its presets is a column too."""
    return frame_of(columns(runs), package)


def frame_of(columns: Mapping[str, list[Any]], package: str) -> Any:
    """Columns as a frame of a package."""
    if package not in PACKAGES:
        raise UnknownNameError("package for frames", package, PACKAGES)
    try:
        made = importlib.import_module(package)
    except ImportError:
        raise StudyError(
            f"A frame of {package} needs {package}, which is not installed: pip install {package}."
        ) from None
    return made.DataFrame(columns)


def columns(runs: Sequence[FinishedRun]) -> dict[str, list[Any]]:
    """The same as plain lists; None where a run has no such number."""
    given = dict.fromkeys(key for run in runs for key in _given(run))
    rows = [
        {
            "run": run.id,
            "task": run.setting.task,
            "label": run.setting.label,
            **dict.fromkeys(given),
            **_given(run),
            **{key: value for key, value in line.items() if not isinstance(value, dict | list)},
        }
        for run in runs
        for line in run.lines
    ]
    order = ["run", "task", "algorithm", "label", *given, "seed", "round"]
    names = dict.fromkeys([*order, *(key for row in rows for key in row)])
    return {name: [row.get(name) for row in rows] for name in names}


def _given(run: FinishedRun) -> dict[str, Any]:
    setting = run.setting
    data = {f"data_{key}": value for key, value in setting.data.items()}
    model = {f"model_{key}": value for key, value in setting.model.items()}
    return {**data, **model, **setting.options, **setting.plan}
