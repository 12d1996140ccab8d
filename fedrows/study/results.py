"""What the runs of a study came to: the best of them, a tidy frame, and a page."""

from __future__ import annotations

import importlib
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedrows.errors import PlanError, UnknownNameError
from fedrows.measure.metric_choice import VALIDATION, about, best_value, measured
from fedrows.study.finished import FinishedRun, StudyError
from fedrows.study.page import write
from fedrows.study.setting import Setting

PACKAGES = ("polars", "pandas")


@dataclass(frozen=True)
class Results:
    """The finished runs of a study, setting by setting, seed by seed."""

    runs: list[FinishedRun]

    def __repr__(self) -> str:
        names = ", ".join(dict.fromkeys(run.setting.name for run in self.runs))
        return f"Results({len(self.runs)} runs: {names})"

    def _repr_html_(self) -> str:
        """A table and the curves, for notebooks."""
        return shown_view(repr(self), self.runs)

    def of(self, setting: Setting) -> list[FinishedRun]:
        """The runs of a setting, by seed."""
        return list({run.id: run for run in self.runs if run.setting == setting}.values())

    def __iter__(self) -> Iterator[FinishedRun]:
        return iter(self.runs)

    def chosen(self, metric: str = "validation_loss") -> dict[str, Setting]:
        """Each algorithm's best setting by a metric of validation examples, mean over seeds."""
        return chosen(self.runs, metric)

    def frame(self, package: str = "polars") -> Any:
        """A row per setting, seed and evaluated round, in polars or pandas."""
        return frame_of(columns(self.runs), package)

    def page(self, path: str | Path, title: str = "A study") -> Path:
        """Writes index.html, results.md, figures and data into a folder; gives the page's path."""
        return write(self.runs, Path(path), title)


def shown_view(title: str, runs: Sequence[FinishedRun]) -> str:
    """Runs as a notebook shows them, each setting as a curve of its own."""
    from fedrows.report.view import view

    lines = [{**line, "algorithm": run.setting.name} for run in runs for line in run.lines]
    return view(title, lines)


def chosen(runs: Sequence[FinishedRun], metric: str) -> dict[str, Setting]:
    """Each algorithm's best setting: by its runs' best values of a metric, mean over seeds.

    A setting with a run that has no value, because it diverged, is never chosen; of equals the
    first is.
    """
    if not metric.startswith(f"{VALIDATION}_"):
        raise PlanError(
            f"Settings cannot be chosen by {metric!r}, which is not measured on validation "
            f"examples: name a metric such as {VALIDATION}_loss."
        )
    if metric not in measured(line for run in runs for line in run.lines):
        raise PlanError(
            f"No run has a value of {metric!r}: hold validation examples out, as in "
            'data={"validation": 0.1}, or name another metric.'
        )
    sign = 1 if about(metric)[1] else -1
    best: dict[str, tuple[float, Setting]] = {}
    for setting in dict.fromkeys(run.setting for run in runs):
        values = [best_value(run.lines, metric) for run in runs if run.setting == setting]
        known = [value for value in values if value is not None]
        if len(known) < len(values):
            continue
        value = sign * statistics.fmean(known)
        if setting.algorithm not in best or value > best[setting.algorithm][0]:
            best[setting.algorithm] = value, setting
    return {name: setting for name, (_, setting) in best.items()}


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
    own_names = dict.fromkeys(key for run in runs for key in _given(run))
    rows = [
        {
            "run": run.id,
            "task": run.setting.task,
            "label": run.setting.label,
            **dict.fromkeys(own_names),
            **_given(run),
            **{key: value for key, value in line.items() if not isinstance(value, dict | list)},
        }
        for run in runs
        for line in run.lines
    ]
    order = ["run", "task", "algorithm", "label", *own_names, "seed", "round"]
    names = dict.fromkeys([*order, *(key for row in rows for key in row)])
    return {name: [row.get(name) for row in rows] for name in names}


def _given(run: FinishedRun) -> dict[str, Any]:
    setting = run.setting
    data = {f"data_{key}": value for key, value in setting.data.items()}
    model = {f"model_{key}": value for key, value in setting.model.items()}
    return {**data, **model, **setting.options, **setting.plan}
