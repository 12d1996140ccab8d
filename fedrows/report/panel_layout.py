"""What of a panel can be drawn, and where: the points of its curves, and its two axes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from fedrows.report.artefact import Curve, Panel
from fedrows.report.axes import (
    BOTTOM,
    HEIGHT,
    LEFT,
    RIGHT,
    WIDTH,
    Axis,
    Point,
    linear_axis,
    log_axis,
)
from fedrows.report.line_styles import level

TOP, TITLED_TOP = 14, 30  # pixels above the chart: there is room for the title of the y axis
PAD = 0.06  # share of an axis that stays free at its ends
LARGEST = 1e300  # beyond it the sums of an axis may overflow

Pieces = list[list[Point]]


@dataclass(frozen=True)
class PanelLayout:
    """A panel laid out: value → pixel along both axes, and the pieces of each curve."""

    x: Axis
    y: Axis
    curves: Sequence[tuple[Curve, Pieces]]
    top: int  # pixel at which the y axis ends

    def at(self, point: Point) -> tuple[float, float]:
        """The point's pixel."""
        return self.x.place(point.x), self.y.place(point.y)


def lay_out(panel: Panel) -> PanelLayout:
    """The axes that hold every point of the panel, its bands and guides."""
    curves = [(curve, pieces(curve, panel)) for curve in (level(c, panel) for c in panel.curves)]
    points = [p for _, parts in curves for piece in parts for p in piece]
    # what only goes right may begin and end at the frame
    pad = 0.0 if all(rises(parts) for _, parts in curves) else PAD
    whole = whole_numbers(panel)
    x = _axis([p.x for p in points], LEFT, WIDTH - RIGHT, pad, log=panel.log_x, whole=whole)
    if panel.labels:
        x = _named_axis(panel.labels)
    top = TITLED_TOP if panel.y else TOP
    reach = [v for p in points for v in (p.low, p.y, p.high)]
    return PanelLayout(x, _axis(reach, HEIGHT - BOTTOM, top, PAD, log=panel.log_y), curves, top)


def whole_numbers(panel: Panel) -> bool:
    """Whether every x is a whole number: then there is nothing at round 1.5."""
    places = [x for curve in panel.curves for x in curve.x if x is not None]
    return bool(places) and all(float(x).is_integer() for x in places)


def rises(pieces: Pieces) -> bool:
    """Whether x never goes back inside a piece."""
    return all(a.x <= b.x for piece in pieces for a, b in pairwise(piece))


def pieces(curve: Curve, panel: Panel) -> Pieces:
    """The points that can be drawn, in pieces: a NaN, or zero on a log axis, parts a line."""
    parts: Pieces = [[]]
    bands = len(curve.low) == len(curve.high) == len(curve.y)
    lows, highs = (curve.low, curve.high) if bands else (curve.y, curve.y)
    for values in zip(curve.x, curve.y, lows, highs, strict=False):
        x, y, low, high = (math.nan if v is None else float(v) for v in values)
        if not (_fits(x, log=panel.log_x) and _fits(y, log=panel.log_y)):
            parts.append([])
            continue
        low, high = (v if _fits(v, log=panel.log_y) else y for v in (low, high))
        parts[-1].append(Point(x, y, low, high))
    return [piece for piece in parts if piece]


def left_out(panel: Panel) -> int:
    """How many numbers of a panel have no place on its logarithmic axes."""
    return sum(
        1
        for curve in panel.curves
        for x, y in zip(curve.x, curve.y, strict=False)
        if (panel.log_x and x is not None and x <= 0) or (panel.log_y and y is not None and y <= 0)
    )


def _fits(value: float, *, log: bool) -> bool:
    return abs(value) < LARGEST and (value > 0 or not log)


def _named_axis(labels: Sequence[str]) -> Axis:
    """Names side by side, at most seven of them shown."""
    step = (WIDTH - LEFT - RIGHT) / len(labels)
    every = math.ceil(len(labels) / 7)
    shown = [(float(i), label) for i, label in enumerate(labels) if i % every == 0]
    return Axis(lambda v: LEFT + step * (v + 0.5), shown)


def _axis(
    values: Sequence[float],
    start: float,
    end: float,
    pad: float,
    *,
    log: bool,
    whole: bool = False,
) -> Axis:
    if not values:
        values = (1.0, 10.0) if log else (0.0, 1.0)
    if log:
        return log_axis(values, start, end)
    return linear_axis(values, start, end, pad, whole=whole)
