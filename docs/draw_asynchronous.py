"""Draws the pictures of asynchronous rounds: asynchronous-results.svg and asynchronous-theory.svg.

Time to the target by concurrency and by kind of devices, from what was measured; and the error
of a cold and of a hot row, as expected and as simulated. `make_asynchronous` and
`make_asynchronous_theory` call it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from card import Place, card, dot, frame, linear, path, text

Json = Mapping[str, Any]
RULES = ("none", "version", "row")  # the last is drawn on top
CLOCKS = ("constant", "log-normal", "heavy-tail")
NAMES = {"row": "per row", "version": "per version", "none": "no weight", "sync": "synchronous"}
WIDTH, HEIGHT, FLOOR, TOP = 880, 424, 318, 96
LEFT, RIGHT = (70, 420), (520, 856)

STYLE = """
  .name { font-weight: 600; fill: var(--c) }
  .line { fill: none; stroke: var(--c); stroke-width: 2.4; stroke-linejoin: round }
  .whisker { fill: none; stroke: var(--c); stroke-width: 1.4 }
  .line.sync { stroke-dasharray: 6 4 }
  .cross { fill: none; stroke: var(--c); stroke-width: 2 }
  .row { --c: #0f5fc2 }
  .version { --c: #c9480b }
  .none { --c: #0a7d59 }
  .sync { --c: #57606a }
  @media (prefers-color-scheme: dark) {
    .row { --c: #6aaeff }
    .version { --c: #ff9152 }
    .none { --c: #3fc795 }
    .sync { --c: #a8b0ba }
  }
"""
MISSED = TOP - 12  # where runs stand that did not reach the target


def measured(results: Json) -> list[str]:
    """The picture of docs/asynchronous-results.md."""
    clocks = results["synthetic"]["clocks"]
    seeds = len(clocks["heavy-tail"])
    more = results.get("concurrency", {"runs": [{}] * seeds})["runs"]
    parts = [
        *by_concurrency(clocks["heavy-tail"], more),
        *by_devices(clocks),
        *legend(24, HEIGHT - 40, ("row", "version", "none", "sync")),
        text(24, HEIGHT - 16, f"Synthetic task, M = 10: means and ranges over {seeds} seeds. "
             "×: some seed used up its updates before the target."),
    ]  # fmt: skip
    return card(WIDTH, HEIGHT, "Virtual time to the synchronous target", STYLE, parts)


def by_concurrency(runs: Sequence[Json], more: Sequence[Json]) -> list[str]:
    """The left panel: virtual seconds by C / M."""
    seconds = [
        {name: y["seconds"] for name, y in x["async"].items()} | dict(other)
        for x, other in zip(runs, more, strict=True)
    ]
    times = sorted({int(name.split(", ")[1]) for name in seconds[0]})
    waited = [first({d: y["seconds"] for d, y in x["waiting"].items()}) for x in runs]
    series = {rule: [[x[f"{rule}, {t}"] for x in seconds] for t in times] for rule in RULES}
    x = logarithmic(times[0] * 0.85, times[-1] * 1.18, *LEFT)
    values = [v for rows in series.values() for row in rows for v in row if v] + waited
    low, high = min(values) / 1.25, max(values) * 1.25
    y = logarithmic(low, high, FLOOR, TOP)
    parts = [text(24, 36, "Time to the target by concurrency", "title"),
             text(24, 58, "virtual seconds, heavy tail; fewer is better")]  # fmt: skip
    parts += frame(y, [(v, f"{v:,.0f}") for v in ticks(low, high)], LEFT, FLOOR)
    parts += [text(x(t), FLOOR + 20, f"{t}", "middle") for t in times]
    parts.append(text(sum(LEFT) / 2, FLOOR + 40, "clients at a time, in buffers (C / M)", "middle"))
    level = y(fmean(waited))
    parts.append(path("line sync", [(LEFT[0], level), (LEFT[1], level)]))
    return parts + lines(series, [x(t) for t in times], y)


def by_devices(clocks: Mapping[str, Sequence[Json]]) -> list[str]:
    """The right panel: how many times sooner than the synchronous run, by kind of devices."""
    kinds = [clock for clock in CLOCKS if clock in clocks]
    series = {
        rule: [[sooner(x, x["async"][f"{rule}, 20"]["seconds"]) for x in clocks[clock]]
               for clock in kinds]
        for rule in RULES
    }  # fmt: skip
    values = [v for rows in series.values() for row in rows for v in row if v]
    low, high = min(0.8, min(values) / 1.2), max(values) * 1.25
    y = logarithmic(low, high, FLOOR, TOP)
    step = (RIGHT[1] - RIGHT[0]) / len(kinds)
    places = [RIGHT[0] + step * (i + 0.5) for i in range(len(kinds))]
    parts = [text(RIGHT[0] - 46, 36, "Times sooner by the tail of speeds", "title"),
             text(RIGHT[0] - 46, 58, "than the best synchronous run, at C = 20 M; more is better"),
             ]  # fmt: skip
    parts += frame(y, [(v, f"{v:g} ×") for v in ticks(low, high)], RIGHT, FLOOR)
    parts += [
        text(at, FLOOR + 20, clock, "middle") for at, clock in zip(places, kinds, strict=True)
    ]
    parts.append(text(sum(RIGHT) / 2, FLOOR + 40, "devices", "middle"))
    parts.append(path("line sync", [(RIGHT[0], y(1)), (RIGHT[1], y(1))]))
    return parts + lines(series, places, y)


def theory(
    steps: int, expected: Mapping[str, Mapping[str, Sequence[float]]],
    simulated: Mapping[str, Mapping[str, Sequence[float]]],
) -> list[str]:  # fmt: skip
    """The picture of docs/asynchronous-theory.md: a panel for each kind of row."""
    parts = []
    for panel, (title, rules) in zip((LEFT, RIGHT), expected.items(), strict=True):
        x, y = linear(0, steps, *panel), linear(0, 1, FLOOR, TOP)
        parts += [text(panel[0] - 46, 36, title, "title"),
                  text(panel[0] - 46, 58, "mean error by step; dots: simulated")]  # fmt: skip
        parts += frame(y, [(v, f"{v:g}") for v in (0, 0.25, 0.5, 0.75, 1)], panel, FLOOR)
        for tick in range(0, steps + 1, 50):
            parts.append(text(x(tick), FLOOR + 20, f"{tick}", "middle"))
        parts.append(text(sum(panel) / 2, FLOOR + 40, "steps of the server", "middle"))
        for rule in RULES:
            clipped = [max(0.0, v) for v in rules[rule][: steps + 1]]
            parts.append(path(f"line {rule}", [(x(t), y(v)) for t, v in enumerate(clipped)]))
            seen = simulated[title][rule]
            parts += [dot(rule, x(t), y(max(0.0, seen[t]))) for t in range(5, steps + 1, 15)]
    at = linear(0, steps, *RIGHT)(55), linear(0, 1, FLOOR, TOP)(0.55)
    parts.append(text(*at, "per row and per version agree"))
    parts += legend(24, HEIGHT - 40, ("row", "version", "none"))
    parts.append(text(24, HEIGHT - 16, "N = 1,000 clients, M = 5, updates 9 steps old, rate 0.04."))
    return card(WIDTH, HEIGHT, "The mean error of a cold and of a hot row", STYLE, parts)


def first(waiting: Mapping[str, float | None]) -> float:
    """When the synchronous run with the best deadline is there."""
    return min(x for x in waiting.values() if x is not None)


def sooner(run: Json, seconds: float | None) -> float | None:
    """How many times sooner than the synchronous run; None if never."""
    waited = first({deadline: x["seconds"] for deadline, x in run["waiting"].items()})
    return None if seconds is None else waited / seconds


def lines(
    series: Mapping[str, Sequence[Sequence[float | None]]], places: Sequence[float], y: Place
) -> list[str]:
    """Means with ranges; a cross at the top where not every seed has a value."""
    parts = []
    for at, (rule, rows) in enumerate(series.items()):
        aside = 5.0 * (at - 1)
        reached = []
        for x, row in zip(places, rows, strict=True):
            values = [v for v in row if v is not None]
            if len(values) == len(row):
                reached.append((x, y(fmean(values))))
                if max(values) > min(values):
                    ends = [(x, y(min(values))), (x, y(max(values)))]
                    parts.append(path(f"whisker {rule}", ends))
            else:
                cx = x + 2.4 * aside
                arms = f"M{cx - 4:.1f} {MISSED - 4}l8 8m0 -8l-8 8"
                parts.append(f'<path class="cross {rule}" d="{arms}"/>')
        if len(reached) > 1:
            parts.append(path(f"line {rule}", reached))
        parts += [dot(rule, *point) for point in reached]
    return parts


def legend(x: float, y: float, names: Sequence[str]) -> list[str]:
    """Names in their colours, in a row."""
    parts = []
    for name in names:
        parts.append(path(f"line {name}", [(x, y - 4), (x + 22, y - 4)]))
        parts.append(text(x + 28, y, NAMES[name], f"name {name}"))
        x += 44 + 7.3 * len(NAMES[name])
    return parts


def ticks(low: float, high: float) -> list[float]:
    """1, 2 and 5 times powers of ten between two values."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    return [n * 10.0**p for p in powers for n in (1, 2, 5) if low <= n * 10.0**p <= high]


def logarithmic(low: float, high: float, start: float, end: float) -> Place:
    """The same on an axis of powers."""
    inner = linear(math.log(low), math.log(high), start, end)
    return lambda value: inner(math.log(value))
