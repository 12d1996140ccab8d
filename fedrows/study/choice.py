"""The best of several settings: chosen on validation examples, and on nothing else."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from fedrows.errors import PlanError
from fedrows.measure.metric_choice import VALIDATION, about, best_value, measured
from fedrows.study.finished import FinishedRun
from fedrows.study.setting import Setting


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
