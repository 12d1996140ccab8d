"""The axes of a chart, and what of a panel can be drawn where: from values to pixels."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from markupsafe import Markup

from fedrows.report.artefact import Curve, Panel
from fedrows.report.line_styles import level

WIDTH, HEIGHT = 480, 300
LEFT, RIGHT, BOTTOM = 50, 14, 40
TOP, TITLED_TOP = 14, 30  # pixels above the chart: there is room for the title of the y axis
PAD = 0.06  # share of an axis that stays free at its ends
LARGEST = 1e300  # beyond it the sums of an axis may overflow


@dataclass(frozen=True)
class Point:
    """One mean over seeds, with the smallest and the largest seed's value."""

    x: float
    y: float
    low: float
    high: float


@dataclass(frozen=True)
class Axis:
    """A scale: data value → pixel, with its ticks."""

    place: Callable[[float], float]
    ticks: Sequence[tuple[float, str]]


def nice_ticks(low: float, high: float, most: int = 6) -> list[float]:
    """Round numbers (1, 2 or 5 times a power of ten apart) inside [low, high]."""
    if not high > low:
        return [low]
    raw = (high - low) / most
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(m * power for m in (1, 2, 5, 10) if m * power >= raw * (1 - 1e-9))
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [i * step for i in range(first, last + 1)]


def tick_label(value: float, step: float) -> str:
    """The tick as text, with the digits its step needs and no more."""
    if value == 0:
        return "0"
    if abs(value) >= 1e5 or abs(value) < 1e-3:
        exponent = math.floor(math.log10(abs(value)) + 1e-9)
        mantissa = f"{value / 10**exponent:.3g}"
        power = "10" + str(exponent).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))
        return power if mantissa == "1" else f"{mantissa}·{power}"
    digits = max(0, -math.floor(math.log10(step) + 1e-9)) if step > 0 else 3
    return f"{value:,.{digits}f}"


def linear_axis(
    values: Sequence[float], start: float, end: float, pad: float = 0.06, *, whole: bool = False
) -> Axis:
    """A linear scale. whole: ticks at whole numbers only, as for rounds."""
    low, high = min(values), max(values)
    room = (high - low) * pad if high > low else (abs(high) * 0.1 or 1.0)
    low, high = low - room, high + room
    ticks = nice_ticks(low, high)
    if whole:
        ticks = [t for t in ticks if t == round(t)] or [values[0]]
    step = ticks[1] - ticks[0] if len(ticks) > 1 else abs(ticks[0])
    return Axis(
        lambda v: start + (v - low) / (high - low) * (end - start),
        [(t, tick_label(t, step)) for t in ticks],
    )


def log_axis(values: Sequence[float], start: float, end: float) -> Axis:
    low, high = math.log10(min(values)), math.log10(max(values))
    room = 0.04 * (high - low) or 0.3
    low, high = low - room, high + room
    decades = range(math.ceil(low), math.floor(high) + 1)
    every = math.ceil(len(decades) / 6) if len(decades) else 1
    if high - low < 0.9:
        ticks = nice_ticks(10**low, 10**high, most=4)
        steps = [ticks[1] - ticks[0] if len(ticks) > 1 else ticks[0]] * len(ticks)
    else:
        leads = (1,) if high - low > 2.2 else (1, 2, 5)
        every_lead = [
            lead * 10.0**d for d in range(math.floor(low), decades.stop) for lead in leads
        ]
        ticks = [t for t in every_lead if low <= math.log10(t) <= high]
        ticks = [t for t in ticks if math.floor(math.log10(t) + 1e-9) % every == 0]
        steps = ticks
    return Axis(
        lambda v: start + (math.log10(v) - low) / (high - low) * (end - start),
        [(t, tick_label(t, step)) for t, step in zip(ticks, steps, strict=True)],
    )


def frame(x: Axis, y: Axis, x_title: str, *, grid_x: bool = True) -> Markup:
    """The grid, the ticks and the title of the x axis."""
    floor = HEIGHT - BOTTOM
    parts = []
    for value, label in y.ticks:
        at = coordinate(y.place(value))
        parts.append(
            Markup(
                '<path class="grid" d="M{} {}H{}"/><text class="tick y" x="{}" y="{}">{}</text>'
            ).format(LEFT, at, WIDTH - RIGHT, LEFT - 8, at, label)
        )
    for value, label in x.ticks:
        at = coordinate(x.place(value))
        if grid_x:
            parts.append(Markup('<path class="mark" d="M{} {}v4"/>').format(at, floor))
        parts.append(
            Markup('<text class="tick x" x="{}" y="{}">{}</text>').format(at, floor + 17, label)
        )
    parts.append(Markup('<path class="axis" d="M{} {}H{}"/>').format(LEFT, floor, WIDTH - RIGHT))
    parts.append(
        Markup('<text class="axis-title end" x="{}" y="{}">{}</text>').format(
            WIDTH - RIGHT, HEIGHT - 6, x_title
        )
    )
    return Markup("").join(parts)


def path_through(at: Sequence[tuple[float, float]]) -> str:
    return "M" + "L".join(f"{coordinate(px)} {coordinate(py)}" for px, py in at)


def coordinate(value: float) -> str:
    """A coordinate, as short as a tenth of a pixel allows."""
    return f"{value:.1f}".removesuffix(".0")


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
