"""Runs as curves, levels and cells: what the tables and figures of the evaluation section share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean, stdev
from typing import Any

from fedrows.measure.summary import METRICS, number, show
from fedrows.measure.trivial_baselines import NAMES
from fedrows.report.artefact import Cell, Curve
from fedrows.study import FinishedRun

Levels = Mapping[str, Mapping[str, float]]  # baseline → metric → value


def curve(name: str, runs: Sequence[FinishedRun], metric: str) -> Curve:
    """A metric by round: the mean over seeds, with ± one sample standard deviation.

    A round in which a seed has no finite value is left out.
    """
    at: dict[int, list[float | None]] = {}
    for run in runs:
        for line in run.lines:
            at.setdefault(line["round"], []).append(number(line.get(metric)))
    x, y, spread = [], [], []
    for round_, values in sorted(at.items()):
        known = [value for value in values if value is not None]
        if len(known) == len(runs):
            x.append(float(round_))
            y.append(fmean(known))
            spread.append(stdev(known) if len(known) > 1 else 0.0)
    several = len(runs) > 1
    return Curve(
        name,
        tuple(x),
        tuple(y),
        tuple(m - s for m, s in zip(y, spread, strict=True)) if several else (),
        tuple(m + s for m, s in zip(y, spread, strict=True)) if several else (),
        runs=ids(runs),
    )


def guides(levels: Levels, metric: str, rounds: int) -> tuple[Curve, ...]:
    """The trivial baselines as levels, those that have no finite value left out."""
    return tuple(
        Curve(NAMES[name], (0.0, float(rounds)), (level, level), kind="guide")
        for name, its in levels.items()
        if (level := number(its[metric])) is not None
    )


def ids(runs: Sequence[FinishedRun]) -> tuple[str, ...]:
    """The runs' ids."""
    return tuple(run.id for run in runs)


def stat_cell(
    stat: Mapping[str, object], metric: str, runs: Sequence[FinishedRun], paper: float | None = None
) -> Cell:
    """A mean over seeds with its spread, from a summary, beside the paper's value."""
    text = show(dict(stat), METRICS[metric][2])
    return Cell(
        text,
        number(stat["mean"]),
        None if paper is None else f"{paper:g}",
        paper,
        ids(runs),
    )


def goal(target: Mapping[str, Any]) -> str:
    """What is to be reached, as a summary has it: 'test AUC 0.6', 'train loss 0.6692 ± 0.0001'."""
    title, _, digits = METRICS[target["metric"]]
    value = target["value"]
    return f"{title} {show(target['over_seeds'], digits) if value is None else f'{value:g}'}"


def level_cell(value: float, metric: str) -> Cell:
    """A trivial baseline's value."""
    known = number(value)
    return Cell("–") if known is None else Cell(f"{known:.{METRICS[metric][2]}f}", known)


def printed(text: str | None) -> float | None:
    """A number as the paper prints it; None for '1000+' and for nothing."""
    try:
        return None if text is None else float(text.replace(",", ""))
    except ValueError:
        return None
