"""A study as the page of the paper shows things: curves by metric, and a table of what came out."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from types import ModuleType

import torch

from fedrows.measure.metric_choice import about, measured
from fedrows.measure.summary import number, summarise, table
from fedrows.report.artefact import Artefact, Cell, Curve, Figure, Panel, ResultTable
from fedrows.study.finished import FinishedRun, StudyError
from fedrows.version import __version__


def writer() -> ModuleType:
    """What writes pages; an error that names the package if one that it needs is missing."""
    try:
        from fedrows.report import results
    except ImportError as error:
        raise StudyError(
            f"The page needs the package {error.name or 'jinja2'}, which is not installed: "
            "pip install fedrows[paper]."
        ) from error
    return results


def write(runs: Sequence[FinishedRun], path: Path, title: str) -> Path:
    """Writes the page into a folder and gives its path; a figure has a file of its own too."""
    page = writer()
    facts = {
        "title": title,
        "date": datetime.now(UTC).date().isoformat(),
        "fedrows": __version__,
        "torch": torch.__version__,
    }
    path.mkdir(parents=True, exist_ok=True)
    page.write(path, artefacts(runs), {run.id: run.summary for run in runs}, facts)
    return path / str(page.PAGE)


def artefacts(runs: Sequence[FinishedRun]) -> list[Artefact]:
    """One artefact for each task."""
    by_task: dict[str, list[FinishedRun]] = {}
    for run in runs:
        by_task.setdefault(run.setting.task, []).append(run)
    return [_artefact(task, group) for task, group in by_task.items()]


def _artefact(task: str, runs: Sequence[FinishedRun]) -> Artefact:
    by_name: dict[str, list[FinishedRun]] = {}
    for run in runs:
        by_name.setdefault(run.setting.name, []).append(run)
    ids = {name: tuple(run.id for run in group) for name, group in by_name.items()}
    lines = [{**line, "algorithm": run.setting.name} for run in runs for line in run.lines]
    full = runs[0].facts.get("bytes_full_model")
    titles, rows = table(summarise(lines, bytes_full_model=full))
    cells = [
        tuple(Cell(text, runs=used if number else ()) for number, text in enumerate(row))
        for row, used in zip(rows, ids.values(), strict=True)
    ]
    panels = [
        Panel(about(metric)[0], "round", about(metric)[0], curves)
        for metric in measured(lines)
        if (curves := tuple(filter(None, (_curve(n, r, metric) for n, r in by_name.items()))))
    ]
    seeds = len({run.seed for run in runs})
    return Artefact(
        task,
        task,
        f"{len(by_name)} settings with {seeds} seeds each: mean over the seeds, and their range.",
        (ResultTable(f"{task}-summary", f"What came out on {task}", tuple(titles), tuple(cells)),),
        (Figure(f"{task}-curves", f"By round on {task}", tuple(panels)),),
    )


def _curve(name: str, runs: Sequence[FinishedRun], metric: str) -> Curve | None:
    """The mean over seeds at every round that all seeds have, and the range; None if nothing."""
    by_round: dict[int, list[float]] = {}
    for run in runs:
        for line in run.lines:
            if (value := number(line.get(metric))) is not None:
                by_round.setdefault(line["round"], []).append(value)
    complete = {at: values for at, values in sorted(by_round.items()) if len(values) == len(runs)}
    if not complete:
        return None
    y = tuple(map(statistics.fmean, complete.values()))
    several = len(runs) > 1
    return Curve(
        name,
        tuple(map(float, complete)),
        y,
        tuple(map(min, complete.values())) if several else (),
        tuple(map(max, complete.values())) if several else (),
        runs=tuple(run.id for run in runs),
    )
