"""Table 2 and Figure 3, with the appendix's Figure 6: the algorithms side by side on one task.

Rounds to the target are by the paper's rule: the best train loss of CentralSGD, seed by seed, or an
AUC of 0.6; only evaluated rounds count. Beside the rates of the paper stand searched ones, where
the rule is applied to the searched CentralSGD. Two ablations, the holders' mean and the stepped-on
mean, the bounded correction, and the trivial baselines are in every table and beside every curve.
"""

from __future__ import annotations

from functools import partial
from statistics import fmean
from typing import Any

from fedrows.measure.summary import METRICS, display, number, show, show_rounds, show_speed_up
from fedrows.measure.trivial_baselines import PSEUDO
from fedrows.paper import rates_search
from fedrows.paper.cells import (
    Levels,
    curves_panel,
    goal,
    ids,
    level_rows,
    metric_cells,
    metric_columns,
    printed,
)
from fedrows.paper.evaluated_task import EvaluatedTask
from fedrows.paper.experiment import Experiment, Work
from fedrows.paper.task_runs import RunGroup, compare, trivial
from fedrows.paper.tasks import TASKS
from fedrows.report.artefact import Artefact, Cell, Curve, Figure, Panel, ResultTable
from fedrows.study import FinishedRun

WHICH = {"paper": "the paper's rates", "searched": "searched rates"}
_FIGURES = {0: ("figure3", "Figure 3"), 1: ("figure6", "Figure 6")}  # by place in `metrics`


def make(work: Work, task: EvaluatedTask) -> Artefact:
    """Tables and figures of one task."""
    work.say(f"{task.name}: the algorithms at the paper's rates and at searched rates")
    blocks, levels = compare(work, task), trivial(work, task)
    notes = {
        "paper": _sentences(task.caveat, task.size(work).reduced),
        "searched": _sentences(rates_search.searched(work, task).by, task.size(work).reduced),
    }
    tables = [
        _table(task, which, block, levels, notes[which], beside=task.size(work).whole)
        for which, block in blocks.items()
    ]
    tables += [table for which, block in blocks.items() if (table := _by_heat(task, which, block))]
    figures = [_figure(task, blocks, levels, number) for number in range(2)]
    if any(_buckets(block) for block in blocks.values()):
        figures.append(_heat_figure(task, blocks))
    return Artefact(
        f"table2-{task.key}",
        f"Table 2, Figures 3 and 6: {task.model} on {task.name}",
        _summary(task, blocks),
        tuple(tables),
        tuple(figures),
    )


def _table(
    task: EvaluatedTask, which: str, block: RunGroup, levels: Levels, note: str, beside: bool
) -> ResultTable:
    """The table at some rates; the paper's values stand `beside` ours where runs are like its."""
    beside = beside and which == "paper"
    rows = [_row(task, block, name, beside) for name in block.runs]
    about = (
        f"Best values are the best of all evaluated rounds, also on test examples, as the paper "
        f"has them. ± is the sample standard deviation over seeds. Speed-up is over FedAvg. "
        f"{'* at the edge of what was tried. ' if block.at_edge else ''}The last rows "
        f"only count training examples ({PSEUDO:g} pseudo-examples at the prior; both means are "
        f"added as logits)."
    )
    return ResultTable(
        f"table2-{task.key}-{which}",
        f"{task.name}, {task.model}, at {WHICH[which]}",
        (
            *("Algorithm", "Rate", f"Rounds to {goal(block.target)}", "Speed-up"),
            *metric_columns(task.metrics),
        ),
        (*rows, *level_rows(levels, task.metrics, blank=3)),
        f"{note} {about}",
    )


def _row(task: EvaluatedTask, block: RunGroup, name: str, beside: bool) -> tuple[Cell, ...]:
    entry, runs = block.entries[name], block.runs[name]
    rounds = task.rounds.get(name) if beside else None
    speed = entry["speed_up"]
    best = {task.metric: task.best[name]} if beside and name in task.best else {}
    return (
        Cell(display(name), runs=ids(runs)),
        Cell(rates_search.show(block.rates[name]) + ("*" if name in block.at_edge else "")),
        Cell(show_rounds(entry), block.first(name), rounds, printed(rounds), ids(runs)),
        Cell(show_speed_up(speed), None if speed is None else speed["value"], runs=ids(runs)),
        *metric_cells(entry, task.metrics, runs, best),
    )


def _figure(
    task: EvaluatedTask, blocks: dict[str, RunGroup], levels: Levels, number: int
) -> Figure:
    metric, (key, title) = task.metrics[number], _FIGURES[number]
    panels = []
    for which, block in blocks.items():
        runs = {display(name): own for name, own in block.runs.items()}
        rounds = max(map(block.rounds, block.runs))
        panels.append(curves_panel(f"at {WHICH[which]}", runs, levels, metric, rounds))
    note = "The bands are ± one sample standard deviation over seeds; the levels only count."
    about = f"{title}: {METRICS[metric][0]} on {task.name}"
    return Figure(f"{key}-{task.key}", about, tuple(panels), note)


def _buckets(block: RunGroup) -> list[dict[str, Any]]:
    """The buckets by heat of the data; none if they do not say what an example is about."""
    run = next(iter(block.runs.values()))[0]
    return list(run.lines[-1]["buckets"])


def _by_heat(task: EvaluatedTask, which: str, block: RunGroup) -> ResultTable | None:
    """Final test loss and AUC by the number of clients that hold what an example is about."""
    buckets = _buckets(block)
    if not buckets:
        return None
    spans = [f"{b['low']:,}–{b['high']:,}" if b["high"] else "0" for b in buckets]
    count = tuple(Cell(f"{b['examples']:,}", float(b["examples"])) for b in buckets)
    rows = [(Cell("test examples"), *count)]
    for metric, title in (("loss", "loss"), ("auc", "AUC")):
        for name, runs in block.runs.items():
            values = [_final(runs, at, metric) for at in range(len(buckets))]
            cells = (
                Cell("–") if v is None else Cell(f"{v:.3f}", v, runs=ids(runs)) for v in values
            )
            rows.append((Cell(f"{display(name)}, {title}"), *cells))
    return ResultTable(
        f"heat-{task.key}-{which}",
        f"{task.name}: final test loss and AUC by heat, at {WHICH[which]}",
        ("clients that hold the item", *spans),
        tuple(rows),
        "Means over seeds after the last round, by the heat of the item in training.",
    )


def _heat_figure(task: EvaluatedTask, blocks: dict[str, RunGroup]) -> Figure:
    panels = []
    for metric, title in (("loss", "test loss"), ("auc", "test AUC")):
        for which, block in blocks.items():
            curves = tuple(_heat_curve(block, name, metric) for name in block.runs)
            label = "clients that hold the item (0 drawn at 0.5)"
            panels.append(Panel(f"{title}, at {WHICH[which]}", label, title, curves, log_x=True))
    return Figure(
        f"heat-{task.key}", f"Final test loss and AUC by heat on {task.name}", tuple(panels)
    )


def _heat_curve(block: RunGroup, name: str, metric: str) -> Curve:
    """A value by heat, drawn in the middle of each bucket."""
    runs = block.runs[name]
    points = [
        (max(b["low"], 0.5) ** 0.5 * max(b["high"], 0.5) ** 0.5, value)
        for at, b in enumerate(_buckets(block))
        if (value := _final(runs, at, metric)) is not None
    ]
    return Curve(
        display(name), tuple(x for x, _ in points), tuple(y for _, y in points), runs=ids(runs)
    )


def _final(runs: list[FinishedRun], at: int, metric: str) -> float | None:
    """A bucket's value after the last round, mean over seeds; None if a seed has none."""
    values = [number(run.lines[-1]["buckets"][at][metric]) for run in runs]
    known = [value for value in values if value is not None]
    return fmean(known) if len(known) == len(runs) else None


def _summary(task: EvaluatedTask, blocks: dict[str, RunGroup]) -> str:
    """FedSubAvg beside FedAvg, at both rates."""
    parts = []
    for which, block in blocks.items():
        if {"fedavg", "fedsubavg"} <= block.runs.keys():
            sub, avg = (
                f"{display(name)} {show_rounds(block.entries[name])} rounds, best "
                + show(block.entries[name]["metrics"][task.metric]["best"], METRICS[task.metric][2])
                for name in ("fedsubavg", "fedavg")
            )
            parts.append(f"At {WHICH[which]}: {sub}; {avg}.")
    return " ".join(parts)


def _sentences(*parts: str) -> str:
    return " ".join(part for part in parts if part)


EXPERIMENTS = tuple(
    Experiment(
        f"table2-{task.key}",
        f"Table 2, Figures 3 and 6: the algorithms on {task.name}",
        partial(make, task=task),
        tasks=(task.key,),
        has_runs=True,
    )
    for task in TASKS
)
