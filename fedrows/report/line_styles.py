"""How curves look: an algorithm's colour and dash are those of the reports, on paper as well."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from fedrows.catalogue import REFERENCE, colours, title
from fedrows.report.artefact import STYLE_COUNT, Curve, Figure, Panel
from fedrows.report.page import read

GUIDE = "guide"  # the look of a level to compare with, and the kind of curve that is one


@dataclass(frozen=True)
class Ink:
    """A style as a drawing on white paper needs it."""

    colour: str
    dash: tuple[float, ...]  # lengths on and off; none: a whole line
    width: float


def styles(figure: Figure) -> dict[str, str]:
    """Name of a curve → its style, `s0` to `s11` or `guide`, the same in all panels of a figure.

    FedSubAvg looks like FedSubAvg, and so does the first curve whose name begins with that word;
    every other curve takes the next style that is free.
    """
    curves = [curve for panel in figure.panels for curve in panel.curves]
    assigned = assign([curve.name for curve in curves if curve.kind != GUIDE])
    return {curve.name: assigned.get(curve.name, GUIDE) for curve in curves}


def assign(names: Sequence[str]) -> dict[str, str]:
    """Name → its style, those of the algorithms first."""
    lines = list(dict.fromkeys(names))
    own, numbers = colours(), dict[str, int]()
    own |= {_algorithm(title(name), whole=True): colour for name, colour in own.items()}
    for whole in (True, False):
        for name in lines:
            wanted = own.get(_algorithm(name, whole=whole))
            if name not in numbers and wanted is not None and wanted not in numbers.values():
                numbers[name] = wanted
    known = {*own.values()} if numbers else set()  # where no algorithm is drawn, all are free
    faint = own[REFERENCE]  # thin and grey: the last choice
    free = [n for n in range(STYLE_COUNT) if n not in numbers.values()]
    spare = sorted(free, key=lambda n: (n == faint, n in known)) or [*range(STYLE_COUNT)]
    rest = [name for name in lines if name not in numbers]
    numbers |= {name: spare[i % len(spare)] for i, name in enumerate(rest)}
    return {name: f"s{numbers[name]}" for name in lines}


def names(figure: Figure) -> list[str]:
    """The names in the legend of a figure: curves as they come, then the guides."""
    looks = styles(figure)
    return sorted(looks, key=lambda name: looks[name] == GUIDE)


def inks() -> dict[str, Ink]:
    """The styles of the reports' style sheet, for paper: their light colours."""
    rule = r"\.(s\d+) \{ --c: light-dark\((#\w+),.*?--dash: ([^;]+);(?: --w: ([\d.]+);)?"
    styles = {
        style: Ink(
            colour,
            () if dash == "none" else tuple(map(float, dash.split())),
            float(width or 1.9),
        )
        for style, colour, dash, width in re.findall(rule, read("page.css"))
    }
    return styles | {GUIDE: Ink("#1c1e21", (2, 3), 1.0)}


def level(curve: Curve, panel: Panel) -> Curve:
    """The curve; a guide of a single point goes from end to end of its panel."""
    if curve.kind != GUIDE or len(curve.y) != 1:
        return curve
    ends = _ends([x for c in panel.curves if c is not curve for x in c.x if x is not None])
    return Curve(curve.name, ends or curve.x, curve.y * len(ends or curve.x), kind=GUIDE)


def _ends(xs: Sequence[float]) -> tuple[float, ...]:
    return (min(xs), max(xs)) if xs else ()


def _algorithm(name: str, *, whole: bool) -> str:
    """The name without capitals and signs; not whole: its first word alone."""
    word = name if whole else re.split(r"[\s,(:]", name.strip())[0]
    return re.sub(r"\W", "", word).lower()
