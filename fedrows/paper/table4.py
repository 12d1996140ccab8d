"""Table 4: the learning rates that the runs use, beside the paper's; and the searched ones.

The first table reads the tasks' presets, so it cannot say anything else than what runs. With
`--search` the search is done again, and every candidate is shown.
"""

from __future__ import annotations

from fedrows import catalogue
from fedrows.errors import FedrowsError
from fedrows.measure.metric_choice import best_value
from fedrows.measure.summary import METRICS, display
from fedrows.paper import rates_search
from fedrows.paper.cells import ids
from fedrows.paper.evaluated_task import ALL, EvaluatedTask, Rates
from fedrows.paper.experiment import Experiment, Work
from fedrows.paper.rates_search import SearchedRates
from fedrows.paper.tasks import TASKS
from fedrows.report.artefact import Artefact, Cell, ResultTable
from fedrows.runs.settings import presets

LOCAL = tuple(name for name in ALL if name != "fedadam")  # Table 5 has FedAdam


def make(work: Work) -> Artefact:
    """The rates of the presets and the searched ones; with a search, its candidates too."""
    rows, tables = [], []
    for task in TASKS:
        if anew := rates_search.searches(work, task):
            work.say(f"{task.name}: searching learning rates")
        try:
            searched = rates_search.searched(work, task)
            tables += [_candidates(work, task, searched.by)] if anew else []
        except FedrowsError as error:  # such as data that are missing
            searched = SearchedRates(f"Not searched: {error}", "", (), {})
        cells = (_rate(searched.rates.get(name), name in searched.at_edge) for name in ALL)
        rows.append((Cell(task.name), *cells, Cell(searched.by)))
    return Artefact(
        "table4",
        "Table 4: learning rates",
        "The runs at the paper's rates have its Table 4; FedAdam's are in Table 5.",
        (_presets(), _searched(rows), *tables),
    )


def _presets() -> ResultTable:
    rows = []
    for task in TASKS:
        cells = [Cell(task.name)]
        for name in LOCAL:
            rate = presets(catalogue.task(task.key), name)[0]["lr"]
            paper = task.lr.get(name)
            cells.append(Cell(f"{rate:g}", rate, None if paper is None else f"{paper:g}", paper))
        rows.append(tuple(cells))
    return ResultTable(
        "table4",
        "Learning rates of the presets",
        ("", *map(display, LOCAL)),
        tuple(rows),
        "The paper's Scaffold is the server-side approximation on the CTR tasks. What the paper "
        "does not have is run at FedSubAvg's rates. Amazon's rates are multiplied by 0.999 after "
        "every round, and gradients of the CTR tasks are clipped at norm 5, as in the code of the "
        "paper's authors.",
    )


def _rate(rates: Rates | None, edge: bool) -> Cell:
    return Cell("–") if rates is None else Cell(rates_search.show(rates) + ("*" if edge else ""))


def _searched(rows: list[tuple[Cell, ...]]) -> ResultTable:
    return ResultTable(
        "table4-searched",
        "Searched learning rates",
        ("", *map(display, ALL), "how"),
        tuple(rows),
        "* at the edge of what was tried: others beyond might do better. The last column says on "
        "which examples the rates were chosen.",
    )


def _candidates(work: Work, task: EvaluatedTask, by: str) -> ResultTable:
    rows = []
    title, _, digits = METRICS[rates_search.choice(task)]
    for name, tried in rates_search.search(work, task).items():
        for rate, run in tried:
            value = best_value(run.lines, rates_search.choice(task))
            text = "diverged" if value is None else f"{value:.{digits}f}"
            outcome = Cell(text, value, runs=ids([run]))
            rows.append((Cell(display(name)), Cell(rates_search.show(rate)), outcome))
    return ResultTable(
        f"table4-search-{task.key}",
        f"The search on {task.name}",
        ("algorithm", "rate", f"best {title}"),
        tuple(rows),
        by,
    )


EXPERIMENT = Experiment("table4", "Table 4: learning rates, and their search", make, has_runs=True)
