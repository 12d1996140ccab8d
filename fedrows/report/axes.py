"""The axes of a chart: from values to pixels, with ticks at round numbers."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from markupsafe import Markup

WIDTH, HEIGHT = 480, 300
LEFT, RIGHT, BOTTOM = 50, 14, 40


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
