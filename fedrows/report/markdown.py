"""The results as Markdown: every table, ours beside the paper's; the figures as pictures."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from fedrows.report.artefact import Artefact, Cell, Figure, ResultTable, Runs
from fedrows.report.csv_files import show_ratio
from fedrows.report.file_names import Files
from fedrows.report.shown_facts import ABOUT, QUICK, TITLE, seeds_of, shown_facts


def render(
    artefacts: Sequence[Artefact], runs: Runs, facts: Mapping[str, Any], files: Files
) -> str:
    title = str(facts.get("title") or TITLE)
    parts = [f"# {_plain(title)}"]
    about = str(facts.get("summary") or ("" if facts.get("title") else ABOUT))
    if about:
        parts.append(_plain(about))
    shown = shown_facts(facts, artefacts, runs)
    if shown:
        parts.append("\n".join(f"- {_plain(term)}: {_plain(value)}" for term, value in shown))
    if command := facts.get("command"):
        line = command if isinstance(command, str) else " ".join(map(str, command))
        parts.append(f"    {line}")
    if facts.get("quick"):
        parts.append(f"**Quick version.** {QUICK}")
    if any(c.paper is not None for a in artefacts for t in a.tables for row in t.rows for c in row):
        parts.append("A number in brackets is the paper’s, and × is ours divided by it.")
    for artefact in artefacts:
        parts.append(f"## {_plain(artefact.title)}")
        if artefact.missing:
            parts.append(f"**Data missing.** {_plain(artefact.missing)}")
        if artefact.summary:
            parts.append(_paragraphs(artefact.summary))
        for table in artefact.tables:
            parts += _table(table, runs)
        for figure in artefact.figures:
            parts += _figure(figure, files)
    return "\n\n".join(parts) + "\n"


def table_lines(table: ResultTable, places: Sequence[int] | None = None) -> str:
    """A table, or some of its columns."""
    shown = range(len(table.columns)) if places is None else places
    lines = [_row(_plain(table.columns[i]) for i in shown), _row(["---"] * len(shown))]
    lines += [_row(_cell(row[i]) for i in shown) for row in table.rows]
    return "\n".join(lines)


def _table(table: ResultTable, runs: Runs) -> list[str]:
    parts = [f"### {_plain(table.title)}", table_lines(table)]
    if table.note:
        parts.append(_paragraphs(table.note))
    if seeds := seeds_of(table, runs):
        parts.append(f"From {seeds}.")
    return parts


def _figure(figure: Figure, files: Files) -> list[str]:
    picture = next((p for p in files.pictures(figure) if p.endswith(".png")), None)
    parts = [f"### {_plain(figure.title)}"]
    if picture:
        parts.append(f"![{_plain(figure.title)}]({picture})")
    if figure.note:
        parts.append(_paragraphs(figure.note))
    parts.append(f"Numbers: [{files.csv(figure)}]({files.csv(figure)})")
    return parts


def _cell(cell: Cell) -> str:
    text = _plain(cell.text)
    if cell.paper is None:
        return text
    ratio = show_ratio(cell.value, cell.paper_value)
    return f"{text} ({_plain(cell.paper)}{f', {ratio}' if ratio else ''})"


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _paragraphs(text: str) -> str:
    return "\n\n".join(_plain(part) for part in re.split(r"\n\s*\n", text) if part.strip())


def _plain(text: str) -> str:
    """Text on one line in which no sign of Markdown or HTML acts."""
    return re.sub(r"([\\|<*`\[\]])", r"\\\1", " ".join(text.split()))
