"""Table 3 and Figure 4, with the appendix's Figure 7: FedSubAvg with K clients a round, K varied.

The target is that of Table 2; where it is CentralSGD's, CentralSGD has the default K.
"""

from __future__ import annotations

from functools import partial

from fedrows.measure.summary import METRICS, show_rounds
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
from fedrows.paper.task_runs import RunGroup, sweep, trivial
from fedrows.paper.tasks import TASKS
from fedrows.report.artefact import Artefact, Cell, Figure, ResultTable

_FIGURES = {0: ("figure4", "Figure 4"), 1: ("figure7", "Figure 7")}  # by place in `metrics`


def make(work: Work, task: EvaluatedTask) -> Artefact:
    """Table and figures of one task."""
    work.say(f"{task.name}: FedSubAvg with K varied")
    block, levels = sweep(work, task), trivial(work, task)
    shown = [name for name in block.runs if name != "centralsgd"]
    size = task.size(work)
    table = _table(task, block, shown, levels, size.reduced, beside=size.whole)
    figures = tuple(_figure(task, block, shown, levels, number) for number in range(2))
    rounds = ", ".join(f"{name}: {show_rounds(block.entries[name])}" for name in shown)
    return Artefact(
        f"table3-{task.key}",
        f"Table 3, Figures 4 and 7: FedSubAvg on {task.name} with K varied",
        f"Rounds to the target: {rounds}.",
        (table,),
        figures,
    )


def _table(
    task: EvaluatedTask,
    block: RunGroup,
    shown: list[str],
    levels: Levels,
    reduced: str,
    beside: bool,
) -> ResultTable:
    rows: list[tuple[Cell, ...]] = []
    for name in shown:
        entry, runs = block.entries[name], block.runs[name]
        paper = task.sweep.get(int(name.removeprefix("K = "))) if beside else None
        rounds = Cell(show_rounds(entry), block.first(name), paper, printed(paper), ids(runs))
        rows.append((Cell(name, runs=ids(runs)), rounds, *metric_cells(entry, task.metrics, runs)))
    return ResultTable(
        f"table3-{task.key}",
        f"{task.name}: FedSubAvg with K varied",
        ("FedSubAvg", f"Rounds to {goal(block.target)}", *metric_columns(task.metrics)),
        (*rows, *level_rows(levels, task.metrics, blank=1)),
        f"{task.caveat} {reduced}".rstrip(),
    )


def _figure(
    task: EvaluatedTask, block: RunGroup, shown: list[str], levels: Levels, number: int
) -> Figure:
    metric, (key, title) = task.metrics[number], _FIGURES[number]
    runs, rounds = {name: block.runs[name] for name in shown}, max(map(block.rounds, shown))
    panel = curves_panel(task.name, runs, levels, metric, rounds)
    about = f"{title}: {METRICS[metric][0]} of FedSubAvg on {task.name}"
    return Figure(f"{key}-{task.key}", about, (panel,))


EXPERIMENTS = tuple(
    Experiment(
        f"table3-{task.key}",
        f"Table 3, Figures 4 and 7: K varied on {task.name}",
        partial(make, task=task),
        tasks=(task.key,),
        has_runs=True,
    )
    for task in TASKS
)
