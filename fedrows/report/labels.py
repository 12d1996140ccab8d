"""Where the names of the guides go: at an end of the line, where they hide least."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise, product

from fedrows.report.axes import BOTTOM, HEIGHT, LEFT, RIGHT, WIDTH, PanelLayout
from fedrows.report.line_styles import GUIDE

LETTER, LINE = 6.3, 14.0  # pixels of a letter, about, and of a line of text
STEP = 4.0  # pixels between the places where a curve is looked at

Box = tuple[float, float, float, float]  # left, top, right, bottom


@dataclass(frozen=True)
class Label:
    """A guide's name at one end of its line, in pixels."""

    name: str
    x: float
    y: float
    right: bool  # at the right end, the text ending there
    above: bool
    box: Box


def labels(layout: PanelLayout) -> list[Label]:
    """A label for each guide: right or left, above or below, whichever meets least."""
    lines = [
        [layout.at(p) for p in piece]
        for curve, pieces in layout.curves
        if curve.kind != GUIDE
        for piece in pieces
    ]
    ink = [point for line in lines for point in _along(line)]
    placed: list[Label] = []
    for curve, pieces in layout.curves:
        if curve.kind == GUIDE and pieces:
            ends = layout.at(pieces[0][0]), layout.at(pieces[-1][-1])
            choices = [
                _label(curve.name, ends[right], right, above)
                for right, above in product((True, False), repeat=2)
            ]
            placed.append(min(choices, key=lambda label: _hidden(label, layout.top, ink, placed)))
    return placed


def _label(name: str, end: tuple[float, float], right: bool, above: bool) -> Label:
    x, y = end
    width = LETTER * len(name)
    left, top = (x - width if right else x), (y - LINE if above else y)
    return Label(name, x, y, right, above, (left, top, left + width, top + LINE))


def _hidden(
    label: Label, ceiling: float, ink: Sequence[tuple[float, float]], placed: Sequence[Label]
) -> float:
    """How much of the curves, of other labels and of itself would be lost."""
    left, top, right, bottom = label.box
    met = 0.0 + sum(left <= x <= right and top <= y <= bottom for x, y in ink)
    for other in placed:
        if other.box[0] < right and left < other.box[2]:
            met += 20 * max(0.0, min(bottom, other.box[3]) - max(top, other.box[1]))
    outside = (
        left < LEFT or right > WIDTH - RIGHT or top < ceiling - LINE or bottom > HEIGHT - BOTTOM
    )
    return met + 200 * outside


def _along(line: Sequence[tuple[float, float]]) -> Iterator[tuple[float, float]]:
    """Places on a line, a few pixels apart."""
    yield from line[:1]
    for (x, y), (to_x, to_y) in pairwise(line):
        count = int(max(abs(to_x - x), abs(to_y - y)) / STEP) + 1
        for i in range(1, count + 1):
            yield x + (to_x - x) * i / count, y + (to_y - y) * i / count
