"""Table 3 and Figure 4, with the appendix's Figure 7: FedSubAvg with K clients a round, K varied.

The target is that of Table 2; where it is CentralSGD's, CentralSGD has the default K.
"""

from __future__ import annotations

from fedrows.measure.summary import METRICS, show_rounds
from fedrows.measure.trivial_baselines import NAMES
from fedrows.paper.comparing import Block, sweep, trivial
from fedrows.paper.curves import Levels, curve, goal, guides, ids, level_cell, printed, stat_cell
from fedrows.paper.evaluated import Evaluated
from fedrows.paper.experiment import Experiment, Work
from fedrows.report.artefact import Artefact, Cell, Figure, Panel, ResultTable

_FIGURES = {0: ("figure4", "Figure 4"), 1: ("figure7", "Figure 7")}  # by place in `metrics`


def experiment(its: Evaluated) -> Experiment:
    """The experiment of one task."""
    return Experiment(
        f"table3-{its.task}",
        f"Table 3, Figures 4 and 7: K varied on {its.name}",
        lambda work: make(work, its),
        tasks=(its.task,),
    )


def make(work: Work, its: Evaluated) -> Artefact:
    """Table and figures of one task."""
    work.say(f"{its.name}: FedSubAvg with K varied")
    block, levels = sweep(work, its), trivial(work, its)
    shown = [name for name in block.runs if name != "centralsgd"]
    size = its.size(work)
    table = _table(its, block, shown, levels, size.reduced, beside=size.whole)
    figures = tuple(_figure(its, block, shown, levels, place) for place in range(2))
    rounds = ", ".join(f"{name}: {show_rounds(block.found[name])}" for name in shown)
    return Artefact(
        f"table3-{its.task}",
        f"Table 3, Figures 4 and 7: FedSubAvg on {its.name} with K varied",
        f"Rounds to the target: {rounds}.",
        (table,),
        figures,
    )


def _table(
    its: Evaluated, block: Block, shown: list[str], levels: Levels, reduced: str, beside: bool
) -> ResultTable:
    columns = ["FedSubAvg", f"Rounds to {goal(block.target)}"]
    for metric in its.metrics:
        columns += [f"Best {METRICS[metric][0]}", f"Final {METRICS[metric][0]}"]
    rows = []
    for name in shown:
        entry, runs = block.found[name], block.runs[name]
        paper = its.sweep.get(int(name.removeprefix("K = "))) if beside else None
        cells = [
            Cell(name, runs=ids(runs)),
            Cell(show_rounds(entry), block.first(name), paper, printed(paper), ids(runs)),
        ]
        for metric in its.metrics:
            stats = entry["metrics"][metric]
            cells += [stat_cell(stats[kind], metric, runs) for kind in ("best", "final")]
        rows.append(tuple(cells))
    for name, level in levels.items():
        cells = [Cell(NAMES[name]), Cell("–")]
        for metric in its.metrics:
            cells += [level_cell(level[metric], metric), Cell("–")]
        rows.append(tuple(cells))
    return ResultTable(
        f"table3-{its.task}",
        f"{its.name}: FedSubAvg with K varied",
        tuple(columns),
        tuple(rows),
        f"{its.caveat} {reduced}".rstrip(),
    )


def _figure(its: Evaluated, block: Block, shown: list[str], levels: Levels, place: int) -> Figure:
    metric = its.metrics[place]
    key, title = _FIGURES[place]
    what = METRICS[metric][0]
    curves = (
        *(curve(name, block.runs[name], metric) for name in shown),
        *guides(levels, metric, max(map(block.rounds, shown))),
    )
    panel = Panel(its.name, "round", what, curves)
    return Figure(f"{key}-{its.task}", f"{title}: {what} of FedSubAvg on {its.name}", (panel,))
