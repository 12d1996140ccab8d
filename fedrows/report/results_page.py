"""The page put together: artefacts, runs and facts → `page.html`, a file that asks for nothing."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup

from fedrows.report import line_styles, payload
from fedrows.report.artefact import Artefact, Cell, Figure, ResultTable, Runs
from fedrows.report.axes import left_out
from fedrows.report.chart import panel_chart, spacing, swatch
from fedrows.report.csv_files import show_ratio
from fedrows.report.file_names import Files
from fedrows.report.page import build
from fedrows.report.shown_facts import (
    ABOUT,
    QUICK,
    TITLE,
    seeds_of,
    shown_facts,
    verdict_of,
)

NUMBER = re.compile(r"[<>≤≥~×+−-]?\s*\d")
WORDS = 28  # characters: longer texts wrap


def render(
    artefacts: Sequence[Artefact], runs: Runs, facts: Mapping[str, Any], files: Files
) -> str:
    first = [a for a in artefacts if a.name == "claims"]
    artefacts = [*first, *(a for a in artefacts if a.name != "claims")]
    places = payload.runs_in_order(artefacts, runs)
    figures, thinned = payload.figures_json(files.figures, places)
    return build(
        "results_page.html",
        figures,
        payload.runs_json(places, runs),
        headline=str(facts.get("title") or TITLE),
        lede=str(facts.get("summary") or ("" if facts.get("title") else ABOUT)),
        eyebrow=[f"{'quick' if facts['quick'] else 'full'} version"] if "quick" in facts else [],
        quick=QUICK if facts.get("quick") else "",
        facts=shown_facts(facts, artefacts, runs),
        command=payload.command_of(facts),
        sections=[_section(a, i, places, runs, files) for i, a in enumerate(artefacts)],
        missing=[
            (f"a{i}", a.title, _prose(a.missing)) for i, a in enumerate(artefacts) if a.missing
        ],
        runs=[_run(name, number, runs) for name, number in places.items()],
        thinned=thinned,
        version=facts.get("fedrows") or "",
    )


def _section(
    artefact: Artefact, number: int, places: Mapping[str, int], runs: Runs, files: Files
) -> dict[str, Any]:
    near = spacing(sum(len(p.curves) for f in files.figures.values() for p in f.panels))
    return {
        "id": f"a{number}",
        "name": artefact.name,
        "title": artefact.title,
        "summary": _paragraphs(artefact.summary),
        "missing": _prose(artefact.missing),
        "tables": [_table(t, places, runs, files) for t in artefact.tables],
        "figures": [_figure(f, places, files, near) for f in artefact.figures],
    }


def _table(
    table: ResultTable, places: Mapping[str, int], runs: Runs, files: Files
) -> dict[str, Any]:
    kinds = [
        _column([row[i] for row in table.rows if i < len(row)]) for i in range(len(table.columns))
    ]
    return {
        "title": table.title,
        "columns": [*zip(table.columns, kinds, strict=True)],
        "rows": [
            [_cell(cell, places, kind) for cell, kind in zip(row, kinds, strict=False)]
            for row in table.rows
        ],
        "compared": any(cell.paper is not None for row in table.rows for cell in row),
        "linked": any(cell.runs for row in table.rows for cell in row),
        "note": _paragraphs(table.note),
        "seeds": seeds_of(table, runs),
        "csv": files.csv(table),
    }


def _column(cells: Sequence[Cell]) -> str:
    """How a column stands: words wrap, other texts stand left, numbers stand right."""
    if any(len(cell.text) > WORDS and cell.value is None for cell in cells):
        return "words"
    counts = (cell.value is not None or NUMBER.match(cell.text) for cell in cells)
    return "" if any(counts) else "text"


def _cell(cell: Cell, places: Mapping[str, int], kind: str) -> dict[str, Any]:
    verdict = verdict_of(cell)
    return {
        "text": cell.text,
        "paper": cell.paper,
        "ratio": show_ratio(cell.value, cell.paper_value),
        "runs": _places(cell.runs, places),
        "kind": " ".join(filter(None, [kind, f"is-{verdict}" if verdict else ""])),
    }


def _figure(figure: Figure, places: Mapping[str, int], files: Files, near: float) -> dict[str, Any]:
    looks, names = line_styles.styles(figure), line_styles.names(figure)
    keys = {name: key for key, name in enumerate(names)}
    made: dict[str, dict[str, None]] = {name: {} for name in names}  # by which runs, in order
    for panel in figure.panels:
        for curve in panel.curves:
            made[curve.name].update(dict.fromkeys(curve.runs))
    dotted = {c.name for p in figure.panels for c in p.curves if c.kind == "dots"}
    return {
        "key": files.name(figure),
        "title": figure.title,
        "note": _paragraphs(figure.note),
        "legend": [
            {
                "key": keys[name],
                "name": name,
                "swatch": swatch(looks[name], dot=name in dotted),
                "runs": _places(tuple(made[name]), places),
                "count": len(made[name]),
            }
            for name in names
        ],
        "panels": [
            {"title": p.title, "svg": panel_chart(p, keys, looks, near), "left_out": left_out(p)}
            for p in figure.panels
        ],
        "pictures": files.pictures(figure),
        "csv": files.csv(figure),
    }


def _run(name: str, number: int, runs: Runs) -> dict[str, Any]:
    run = runs.get(name, {})
    seconds = run.get("seconds")
    return {
        "id": name,
        "place": number,
        "task": payload.name_of(run.get("task")),
        "algorithm": payload.name_of(run.get("algorithm")),
        "seed": "" if run.get("seed") is None else run["seed"],
        "seconds": f"{seconds:,.1f}" if isinstance(seconds, int | float) else "",
        "device": run.get("device") or "",
    }


def _places(names: Sequence[str], places: Mapping[str, int]) -> str:
    return " ".join(str(places[name]) for name in names)


def _paragraphs(text: str) -> list[Markup]:
    return [_prose(part.strip()) for part in re.split(r"\n\s*\n", text) if part.strip()]


def _prose(text: str) -> Markup:
    """Escaped text in which what stands between `backticks` is code."""
    parts = text.split("`")
    if len(parts) % 2 == 0:  # one is left over
        return Markup.escape(text)
    return Markup("").join(
        Markup("<code>{}</code>").format(part) if i % 2 else part for i, part in enumerate(parts)
    )
