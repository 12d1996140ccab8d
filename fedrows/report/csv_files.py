"""Tables and figures as CSV, every digit kept: a figure has a row for each point."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from typing import Any

from fedrows.report.artefact import Figure, ResultTable

POINTS = ("panel", "curve", "kind", "x", "y", "low", "high", "runs")


def figure_csv(figure: Figure) -> str:
    """The points of all curves, as rows of panel, curve, kind, x, y, low, high, runs."""
    rows = (
        (panel.title, curve.name, curve.kind, x, y, low, high, " ".join(curve.runs))
        for panel in figure.panels
        for curve in panel.curves
        for x, y, low, high in zip(
            curve.x,
            curve.y,
            curve.low or ("",) * len(curve.y),
            curve.high or ("",) * len(curve.y),
            strict=False,
        )
    )
    return _text(POINTS, rows)


def table_csv(table: ResultTable) -> str:
    """The cells as printed; a column that the paper has too precedes the paper's and the ratio."""
    compared = [
        any(row[i].paper is not None for row in table.rows if i < len(row))
        for i in range(len(table.columns))
    ]
    head = [
        name
        for column, both in zip(table.columns, compared, strict=True)
        for name in ([column, f"{column} (paper)", f"{column} (ratio)"] if both else [column])
    ]
    rows = []
    for row in table.rows:
        cells: list[Any] = []
        for cell, both in zip(row, compared, strict=False):
            cells.append(cell.text)
            if both:
                cells += [cell.paper, ratio(cell.value, cell.paper_value)]
        rows.append(cells)
    return _text(head, rows)


def ratio(ours: float | None, paper: float | None) -> float | None:
    """Ours over the paper's, where both are numbers and the paper's is not zero."""
    if ours is None or not paper or ours != ours or paper != paper:
        return None
    return ours / paper


def show_ratio(ours: float | None, paper: float | None) -> str:
    """'×1.12', or nothing where there is none."""
    value = ratio(ours, paper)
    if value is None:
        return ""
    return f"×{value:.2f}" if 0.1 <= abs(value) < 100 else f"×{value:.3g}"


def _text(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(head)
    writer.writerows(rows)
    return file.getvalue()
