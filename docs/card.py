"""A picture in a card, for a README: SVG that follows the light or dark theme of its reader."""

from __future__ import annotations

from collections.abc import Callable, Sequence

Place = Callable[[float], float]

STYLE = """
  .card { fill: #ffffff; stroke: #d8dee4 }
  text { font: 13px system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial,
    sans-serif; fill: #57606a }
  .title { font-size: 16px; font-weight: 600; fill: #1f2328 }
  .middle { text-anchor: middle }
  .end { text-anchor: end }
  .grid { stroke: #eaeef2 }
  .axis { stroke: #afb8c1 }
  .dot { fill: var(--c); stroke: #ffffff; stroke-width: 1.5 }
  @media (prefers-color-scheme: dark) {
    .card { fill: #12161c; stroke: #30363d }
    text { fill: #9198a1 }
    .title { fill: #f0f6fc }
    .grid { stroke: #21262d }
    .axis { stroke: #3d444d }
    .dot { stroke: #12161c }
  }
"""


def card(width: int, height: int, title: str, style: str, parts: Sequence[str]) -> list[str]:
    """The lines of the SVG: a card with rounded corners, and the parts on it."""
    return [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" '
        f'aria-label="{title}" width="{width}" height="{height}"><title>{title}</title>',
        f"<style>{STYLE}{style}</style>",
        f'<rect class="card" x=".5" y=".5" width="{width - 1}" height="{height - 1}" rx="10"/>',
        *parts,
        "</svg>",
    ]


def text(x: float, y: float, words: str, kind: str = "") -> str:
    """Words at a place."""
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}">{words}</text>'


def path(kind: str, at: Sequence[tuple[float, float]]) -> str:
    """A line through some places."""
    return f'<path class="{kind}" d="M{"L".join(f"{x:.1f} {y:.1f}" for x, y in at)}"/>'


def dot(kind: str, x: float, y: float) -> str:
    """A dot at a place, in the colour `--c` of its kind."""
    return f'<circle class="dot {kind}" cx="{x:.1f}" cy="{y:.1f}" r="4.5"/>'


def linear(low: float, high: float, start: float, end: float) -> Place:
    """From a value to its pixel."""
    return lambda value: start + (value - low) / (high - low) * (end - start)


def frame(
    y: Place, ticks: Sequence[tuple[float, str]], span: tuple[float, float], floor: float
) -> list[str]:
    """Grid lines with their labels, and the axis below them."""
    left, right = span
    parts = []
    for value, label in ticks:
        parts.append(f'<path class="grid" d="M{left} {y(value):.1f}H{right}"/>')
        parts.append(text(left - 8, y(value) + 4, label, "end"))
    return [*parts, f'<path class="axis" d="M{left} {floor}H{right}"/>']
