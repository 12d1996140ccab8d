"""Charts as SVG text: lines with a seed band, dots over heat buckets, a log-log scatter, bars.

Every text goes through `Markup.format`, which escapes it. Colours and dashes are CSS classes
(`s0`, `s1`, …), so one algorithm looks the same in all charts, in light and in dark. What the
tooltip shows is JSON in the attribute `data-points`, read by `script.js`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from markupsafe import Markup

WIDTH, HEIGHT = 480, 300
LEFT, RIGHT, TOP, BOTTOM = 50, 14, 14, 40
MARKS = (
    "m-3.5 0a3.5 3.5 0 1 0 7 0a3.5 3.5 0 1 0-7 0z",
    "m-3.1-3.1h6.2v6.2h-6.2z",
    "m0-4.5l4 4.5l-4 4.5l-4-4.5z",
    "m0-4.2l4 7h-8z",
)
MOST_POINTS = 240  # of one line: more would be narrower than a pixel and only make the page heavy


@dataclass(frozen=True)
class Point:
    """One mean over seeds, with the smallest and the largest seed's value."""

    x: float
    y: float
    low: float
    high: float


@dataclass(frozen=True)
class Series:
    """One algorithm's points; `key` is its place in the legend, `style` its colour and dash."""

    name: str
    key: int
    style: str
    points: Sequence[Point]


@dataclass(frozen=True)
class Axis:
    """A scale: data value → pixel, with its ticks."""

    place: Callable[[float], float]
    ticks: Sequence[tuple[float, str]]


def line_chart(
    title: str, description: str, series: Sequence[Series], guides: Sequence[tuple[str, float]] = ()
) -> Markup:
    """A metric by round: mean lines, min-max bands, and horizontal guides (the target)."""
    series = [Series(s.name, s.key, s.style, thin(s.points)) for s in series if s.points]
    xs = sorted({p.x for s in series for p in s.points})
    x = linear_axis([xs[0], xs[-1]], LEFT, WIDTH - RIGHT, pad=0.0)
    ys = [v for s in series for p in s.points for v in (p.low, p.high)] + [v for _, v in guides]
    y = _scale(ys)
    parts = [frame(x, y, "round")]
    for s in series:
        up = [(x.place(p.x), y.place(p.high)) for p in s.points]
        down = [(x.place(p.x), y.place(p.low)) for p in reversed(s.points)]
        band = (
            Markup('<path class="band" d="{}Z"/>').format(path_through(up + down))
            if _spread(s)
            else ""
        )
        line = [(x.place(p.x), y.place(p.y)) for p in s.points]
        alone = _dots(s.style, line) if len(line) == 1 else ""
        parts.append(
            _group(
                s, Markup('{}<path class="line" d="{}"/>{}').format(band, path_through(line), alone)
            )
        )
    for label, value in guides:
        parts.append(
            Markup(
                '<line class="guide" x1="{}" x2="{}" y1="{}" y2="{}"/>'
                '<text class="guide-label" x="{}" y="{}">{}</text>'
            ).format(
                LEFT,
                WIDTH - RIGHT,
                *[coordinate(y.place(value))] * 2,
                LEFT + 6,
                coordinate(y.place(value) - 5),
                label,
            )
        )
    columns = [(v, f"round {v:,.0f}") for v in xs]
    return _svg(title, description, parts, _points(columns, series, x, y))


def dot_chart(
    title: str, description: str, labels: Sequence[str], series: Sequence[Series]
) -> Markup:
    """A value per heat bucket, cold to hot: a dot for each algorithm, joined by a thin line."""
    series = [s for s in series if s.points]
    step = (WIDTH - LEFT - RIGHT) / len(labels)
    every = math.ceil(len(labels) / 7)
    x = Axis(
        lambda v: LEFT + step * (v + 0.5),
        [(i, label) for i, label in enumerate(labels) if i % every == 0],
    )
    y = _scale([v for s in series for p in s.points for v in (p.low, p.high)])
    parts = [frame(x, y, "clients that hold the target feature", grid_x=False)]
    for n, s in enumerate(series):
        # side by side inside the bucket, so that equal values do not hide each other
        shift = (n - (len(series) - 1) / 2) * min(7.0, 0.6 * step / len(series))
        at = [(x.place(p.x) + shift, p) for p in s.points]
        whiskers = Markup("").join(
            Markup('<path class="whisker" d="M{} {}V{}"/>').format(
                coordinate(px), coordinate(y.place(p.low)), coordinate(y.place(p.high))
            )
            for px, p in at
            if p.high > p.low
        )
        dots = [(px, y.place(p.y)) for px, p in at]
        inner = Markup('<path class="thread" d="{}"/>{}{}').format(
            path_through(dots), whiskers, _dots(s.style, dots)
        )
        parts.append(_group(s, inner))
    columns = [(float(i), f"held by {label}") for i, label in enumerate(labels)]
    return _svg(title, description, parts, _points(columns, series, x, y))


def heat_chart(title: str, description: str, histogram: Sequence[tuple[int, int]]) -> Markup:
    """Number of features by heat, both axes logarithmic, the whole tail included."""
    pairs = sorted((heat, count) for heat, count in histogram if heat > 0 and count > 0)
    x = log_axis([heat for heat, _ in pairs], LEFT, WIDTH - RIGHT)
    y = log_axis([count for _, count in pairs], HEIGHT - BOTTOM, TOP)
    y = Axis(y.place, [(v, tick_label(v, 1)) for v, _ in y.ticks if v == round(v)])
    at = {(round(x.place(h)), round(y.place(c))): (h, c) for h, c in reversed(pairs)}
    dots = Markup("").join(
        Markup('<circle cx="{}" cy="{}" r="2.6"/>').format(*p) for p in sorted(at)
    )
    columns = {px: (px, f"heat {h:,}") for (px, _), (h, _) in sorted(at.items())}
    first = {px: [py, f"{c:,}"] for (px, py), (_, c) in sorted(at.items(), reverse=True)}
    points = {
        "x": list(columns.values()),
        "s": [{"k": -1, "c": "heat", "n": "features", "y": [first[px] for px in columns]}],
    }
    parts = [
        frame(x, y, "heat: clients that hold the feature"),
        Markup('<text class="axis-title end" x="{}" y="{}">features ↑</text>').format(
            WIDTH - RIGHT, TOP + 6
        ),
        Markup('<g class="series heat">{}</g>').format(dots),
    ]
    return _svg(title, description, parts, points)


def bar(share: float, style: str, *, open_ended: bool = False) -> Markup:
    """A horizontal bar filled to `share` of its length; an open-ended one fades out."""
    share = min(1.0, max(0.0, share))
    return Markup(
        '<svg class="bar" viewBox="0 0 100 8" preserveAspectRatio="none" aria-hidden="true">'
        '<rect class="rail" width="100" height="8"/>'
        '<rect class="fill {}{}" width="{}" height="8"/></svg>'
    ).format(style, " open" if open_ended else "", coordinate(max(0.4, 100 * share)))


def swatch(style: str) -> Markup:
    """A short piece of the algorithm's line, for the legend and the tables."""
    return Markup(
        '<svg class="swatch {}" viewBox="0 0 28 10" aria-hidden="true">'
        '<path class="line" d="M1 5H27"/></svg>'
    ).format(style)


def thin(points: Sequence[Point], most: int = MOST_POINTS) -> Sequence[Point]:
    """At most `most` + 1 of the points, evenly taken, the last always among them."""
    every = math.ceil(len(points) / most)
    return [p for i, p in enumerate(points) if i % every == 0 or i == len(points) - 1]


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


def linear_axis(values: Sequence[float], start: float, end: float, pad: float = 0.06) -> Axis:
    low, high = min(values), max(values)
    room = (high - low) * pad if high > low else (abs(high) * 0.1 or 1.0)
    low, high = low - room, high + room
    ticks = nice_ticks(low, high)
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


def _scale(ys: Sequence[float]) -> Axis:
    """The y axis: logarithmic where the values span more than a factor of 30, else linear."""
    if min(ys) > 0 and max(ys) / min(ys) > 30:
        return log_axis(ys, HEIGHT - BOTTOM, TOP)
    return linear_axis(ys, HEIGHT - BOTTOM, TOP)


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


def _group(series: Series, inner: Markup) -> Markup:
    return Markup('<g class="series {}" data-k="{}">{}</g>').format(series.style, series.key, inner)


def _dots(style: str, at: Sequence[tuple[float, float]]) -> Markup:
    """A mark at each place: circle, square, diamond or triangle, by style."""
    shape = MARKS[int(style[1:]) % len(MARKS)]
    return Markup("").join(
        Markup('<path class="dot" d="M{} {}{}"/>').format(coordinate(px), coordinate(py), shape)
        for px, py in at
    )


def _spread(series: Series) -> bool:
    return len(series.points) > 1 and any(p.high > p.low for p in series.points)


def path_through(at: Sequence[tuple[float, float]]) -> str:
    return "M" + "L".join(f"{coordinate(px)} {coordinate(py)}" for px, py in at)


def coordinate(value: float) -> str:
    """A coordinate, as short as a tenth of a pixel allows."""
    return f"{value:.1f}".removesuffix(".0")


def _points(
    columns: Sequence[tuple[float, str]], series: Sequence[Series], x: Axis, y: Axis
) -> dict[str, object]:
    rows = []
    for s in series:
        by_x = {p.x: [round(y.place(p.y), 1), f"{p.y:#.4g}"] for p in s.points}
        rows.append({"k": s.key, "c": s.style, "n": s.name, "y": [by_x.get(v) for v, _ in columns]})
    return {"x": [[round(x.place(v), 1), label] for v, label in columns], "s": rows}


def _svg(title: str, description: str, parts: Sequence[Markup], points: object) -> Markup:
    return Markup(
        '<svg class="chart" viewBox="0 0 {w} {h}" role="img" aria-label="{title}" tabindex="0" '
        'data-points="{points}"><title>{title}</title><desc>{description}</desc>'
        '{body}<g class="cursor" data-top="{top}" data-floor="{floor}"></g></svg>'
    ).format(
        w=WIDTH,
        h=HEIGHT,
        title=title,
        description=description,
        points=json.dumps(points, separators=(",", ":"), ensure_ascii=False, allow_nan=False),
        body=Markup("").join(parts),
        top=TOP,
        floor=HEIGHT - BOTTOM,
    )
