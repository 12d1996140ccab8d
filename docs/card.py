"""A picture in a card, for a README: SVG that follows the light or dark theme of its reader."""

from __future__ import annotations

from collections.abc import Sequence


def card(width: int, height: int, title: str, style: str, parts: Sequence[str]) -> list[str]:
    """The lines of the SVG: a card with rounded corners, and the parts on it."""
    return [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" '
        f'aria-label="{title}" width="{width}" height="{height}"><title>{title}</title>',
        f"<style>{style}</style>",
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
