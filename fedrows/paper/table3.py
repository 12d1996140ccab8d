"""Table 3 and Figure 4, with the appendix's Figure 7: FedSubAvg with K clients a round, K varied.

The target is that of Table 2; where it is CentralSGD's, CentralSGD has the default K.
"""

from __future__ import annotations

from functools import partial

from fedrows.measure.summary import METRICS, show_rounds
from fedrows.measure.trivial_baselines import NAMES
from fedrows.paper.cells import Levels, curve, goal, guides, ids, level_cell, printed, stat_cell
from fedrows.paper.evaluated_task import EvaluatedTask
from fedrows.paper.experiment import Experiment, Work
from fedrows.paper.task_runs import RunGroup, sweep, trivial
from fedrows.paper.tasks import TASKS
from fedrows.report.artefact import Artefact, Cell, Figure, Panel, ResultTable

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
    columns = ["FedSubAvg", f"Rounds to {goal(block.target)}"]
    for metric in task.metrics:
        columns += [f"Best {METRICS[metric][0]}", f"Final {METRICS[metric][0]}"]
    rows = []
    for name in shown:
        entry, runs = block.entries[name], block.runs[name]
        paper = task.sweep.get(int(name.removeprefix("K = "))) if beside else None
        cells = [
            Cell(name, runs=ids(runs)),
            Cell(show_rounds(entry), block.first(name), paper, printed(paper), ids(runs)),
        ]
        for metric in task.metrics:
            stats = entry["metrics"][metric]
            cells += [stat_cell(stats[kind], metric, runs) for kind in ("best", "final")]
        rows.append(tuple(cells))
    for name, level in levels.items():
        cells = [Cell(NAMES[name]), Cell("–")]
        for metric in task.metrics:
            cells += [level_cell(level[metric], metric), Cell("–")]
        rows.append(tuple(cells))
    return ResultTable(
        f"table3-{task.key}",
        f"{task.name}: FedSubAvg with K varied",
        tuple(columns),
        tuple(rows),
        f"{task.caveat} {reduced}".rstrip(),
    )


def _figure(
    task: EvaluatedTask, block: RunGroup, shown: list[str], levels: Levels, number: int
) -> Figure:
    metric = task.metrics[number]
    key, title = _FIGURES[number]
    what = METRICS[metric][0]
    curves = (
        *(curve(name, block.runs[name], metric) for name in shown),
        *guides(levels, metric, max(map(block.rounds, shown))),
    )
    panel = Panel(task.name, "round", what, curves)
    return Figure(f"{key}-{task.key}", f"{title}: {what} of FedSubAvg on {task.name}", (panel,))


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
