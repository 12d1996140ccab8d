"""Runs and plain numbers as the cells of a table and the curves of a figure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isfinite
from statistics import fmean, stdev
from typing import Any

import numpy as np

from fedrows.measure.summary import METRICS, number, show
from fedrows.measure.trivial_baselines import NAMES
from fedrows.report.artefact import Cell, Curve, Panel
from fedrows.study import FinishedRun

Numbers = Sequence[float] | np.ndarray
Levels = Mapping[str, Mapping[str, float]]  # baseline → metric → value


def by_round(runs: Sequence[FinishedRun], metric: str) -> dict[int, list[float | None]]:
    """The values of a metric at each evaluated round, a seed each; None without a finite one."""
    values: dict[int, list[float | None]] = {}
    for run in runs:
        for line in run.lines:
            values.setdefault(line["round"], []).append(number(line.get(metric)))
    return values


def curve(name: str, runs: Sequence[FinishedRun], metric: str) -> Curve:
    """A metric by round: the mean over seeds, with ± one sample standard deviation.

    A round in which a seed has no finite value is left out.
    """
    x, y, spread = [], [], []
    for round_, values in sorted(by_round(runs, metric).items()):
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
        for name, values in levels.items()
        if (level := number(values[metric])) is not None
    )


def ids(runs: Sequence[FinishedRun]) -> tuple[str, ...]:
    """The runs' ids."""
    return tuple(run.id for run in runs)


def metric_columns(metrics: Sequence[str]) -> list[str]:
    """The titles of two columns for each metric."""
    return [f"{which} {METRICS[m][0]}" for m in metrics for which in ("Best", "Final")]


def metric_cells(
    entry: Mapping[str, Any],
    metrics: Sequence[str],
    runs: Sequence[FinishedRun],
    best: Mapping[str, float] | None = None,
) -> list[Cell]:
    """The cells below `metric_columns`, from a summary: means over seeds with their spreads.

    best: what the paper has as the best value, by metric.
    """
    cells = []
    for metric in metrics:
        for which in ("best", "final"):
            stat = entry["metrics"][metric][which]
            paper = (best or {}).get(metric) if which == "best" else None
            text, shown = show(stat, METRICS[metric][2]), None if paper is None else f"{paper:g}"
            cells.append(Cell(text, number(stat["mean"]), shown, paper, ids(runs)))
    return cells


def level_rows(levels: Levels, metrics: Sequence[str], blank: int) -> list[tuple[Cell, ...]]:
    """The trivial baselines below `metric_columns`, with so many empty cells before them."""
    rows = []
    for name, values in levels.items():
        cells = [Cell(NAMES[name]), *[Cell("–")] * blank]
        for metric in metrics:
            known, digits = number(values[metric]), METRICS[metric][2]
            cells += [Cell("–") if known is None else Cell(f"{known:.{digits}f}", known), Cell("–")]
        rows.append(tuple(cells))
    return rows


def curves_panel(
    title: str, runs: Mapping[str, Sequence[FinishedRun]], levels: Levels, metric: str, rounds: int
) -> Panel:
    """A metric by round: a curve for each name, and the trivial baselines as levels."""
    curves = (curve(name, own, metric) for name, own in runs.items())
    return Panel(title, "round", METRICS[metric][0], (*curves, *guides(levels, metric, rounds)))


def goal(target: Mapping[str, Any]) -> str:
    """What is to be reached, as a summary has it: 'test AUC 0.6', 'train loss 0.6692 ± 0.0001'."""
    title, _, digits = METRICS[target["metric"]]
    value = target["value"]
    return f"{title} {show(target['over_seeds'], digits) if value is None else f'{value:g}'}"


def printed(text: str | None) -> float | None:
    """A number as the paper prints it; None for '1000+' and for nothing."""
    try:
        return None if text is None else float(text.replace(",", ""))
    except ValueError:
        return None


def number_cell(value: float) -> Cell:
    """A number in four digits."""
    if not isfinite(value):
        return Cell("–")
    if value == int(value) and abs(value) < 1e9:
        return Cell(f"{int(value):,}", float(value))
    if 999.95 <= abs(value) < 1e9:
        return Cell(f"{value:,.0f}", float(value))
    return Cell(f"{value:.4g}", float(value))


def verdict_cell(holds: bool) -> Cell:
    """Whether an inequality holds."""
    return Cell("holds" if holds else "fails", float(holds))


def line(name: str, x: Numbers, y: Numbers, kind: str = "line") -> Curve:
    """A curve of plain numbers."""
    return Curve(name, tuple(map(float, x)), tuple(map(float, y)), kind=kind)


def spread(name: str, x: Numbers, by_seed: Sequence[Sequence[float]]) -> Curve:
    """The mean over seeds, between the least and the greatest."""
    values = np.asarray(by_seed, dtype=np.float64)  # (seeds, points)
    parts = (values.mean(0), values.min(0), values.max(0))
    mean, low, high = (tuple(map(float, part)) for part in parts)
    return Curve(name, tuple(map(float, x)), mean, low, high)


def slope(x: Numbers, y: Numbers) -> float:
    """The exponent of the power of x that y follows: least squares on logarithms."""
    return float(np.polyfit(np.log(np.asarray(x)), np.log(np.asarray(y)), 1)[0])
