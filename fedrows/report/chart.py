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
from fedrows.report.axes import (
    BOTTOM,
    HEIGHT,
    LEFT,
    RIGHT,
    WIDTH,
    Axis,
    PanelLayout,
    Pieces,
    Point,
    coordinate,
    frame,
    lay_out,
    path_through,
    rises,
)
from fedrows.report.labels import labels

NEAREST = 1.7  # pixels: what is drawn closer together only makes the page heavy
MANY_CURVES = 250  # on a page; with more, each is drawn with fewer points
MANY_DOTS = 150  # more are drawn small
MARKS = (
    "m-3.5 0a3.5 3.5 0 1 0 7 0a3.5 3.5 0 1 0-7 0z",
    "m-3.1-3.1h6.2v6.2h-6.2z",
    "m0-4.5l4 4.5l-4 4.5l-4-4.5z",
    "m0-4.2l4 7h-8z",
)


def spacing(curves: int) -> float:
    """How far apart points are drawn on a page with so many curves, to keep it light."""
    return NEAREST * max(1.0, curves / MANY_CURVES)


def panel_chart(
    panel: Panel, keys: Mapping[str, int], styles: Mapping[str, str], near: float = NEAREST
) -> Markup:
    """The drawing; `keys` are the places of the curves in the figure's legend.

    Points of a line that are less than `near` pixels apart are drawn as one.
    """
    layout = lay_out(panel)
    x, y = layout.x, layout.y
    title = Markup('<text class="axis-title" x="2" y="12">{}</text>').format(panel.y)
    parts = [title if panel.y else Markup(""), frame(x, y, panel.x, grid_x=not panel.labels)]
    shifts = _shifts(layout, panel)
    for curve, pieces in layout.curves:
        style = styles[curve.name]
        if curve.kind in ("dots", "joined"):
            inner = _dots(pieces, x, y, style, shifts.get(curve.name))
        else:
            inner = _line(pieces, x, y, style, near)
        parts.append(
            Markup('<g class="series {}" data-k="{}">{}</g>').format(style, keys[curve.name], inner)
        )
    for label in labels(layout):
        text = Markup('<text class="guide-label{}" x="{}" y="{}">{}</text>').format(
            " end" if label.right else "",
            coordinate(label.x + (-3 if label.right else 3)),
            coordinate(label.y + (-4 if label.above else 13)),
            label.name,
        )
        parts.append(Markup('<g class="series" data-k="{}">{}</g>').format(keys[label.name], text))
    names = ", ".join(curve.name for curve in panel.curves)
    return Markup(
        '<svg class="chart" viewBox="0 0 {w} {h}" role="img" tabindex="0" aria-label="{title} '
        'by {x}" data-axes="{axes}"><desc>{names}</desc>{body}'
        '<g class="cursor" data-top="{top}" data-floor="{floor}"></g></svg>'
    ).format(
        w=WIDTH,
        h=HEIGHT,
        title=": ".join(filter(None, (panel.title, panel.y))),
        x=panel.x,
        axes=json.dumps([_rule(x, log=panel.log_x), _rule(y, log=panel.log_y)]),
        names=names,
        body=Markup("").join(parts),
        top=layout.top,
        floor=HEIGHT - BOTTOM,
    )


def _rule(axis: Axis, *, log: bool) -> list[float]:
    """pixel = a + b · value, of the value's logarithm if the third is 1."""
    values = [value for value, _ in axis.ticks] or [1.0]
    first, last = (values[0], values[-1]) if len(values) > 1 else (values[0], values[0] * 2 or 1.0)
    at: Callable[[float], float] = math.log10 if log else float
    slope = (axis.place(last) - axis.place(first)) / (at(last) - at(first))
    return [axis.place(first) - slope * at(first), slope, int(log)]


def _line(pieces: Pieces, x: Axis, y: Axis, style: str, near: float) -> Markup:
    rising = rises(pieces)
    thin = [_thin(piece, x, y, near, rising=rising) for piece in pieces]
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


def _shifts(layout: PanelLayout, panel: Panel) -> dict[str, float]:
    """By how many pixels joined dots stand aside, so that equal values do not hide each other.

    On an axis of numbers they stand where they are.
    """
    joined = [curve.name for curve, pieces in layout.curves if curve.kind == "joined" and pieces]
    step = (WIDTH - LEFT - RIGHT) / max(1, len(panel.labels) * len(joined))
    wide = min(7.0, 0.6 * step) if panel.labels else 0.0
    return {name: (i - (len(joined) - 1) / 2) * wide for i, name in enumerate(joined)}


def _dots(pieces: Pieces, x: Axis, y: Axis, style: str, shift: float | None) -> Markup:
    """Marks with whiskers; those that have a shift are joined by a thin line."""
    points = [p for piece in pieces for p in piece]
    aside = shift or 0.0
    at = {(round(2 * (x.place(p.x) + aside)) / 2, round(2 * y.place(p.y)) / 2): p for p in points}
    thread = (
        "" if shift is None else Markup('<path class="thread" d="{}"/>').format(path_through([*at]))
    )
    whiskers = "".join(
        f"M{coordinate(px)} {coordinate(y.place(p.low))}V{coordinate(y.place(p.high))}"
        for (px, _), p in at.items()
        if p.high > p.low
    )
    many = " many" if len(at) > MANY_DOTS else ""
    return Markup('{}{}<path class="curve dot{}" d="{}"/>').format(
        thread,
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
    points = [piece[0]]
    for p in piece[1:]:
        far = abs(x.place(p.x) - x.place(points[-1].x)) >= near
        if far or (not rising and abs(y.place(p.y) - y.place(points[-1].y)) >= near):
            points.append(p)
    if points[-1] is not piece[-1]:
        points.append(piece[-1])
    return points


def bar(share: float, style: str, *, open_ended: bool = False) -> Markup:
    """A horizontal bar filled to `share` of its length; an open-ended one fades out."""
    share = min(1.0, max(0.0, share))
    return Markup(
        '<svg class="bar" viewBox="0 0 100 8" preserveAspectRatio="none" aria-hidden="true">'
        '<rect class="rail" width="100" height="8"/>'
        '<rect class="fill {}{}" width="{}" height="8"/></svg>'
    ).format(style, " open" if open_ended else "", coordinate(max(0.4, 100 * share)))


def swatch(style: str, *, dot: bool = False) -> Markup:
    """A short piece of a curve, for the legend and the tables."""
    mark = (
        '<circle class="dot" cx="14" cy="5" r="4"/>' if dot else '<path class="line" d="M1 5H27"/>'
    )
    return Markup('<svg class="swatch {}" viewBox="0 0 28 10" aria-hidden="true">{}</svg>').format(
        style, Markup(mark)
    )
