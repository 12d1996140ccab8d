"""What the page carries for its script: the numbers of the figures, and the runs, as short JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from fedrows.files.whole import finite
from fedrows.report import line_styles
from fedrows.report.artefact import Artefact, Curve, Figure

BUDGET = 2_000_000  # characters: the page is to stay below 5 MB
LONGEST = 300  # characters of one setting
ENTRIES = 20  # of a list; a longer one is only counted
COMMAND = "command"


def runs_in_order(
    artefacts: Sequence[Artefact], runs: Mapping[str, Mapping[str, Any]]
) -> dict[str, int]:
    """Every run's place: those at hand, then those that are only spoken of."""
    named = [
        name
        for artefact in artefacts
        for name in (
            *(r for t in artefact.tables for row in t.rows for cell in row for r in cell.runs),
            *(r for f in artefact.figures for p in f.panels for c in p.curves for r in c.runs),
        )
    ]
    return {name: number for number, name in enumerate(dict.fromkeys([*runs, *named]))}


def figures_json(figures: Mapping[str, Figure], places: Mapping[str, int]) -> tuple[str, bool]:
    """The figures by file name, and whether points were left out to keep the page light."""
    longest = max(
        (len(c.y) for f in figures.values() for p in f.panels for c in p.curves), default=0
    )
    most = max(longest, 1)
    while True:
        text = inline_json({key: _figure(f, places, most) for key, f in figures.items()})
        if len(text) <= BUDGET or most <= 100:
            return text, most < longest
        most //= 2


def runs_json(places: Mapping[str, int], runs: Mapping[str, Mapping[str, Any]]) -> str:
    """A list of [id, command, [[setting, value], …]] in the order of their places."""
    return inline_json(
        [[name, command_of(runs.get(name, {})), settings(runs.get(name, {}))] for name in places]
    )


def command_of(run: Mapping[str, Any]) -> str:
    """The command that repeats a run, as one line."""
    command = run.get(COMMAND) or ""
    return " ".join(map(str, command)) if isinstance(command, list | tuple) else str(command)


def name_of(entry: Any) -> str:
    """The name of a task or an algorithm, which may stand alone or with its options."""
    if isinstance(entry, Mapping):
        entry = entry.get("name")
    return "" if entry is None else str(entry)


def settings(run: Mapping[str, Any]) -> list[tuple[str, str]]:
    """A run's config and facts as names and texts: plan · rounds, 300."""
    pairs: list[tuple[str, str]] = []
    for key, value in run.items():
        if isinstance(value, Mapping) and value:
            pairs += [(f"{key} · {inner}", text) for inner, text in settings(value)]
        elif key != COMMAND and value is not None and value != "" and value != {}:
            pairs.append((str(key), _plain(value)))
    return pairs


def inline_json(value: Any) -> str:
    """JSON that may stand inside a script element: no `<` in it."""
    text = json.dumps(finite(value), separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return text.replace("<", "\\u003c")


def _figure(figure: Figure, places: Mapping[str, int], most: int) -> dict[str, Any]:
    looks, names = line_styles.styles(figure), line_styles.names(figure)
    shared: dict[tuple[float, ...], int] = {}  # curves of a panel mostly have the same x
    panels = []
    for panel in figure.panels:
        curves = []
        for curve in panel.curves:
            x = shared.setdefault(_short(curve.x, most), len(shared))
            curves.append(
                [
                    names.index(curve.name),
                    curve.kind,
                    x,
                    *(_short(values, most) for values in (curve.y, *_band(curve))),
                    [places[name] for name in curve.runs],
                ]
            )
        panels.append(
            {"title": panel.title, "x": panel.x, "labels": panel.labels, "curves": curves}
        )
    return {
        "title": figure.title,
        "names": names,
        "looks": [looks[name] for name in names],
        "xs": list(shared),
        "panels": panels,
    }


def _band(curve: Curve) -> tuple[tuple[float, ...], tuple[float, ...]]:
    banded = len(curve.low) == len(curve.high) == len(curve.y)
    return (curve.low, curve.high) if banded else ((), ())


def _short(values: Sequence[float], most: int) -> tuple[float, ...]:
    """At most so many of the values, the last among them, with seven digits."""
    every = math.ceil(len(values) / most) or 1
    short = [v for i, v in enumerate(values) if i % every == 0 or i == len(values) - 1]
    return tuple(_digits(v) for v in short)


def _digits(value: float | None) -> Any:
    if value is None or not math.isfinite(value):
        return None
    short = float(f"{value:.7g}")
    return int(short) if short.is_integer() and abs(short) < 1e15 else short


def _plain(value: Any) -> str:
    if isinstance(value, list | tuple) and len(value) > ENTRIES:
        return f"{len(value):,} entries"
    if not isinstance(value, str):
        value = json.dumps(finite(value), ensure_ascii=False, default=str)
    return value if len(value) <= LONGEST else f"{value[: LONGEST - 2]} …"
