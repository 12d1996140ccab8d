"""Artefacts as a page to look at and files to use, for the paper or a study of one's own.

    index.html           everything, in one file that asks the network for nothing
    results.md           the tables in Markdown
    figures/KEY.svg|png  the figures for a paper
    data/KEY.csv         the numbers of each table and figure, with every digit

It needs jinja2, and matplotlib for the figures; no experiment imports it.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedrows.files.whole import unwritable, write_whole
from fedrows.report import csv_files, markdown, results_page, saved_figures
from fedrows.report.artefact import Artefact
from fedrows.report.file_names import Files

PAGE, MARKDOWN = "index.html", "results.md"


def write(
    out: Path,
    artefacts: Sequence[Artefact],
    runs: Mapping[str, Mapping[str, Any]],
    facts: Mapping[str, Any],
    *,
    drawn: bool = True,
) -> list[str]:
    """Writes the files above into `out`; gives back what could not be made, a sentence each.

    `runs`: what is known of each run, by id. `facts`: date, machine, fedrows, torch, command, quick
    (whether it is the reduced version), and for a study of one's own `title` and `summary`.
    `drawn`: figures are also wanted as SVG and PNG, which takes a while.
    Everything is made before anything is written, and each file takes its place in one step.
    """
    files = Files(artefacts)
    made, notes = _pictures(out, files) if drawn else ({}, [])
    for name, table in files.tables.items():
        made[f"data/{name}.csv"] = csv_files.table_csv(table).encode()
    for name, figure in files.figures.items():
        made[f"data/{name}.csv"] = csv_files.figure_csv(figure).encode()
    made[MARKDOWN] = markdown.render(artefacts, runs, facts, files).encode()
    made[PAGE] = results_page.render(
        artefacts, runs, facts, files
    ).encode()  # last: it names the others
    try:
        for name, data in made.items():
            (out / name).parent.mkdir(parents=True, exist_ok=True)
            write_whole(out / name, data)
    except OSError as error:
        raise unwritable(out, error) from error
    return notes


def _pictures(out: Path, files: Files) -> tuple[dict[str, bytes], list[str]]:
    """The figures that have changed, by file name, and what could not be made."""
    if importlib.util.find_spec("matplotlib") is None:
        return {}, [
            "No figures were written as PNG and SVG, because the package matplotlib is missing: "
            "pip install fedrows[paper]."
        ]
    files.endings = saved_figures.ENDINGS
    made: dict[str, bytes] = {}
    for name, figure in files.figures.items():
        places = [f"figures/{name}.{ending}" for ending in saved_figures.ENDINGS]
        if not saved_figures.is_drawn(figure, [out / path for path in places]):
            made |= dict(zip(places, saved_figures.draw(figure), strict=True))
    return made, []
