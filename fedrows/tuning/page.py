"""A search as a page: what was chosen, and the metric by rate, a panel for each length of runs."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import torch

from fedrows.measure.metric_choice import about
from fedrows.report.artefact import Artefact, Cell, Curve, Figure, Panel, ResultTable
from fedrows.study.page import writer
from fedrows.tuning.result import Trial, Tuned
from fedrows.version import __version__


def write(tuned: Tuned, folder: Path, command: str = "") -> Path:
    """Writes the page and its files into a folder; returns the page's path."""
    page = writer()
    facts = {
        "title": f"Rates of {tuned.name}",
        "summary": (
            f"Chosen by the {about(tuned.metric)[0]} on examples that were held out for it; test "
            f"examples had no say. Each algorithm had {tuned.budget:,} rounds."
        ),
        "date": datetime.now(UTC).date().isoformat(),
        "fedrows": __version__,
        "torch": torch.__version__,
        **({"command": command} if command else {}),
    }
    runs = {
        trial.id: {
            "task": tuned.name,
            "algorithm": trial.algorithm,
            "label": f"{trial.shown}, {trial.rounds} rounds",
            "seed": tuned.seed,
            "seconds": trial.seconds,
        }
        for trial in tuned.trials
    }
    folder.mkdir(parents=True, exist_ok=True)
    page.write(folder, [artefact(tuned)], runs, facts, drawn=False)
    return folder / str(page.PAGE)


def artefact(tuned: Tuned) -> Artefact:
    """Tables and figures of a search."""
    titles, rows = tuned.table()
    ids = {name: (trial.id,) for name, trial in tuned.chosen.items()}
    cells = [
        tuple(Cell(text, runs=ids.get(row[0], ()) if i == 2 else ()) for i, text in enumerate(row))
        for row in rows
    ]
    tables = [ResultTable("tune-chosen", "What was chosen", tuple(titles), tuple(cells))]
    if tuned.confirmed:
        titles, rows = tuned.test_table()
        tested = tuple(tuple(map(Cell, row)) for row in rows)
        tables.append(
            ResultTable(
                "tune-test",
                "On test examples, with the chosen values",
                tuple(titles),
                tested,
                "Trained after the choice. Validation examples choose the round of each seed.",
            )
        )
    tables.append(_all_trials(tuned))
    names = dict.fromkeys(axis.name for space in tuned.spaces.values() for axis in space.axes)
    figures = [figure for name in names if (figure := _figure(tuned, name)) is not None]
    return Artefact("tune", f"Search on {tuned.name}", "", tuple(tables), tuple(figures))


def _all_trials(tuned: Tuned) -> ResultTable:
    title, _, digits = about(tuned.metric)
    rows = tuple(
        (
            Cell(trial.algorithm),
            Cell(trial.shown),
            Cell(str(trial.rounds), trial.rounds),
            Cell("diverged")
            if trial.value is None
            else Cell(f"{trial.value:.{digits}f}", trial.value, runs=(trial.id,)),
            Cell(f"{trial.seconds:.1f}", trial.seconds),
        )
        for trial in tuned.trials
    )
    columns = ("algorithm", "values", "rounds", title, "seconds")
    return ResultTable("tune-trials", "All trials", columns, rows)


def _figure(tuned: Tuned, option: str) -> Figure | None:
    """The metric by one option; of several runs with the same value of it, the best."""
    title = about(tuned.metric)[0]
    panels = []
    for rounds in sorted({trial.rounds for trial in tuned.trials}):
        curves = [
            curve
            for name in tuned.spaces
            if (
                curve := _curve(
                    tuned, [t for t in tuned.trials if t.rounds == rounds], name, option
                )
            )
        ]
        values = [x for curve in curves for x in curve.x]
        if values:
            heading = f"After {rounds} round{'s' if rounds > 1 else ''} at most"
            log = min(values) > 0
            panels.append(Panel(heading, option, title, tuple(curves), log_x=log))
    if not panels:
        return None
    return Figure(
        f"tune-{option}",
        f"{title} by {option}",
        tuple(panels),
        "The best at any evaluation of a run. Where other options were searched too, a point is "
        "the best of them.",
    )


def _curve(tuned: Tuned, trials: Sequence[Trial], name: str, option: str) -> Curve | None:
    """One algorithm's best value of the metric by an option whose values are numbers."""
    higher = about(tuned.metric)[1]
    best: dict[float, Trial] = {}
    for trial in trials:
        at = trial.values.get(option)
        if trial.algorithm != name or trial.value is None or not isinstance(at, int | float):
            continue
        before = best.get(at)
        if (
            before is None
            or before.value is None
            or (trial.value > before.value if higher else trial.value < before.value)
        ):
            best[at] = trial
    if not best:
        return None
    points = sorted(best.items())
    return Curve(
        name,
        tuple(float(at) for at, _ in points),
        tuple(float(trial.value or 0.0) for _, trial in points),
        kind="joined",
        runs=tuple(trial.id for _, trial in points),
    )
