"""The metrics of a line of metrics.jsonl, and which round of a run is its best.

Test examples choose nothing where there are validation examples: the best test AUC of a run is then
the one of the round with the best validation AUC, and likewise for every other test metric.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

Line = dict[str, Any]
About = tuple[str, bool, int]  # title, True where higher is better, digits shown
VALIDATION, TEST = "validation", "test"
DIVERGED = "diverged"  # in a line without numbers: why the run has none from here on
BEST_ROUND = "best_round"  # in a line of a run with patience: the best round up to it

# What is measured on held-out examples
HELD_OUT: dict[str, About] = {
    "loss": ("loss", False, 4),
    "accuracy": ("accuracy", True, 3),
    "auc": ("AUC", True, 3),
    "gauc": ("GAUC", True, 3),
    "rmse": ("RMSE", False, 4),
    "mae": ("MAE", False, 4),
    "hr10": ("HR@10", True, 3),  # of rankings: against sampled items, and against all of them
    "ndcg10": ("NDCG@10", True, 3),
    "mrr": ("MRR", True, 3),
    "hr10_all": ("HR@10 of all", True, 3),
    "ndcg10_all": ("NDCG@10 of all", True, 3),
    "mrr_all": ("MRR of all", True, 3),
}
METRICS: dict[str, About] = {"train_loss": ("train loss", False, 4)} | {
    f"{part}_{name}": (f"{part} {title}", higher, digits)
    for part in (VALIDATION, TEST)
    for name, (title, higher, digits) in HELD_OUT.items()
}


def is_metric(name: str) -> bool:
    """Whether a line has a metric under this name: one of ours, or of the user's own."""
    return name in METRICS or name.startswith((f"{VALIDATION}_", f"{TEST}_"))


def about(metric: str) -> About:
    """A metric's title, whether higher is better, and its digits.

    Of a metric of the user's own, higher is better unless its name ends in loss or error.
    """
    if metric in METRICS:
        return METRICS[metric]
    return metric.replace("_", " "), not metric.endswith(("loss", "error")), 4


def measured(lines: Iterable[Mapping[str, Any]]) -> list[str]:
    """The metrics that lines have a value of: ours in the order of METRICS, then the user's own."""
    present = dict.fromkeys(
        name
        for line in lines
        for name in line
        if is_metric(name) and number(line[name]) is not None
    )
    return [name for name in METRICS if name in present] + [n for n in present if n not in METRICS]


def chooses(metric: str) -> str:
    """The metric that chooses the round in which another is reported: test_auc → validation_auc."""
    part, _, name = metric.partition("_")
    return f"{VALIDATION}_{name}" if part == TEST else metric


def best_value(curve: Sequence[Line], metric: str) -> float | None:
    """The best value of a metric; of a test metric, the one where its validation metric is best.

    Of rounds that are equally good the first counts. None if there is no value.
    """
    line = best_line(curve, metric)
    return None if line is None else number(line.get(metric))


def best_line(curve: Sequence[Line], metric: str) -> Line | None:
    """The line whose round is chosen for a metric: on validation examples if there are any."""
    by = chooses(metric)
    if all(number(line.get(by)) is None for line in curve):
        by = metric
    known = [(v, line) for line in curve if (v := number(line.get(by))) is not None]
    sign = 1 if about(by)[1] else -1
    return max(known, key=lambda pair: sign * pair[0], default=(None, None))[1]


def chosen_line(curve: Sequence[Line]) -> Line:
    """The line of the model that counts: the last, or the best of a run that kept that."""
    best = curve[-1].get(BEST_ROUND)
    return next((line for line in curve if line["round"] == best), curve[-1])


def number(value: Any) -> float | None:
    """The value as a finite number; None for anything else (null, NaN, infinity, text)."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)
