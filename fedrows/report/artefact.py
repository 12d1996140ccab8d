"""What an experiment hands over: tables and figures, in plain numbers, and the runs behind them.

An artefact goes to JSON and back unchanged (`asdict`, `from_dict`), so one that was made is kept,
and whoever draws it (the page, Markdown, PNG and SVG) needs nothing but this file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

STYLE_COUNT = 12  # colours and dashes of curves: .s0 to .s11 of page.css

Runs = Mapping[str, Mapping[str, Any]]  # what a page knows of each run, by its id


@dataclass(frozen=True)
class Cell:
    """One number of a table, as text and as a value, beside the paper's own."""

    text: str
    value: float | None = None  # None where the cell has no number
    paper: str | None = None  # what the paper prints there
    paper_value: float | None = None  # the same as a number: the page shows value / paper_value
    runs: tuple[str, ...] = ()  # the runs that made it, by id


@dataclass(frozen=True)
class ResultTable:
    """A table; the first cell of a row names it."""

    key: str  # a file name: table2-movielens
    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    note: str = ""


@dataclass(frozen=True)
class Curve:
    """One line, or one set of dots; low and high are the spread over seeds, or empty."""

    name: str
    x: tuple[float, ...]
    y: tuple[float, ...]
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()
    kind: str = "line"  # line, dots, joined: dots on a thin line, or guide: a level to compare with
    runs: tuple[str, ...] = ()


@dataclass(frozen=True)
class Panel:
    """One pair of axes."""

    title: str
    x: str
    y: str
    curves: tuple[Curve, ...]
    log_x: bool = False
    log_y: bool = False
    labels: tuple[str, ...] = ()  # what x = 0, 1, 2 … are called, where x is no number


@dataclass(frozen=True)
class Figure:
    """A figure of one or more panels."""

    key: str  # a file name: figure3
    title: str
    panels: tuple[Panel, ...]
    note: str = ""


@dataclass(frozen=True)
class Artefact:
    """What an experiment came to. If `missing` says how to get its data, there is nothing else."""

    name: str
    title: str
    summary: str = ""  # a sentence or two: what is seen here
    tables: tuple[ResultTable, ...] = ()
    figures: tuple[Figure, ...] = ()
    missing: str = ""


def from_dict(artefact: Mapping[str, Any]) -> Artefact:
    """The artefact that `dataclasses.asdict` took apart, perhaps by way of JSON."""
    tables = [
        ResultTable(**{**x, "rows": tuple(tuple(Cell(**c) for c in row) for row in x["rows"])})
        for x in _tuples(artefact["tables"])
    ]
    figures = [
        Figure(**{**x, "panels": tuple(map(_panel, x["panels"]))})
        for x in _tuples(artefact["figures"])
    ]
    return Artefact(**{**artefact, "tables": tuple(tables), "figures": tuple(figures)})


def _panel(panel: Mapping[str, Any]) -> Panel:
    return Panel(**{**panel, "curves": tuple(Curve(**curve) for curve in panel["curves"])})


def _tuples(value: Any) -> Any:
    """The same with tuples for lists, however deep."""
    if isinstance(value, Mapping):
        return {key: _tuples(inner) for key, inner in value.items()}
    return tuple(map(_tuples, value)) if isinstance(value, list | tuple) else value
