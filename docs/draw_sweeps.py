"""The second picture of docs/speed.md: what a client costs by the size of the cohort, and how much
longer a round takes in a larger table. `make_speed` reads the results and writes the picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from card import card, path, text
from draw_speed import STYLE, WIDTH, Json, decades, share

HEIGHT, TOP, FLOOR = 300, 86, 250
LINES = {"same": "the same ids", "spread": "ids at random", "bare": "a bare gather and add"}
MORE = """
  .line { fill: none; stroke: #0f5fc2; stroke-width: 2 }
  .line.spread { stroke: #d9803f }
  .line.bare { stroke: #afb8c1; stroke-dasharray: 5 4 }
  .dot { fill: #0f5fc2 }
  @media (prefers-color-scheme: dark) {
    .line { stroke: #6aaeff }
    .line.spread { stroke: #d9803f }
    .line.bare { stroke: #57606a }
    .dot { fill: #6aaeff }
  }
"""
Points = Sequence[tuple[float, float]]


def draw(results: Mapping[str, Json]) -> list[str]:
    """The picture as lines of SVG; nothing of what was not measured."""
    parts: list[str] = []
    if result := results.get("cohort"):
        points = [(x["clients"], x["microseconds_per_client"]) for x in result["rows"]]
        parts += panel(56, "Microseconds a client", "by the clients of a round, K", {"us": points})
    if result := results.get("scale"):
        curves: dict[str, Points] = {
            kind: [
                (result["small"], 1.0),
                *((int(n), x[kind]) for n, x in result["growth"].items()),
            ]
            for kind in LINES
        }
        title = f"Times the round in a table of {result['small']:,} rows"
        parts += panel(480, title, "by the rows of the table", curves)
    about = (
        "The time of a client by the size of the cohort, and of a round by the size of the table"
    )
    return card(WIDTH, HEIGHT, about, STYLE + MORE, parts)


def panel(left: float, title: str, below: str, curves: Mapping[str, Points]) -> list[str]:
    """One pair of axes: x logarithmic, y too unless it stays within a factor of ten."""
    every = [point for points in curves.values() for point in points]
    x_scale, wide = decades([x for x, _ in every]), 340.0
    most = max(y for _, y in every)
    y_scale = decades([y for _, y in every])

    def place(x: float, y: float) -> tuple[float, float]:
        up = share(y, y_scale) if most > 10 else y / (1.15 * most)
        return left + wide * share(x, x_scale), FLOOR - (FLOOR - TOP) * up

    parts = [text(left, 34, title, "title"), text(left, 56, below)]
    marks = [10.0**p for p in range(y_scale[0], y_scale[1] + 1)] if most > 10 else [0, 0.5, 1, 1.5]
    for mark in marks:
        y = place(every[0][0], mark)[1] if mark else FLOOR
        parts.append(f'<path class="grid" d="M{left} {y:.1f}H{left + wide}"/>')
        parts.append(text(left - 6, y + 4, f"{mark:g}", "tick end"))
    for power in range(x_scale[0], x_scale[1] + 1):
        x = left + wide * share(10.0**power, x_scale)
        parts.append(text(x, FLOOR + 18, named(power), "tick middle"))
    for place_in_key, (kind, points) in enumerate(curves.items()):
        at = [place(x, y) for x, y in points]
        parts.append(path(f"line {kind}", at))
        if kind in LINES:
            y = FLOOR - 46 + 16 * place_in_key
            parts.append(f'<path class="line {kind}" d="M{left + 16} {y - 4}h26"/>')
            parts.append(text(left + 50, y, LINES[kind]))
        else:
            parts += [f'<circle class="dot" cx="{x:.1f}" cy="{y:.1f}" r="3"/>' for x, y in at]
    return parts


def named(power: int) -> str:
    """A power of ten in few letters."""
    unit, letter = next((u, s) for u, s in ((9, "G"), (6, "M"), (3, "k"), (0, "")) if power >= u)
    return f"{10 ** (power - unit)}{letter}"
