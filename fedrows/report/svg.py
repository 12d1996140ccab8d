"""A panel of a figure as SVG: lines with bands, dots, guides; linear or logarithmic axes.

One `path.curve` is drawn for each curve. `data-axes` tells `page.js` how a number becomes a pixel,
so that what it shows at the pointer comes from the figure's data and not from this drawing.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence

from markupsafe import Markup

from fedrows.report.artefact import Panel
from fedrows.report.chart import (
    BOTTOM,
    HEIGHT,
    MARKS,
    WIDTH,
    Axis,
    Point,
    coordinate,
    frame,
    path_through,
)
from fedrows.report.labels import labels
from fedrows.report.layout import TOP, Pieces, lay_out, rises

NEAREST = 1.7  # pixels: what is drawn closer together only makes the page heavy
MANY_CURVES = 250  # on a page; with more, each is drawn with fewer points
MANY_DOTS = 150  # more are drawn small


def spacing(curves: int) -> float:
    """How far apart points are drawn on a page with so many curves, to keep it light."""
    return NEAREST * max(1.0, curves / MANY_CURVES)


def panel_chart(
    panel: Panel, keys: Mapping[str, int], styles: Mapping[str, str], near: float = NEAREST
) -> Markup:
    """The drawing; `keys` are the places of the curves in the figure's legend.

    Points of a line that are less than `near` pixels apart are drawn as one.
    """
    shape = lay_out(panel)
    x, y = shape.x, shape.y
    parts = [
        Markup('<text class="axis-title" x="2" y="12">{}</text>').format(panel.y),
        frame(x, y, panel.x),
    ]
    for curve, found in shape.curves:
        style = styles[curve.name]
        dots = curve.kind == "dots"
        inner = _dots(found, x, y, style) if dots else _line(found, x, y, style, near)
        parts.append(
            Markup('<g class="series {}" data-k="{}">{}</g>').format(style, keys[curve.name], inner)
        )
    for label in labels(shape):
        text = Markup('<text class="guide-label{}" x="{}" y="{}">{}</text>').format(
            " end" if label.right else "",
            coordinate(label.x + (-3 if label.right else 3)),
            coordinate(label.y + (-4 if label.above else 13)),
            label.name,
        )
        parts.append(Markup('<g class="series" data-k="{}">{}</g>').format(keys[label.name], text))
    names = ", ".join(curve.name for curve in panel.curves)
    return Markup(
        '<svg class="chart" viewBox="0 0 {w} {h}" role="img" tabindex="0" aria-label="{title}: '
        '{y} by {x}" data-axes="{axes}"><desc>{names}</desc>{body}'
        '<g class="cursor" data-top="{top}" data-floor="{floor}"></g></svg>'
    ).format(
        w=WIDTH,
        h=HEIGHT,
        title=panel.title or panel.y,
        x=panel.x,
        y=panel.y,
        axes=json.dumps([_rule(x, log=panel.log_x), _rule(y, log=panel.log_y)]),
        names=names,
        body=Markup("").join(parts),
        top=TOP,
        floor=HEIGHT - BOTTOM,
    )


def _rule(axis: Axis, *, log: bool) -> list[float]:
    """pixel = a + b · value, of the value's logarithm if the third is 1."""
    values = [value for value, _ in axis.ticks] or [1.0]
    first, last = (values[0], values[-1]) if len(values) > 1 else (values[0], values[0] * 2 or 1.0)
    at: Callable[[float], float] = math.log10 if log else float
    slope = (axis.place(last) - axis.place(first)) / (at(last) - at(first))
    return [axis.place(first) - slope * at(first), slope, int(log)]


def _line(found: Pieces, x: Axis, y: Axis, style: str, near: float) -> Markup:
    rising = rises(found)
    thin = [_thin(piece, x, y, near, rising=rising) for piece in found]
    bands = [piece for piece in thin if any(p.high > p.low for p in piece)]
    band = Markup("").join(
        Markup('<path class="band" d="{}Z"/>').format(
            path_through(
                [(x.place(p.x), y.place(p.high)) for p in piece]
                + [(x.place(p.x), y.place(p.low)) for p in reversed(piece)]
            )
        )
        for piece in bands
    )
    line = "".join(path_through([(x.place(p.x), y.place(p.y)) for p in piece]) for piece in thin)
    alone = [(x.place(p.x), y.place(p.y)) for piece in thin if len(piece) == 1 for p in piece]
    marks = Markup('<path class="dot" d="{}"/>').format(_marks(alone, style)) if alone else ""
    return Markup('{}<path class="curve line" d="{}"/>{}').format(band, line, marks)


def _dots(found: Pieces, x: Axis, y: Axis, style: str) -> Markup:
    points = [p for piece in found for p in piece]
    at = {(round(2 * x.place(p.x)) / 2, round(2 * y.place(p.y)) / 2): p for p in points}
    whiskers = "".join(
        f"M{coordinate(px)} {coordinate(y.place(p.low))}V{coordinate(y.place(p.high))}"
        for (px, _), p in at.items()
        if p.high > p.low
    )
    many = " many" if len(at) > MANY_DOTS else ""
    return Markup('{}<path class="curve dot{}" d="{}"/>').format(
        Markup('<path class="whisker" d="{}"/>').format(whiskers) if whiskers else "",
        many,
        _marks([*at], style if not many else ""),
    )


def _marks(at: Sequence[tuple[float, float]], style: str) -> str:
    """A mark at each place, by style; small ones without."""
    number = int(style[1:]) if style[1:].isdigit() else 0
    shape = MARKS[number % len(MARKS)] if style else "h0"  # a line of no length with round ends
    return "".join(f"M{coordinate(px)} {coordinate(py)}{shape}" for px, py in at)


def _thin(piece: Sequence[Point], x: Axis, y: Axis, near: float, *, rising: bool) -> list[Point]:
    """The points that are some way from the one before; the last is always among them."""
    kept = [piece[0]]
    for p in piece[1:]:
        far = abs(x.place(p.x) - x.place(kept[-1].x)) >= near
        if far or (not rising and abs(y.place(p.y) - y.place(kept[-1].y)) >= near):
            kept.append(p)
    if kept[-1] is not piece[-1]:
        kept.append(piece[-1])
    return kept
