"""Numbers of the theory as cells of a table: four digits, and whether an inequality holds."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite

import numpy as np

from fedrows.report.artefact import Cell, Curve

Numbers = Sequence[float] | np.ndarray


def number(value: float) -> Cell:
    """A number in four digits."""
    if not isfinite(value):
        return Cell("–")
    if value == int(value) and abs(value) < 1e9:
        return Cell(f"{int(value):,}", float(value))
    if 999.95 <= abs(value) < 1e9:
        return Cell(f"{value:,.0f}", float(value))
    return Cell(f"{value:.4g}", float(value))


def verdict(holds: bool) -> Cell:
    """Whether an inequality holds."""
    return Cell("holds" if holds else "fails", float(holds))


def line(name: str, x: Numbers, y: Numbers, kind: str = "line") -> Curve:
    """A curve of plain numbers."""
    return Curve(name, tuple(map(float, x)), tuple(map(float, y)), kind=kind)


def spread(name: str, x: Numbers, by_seed: Sequence[Sequence[float]]) -> Curve:
    """The mean over seeds, between the least and the greatest."""
    found = np.asarray(by_seed, dtype=np.float64)  # (seeds, points)
    parts = (found.mean(0), found.min(0), found.max(0))
    mean, low, high = (tuple(map(float, part)) for part in parts)
    return Curve(name, tuple(map(float, x)), mean, low, high)


def slope(x: Numbers, y: Numbers) -> float:
    """The exponent of the power of x that y follows: least squares on logarithms."""
    return float(np.polyfit(np.log(np.asarray(x)), np.log(np.asarray(y)), 1)[0])
