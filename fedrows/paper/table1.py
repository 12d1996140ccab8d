"""Table 1 and the appendix's Figure 5: clients, samples, and how hot features are.

Heat is counted over training and test examples together, as a data set is described. Dispersion is
over all features of the tables that are shared: on MovieLens gender is one, so the number of male
users stands in the enumerator; user ids, which have one client each, are left out. The figure shows
movies, words and items.
"""

from __future__ import annotations

import torch

from fedrows.data.federation import FederatedData
from fedrows.paper.cells import printed
from fedrows.paper.evaluated_task import EvaluatedTask
from fedrows.paper.experiment import Experiment, Work
from fedrows.paper.tasks import TASKS
from fedrows.report.artefact import Artefact, Cell, Curve, Figure, Panel, ResultTable
from fedrows.rows.heat import Heat

FEATURES = {  # table, group of its rows, and what they are called
    "movielens": ("weight", "movie", "movies"),
    "sent140": ("token", None, "words"),
    "amazon": ("item", None, "items"),
    "taobao": ("item", None, "items"),
}
HEAD = 0.1  # the share of the hottest features that the first figure shows
BINS = 40


def make(work: Work) -> Artefact:
    """The table and the heat distributions."""
    rows, head, whole, notes = [], [], [], []
    for task in TASKS:
        work.say(f"{task.name}: counting heat")
        data = work.load(task.key)
        heat = shared_heat(task, data)
        rows.append(_row(task, data, heat))
        shown, noun = _features(task, data, heat)
        head.append(Panel(task.name, "heat", f"{noun} with that heat", (_head(shown, noun),)))
        whole.append(
            Panel(task.name, "heat", f"{noun} with that heat", (_whole(shown, noun),), True, True)
        )
        notes.append(f"{task.name}: {task.caveat}")
        notes += [f"{task.name}: {note}" for note in data.notes]
    columns = ("data", "clients", "samples", "samples per client", "feature heat dispersion")
    return Artefact(
        "table1",
        "Table 1 and Figure 5: the data sets, and how hot their features are",
        "Every data set has features that one client holds and features that hundreds or thousands "
        "hold.",
        (ResultTable("table1", "The four data sets", columns, tuple(rows), " ".join(notes)),),
        (
            Figure(
                "figure5",
                "Figure 5: heat of the head features",
                tuple(head),
                f"As the paper draws it, on linear axes: the hottest {HEAD:.0%} of the features, "
                f"counted in {BINS} bins of equal width.",
            ),
            Figure(
                "figure5-whole",
                "Figure 5 with the whole tail, log-log",
                tuple(whole),
                "Every heat that occurs, and how many features have it.",
            ),
        ),
    )


def shared_heat(task: EvaluatedTask, data: FederatedData) -> Heat:
    """How many clients hold each feature that more than one client may hold."""
    return data.heat_over_all()[FEATURES[task.key][0]]


def _row(task: EvaluatedTask, data: FederatedData, heat: Heat) -> tuple[Cell, ...]:
    clients = len(data.test.splits) - 1
    samples = len(data.train) + len(data.validation) + len(data.test)
    values = (clients, samples, samples / clients, heat.dispersion)
    texts = (f"{clients:,}", f"{samples:,}", f"{samples / clients:.1f}", f"{heat.dispersion:,.0f}")
    return (
        Cell(task.name),
        *(
            Cell(text, float(value), paper, printed(paper))
            for text, value, paper in zip(texts, values, task.statistics, strict=True)
        ),
    )


def _features(task: EvaluatedTask, data: FederatedData, heat: Heat) -> tuple[Heat, str]:
    """The heat of the movies, words or items alone, and their name."""
    table, group, noun = FEATURES[task.key]
    return (heat if group is None else heat.between(*data.groups[table][group])), noun


def _head(heat: Heat, noun: str) -> Curve:
    """How many of the hottest features are in each bin of heat."""
    counts, _ = torch.sort(heat.counts, descending=True)
    hot = counts[: max(1, round(HEAD * len(counts)))]
    low, high = float(hot.min()), float(hot.max())
    if low == high:
        return Curve(noun, (low,), (float(len(hot)),))
    features = torch.histc(hot, BINS, low, high)
    width = (high - low) / BINS
    return Curve(
        noun, tuple(low + (at + 0.5) * width for at in range(BINS)), tuple(features.tolist())
    )


def _whole(heat: Heat, noun: str) -> Curve:
    """How many features have each heat."""
    values, features = torch.unique(heat.counts, return_counts=True)
    return Curve(noun, tuple(values.tolist()), tuple(map(float, features.tolist())), kind="dots")


EXPERIMENT = Experiment(
    "table1",
    "Table 1 and Figure 5: the data sets and the heat of their features",
    make,
    tasks=tuple(task.key for task in TASKS),
)
