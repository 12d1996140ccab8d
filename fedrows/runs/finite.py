"""Whether a run diverges: a rate that is too large ends in infinity and NaN, or on the way there.

The loss is looked at whenever the plan has an evaluation, and the whole model before it is saved.
So a checkpoint is always finite, and no round is slower. A loss explodes if it is above `TIMES`
times the first one that was evaluated, and above `TIMES`, at two evaluations in a row: a loss that
starts near 0 may rise a lot, and one bad evaluation may be chance. With `go_on` nothing is checked.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isfinite
from typing import Any

from torch import Tensor

from fedrows.errors import NotFiniteError
from fedrows.measure.metric_choice import number
from fedrows.rows.params import Params
from fedrows.runs.run import TrainingRun
from fedrows.tables import SparseTable

TIMES = 100


def check_model(run: TrainingRun) -> None:
    """Raises a NotFiniteError if a number of the model is infinite or NaN.

    O(model), or O(rows that have changed since the last checkpoint) if tables are mapped.
    """
    if run.plan.go_on:
        return
    if odd := not_finite(run.progress.params):
        raise _diverged(run, odd)
    tables = run.progress.table_folder
    if tables is not None and (table := tables.not_finite()):
        raise _diverged(run, f"table {table!r}")


def check_loss(
    run: TrainingRun, line: Mapping[str, Any], before: Sequence[Mapping[str, Any]] = ()
) -> None:
    """Raises a NotFiniteError if the loss in a line of metrics is not finite, or explodes.

    before: the lines of earlier evaluations.
    """
    if run.plan.go_on or not len(run.evaluator.train):
        return
    if not isfinite(line["train_loss"]):
        check_model(run)
        raise _diverged(run, "the training loss")
    if before and is_huge(before) and is_huge([*before, line]):
        first = before[0]
        raise NotFiniteError(
            f"{run.progress.algorithm.name} diverged: after round {run.progress.round} the "
            f"training loss is {line['train_loss']:.3g}, and after round {first['round']} it was "
            f"{first['train_loss']:.3g}, so lower lr, which is {run.plan.lr:g}, or go on all the "
            "same with go-on."
        )


def is_huge(lines: Sequence[Mapping[str, Any]]) -> bool:
    """Whether the loss in the last line is far above the first one."""
    if len(lines) < 2:
        return False
    first, last = (number(line.get("train_loss")) for line in (lines[0], lines[-1]))
    return first is not None and last is not None and last > TIMES * max(first, 1.0)


def not_finite(params: Params) -> str:
    """The first table or dense tensor with a number that is infinite or NaN; "" if there is none.

    Tables that are not in memory are not read.
    """
    for name, table in params.tables.items():
        if not isinstance(table, SparseTable) and not _finite(table):
            return f"table {name!r}"
    return next((f"dense tensor {n!r}" for n, x in params.dense.items() if not _finite(x)), "")


def _finite(x: Tensor) -> bool:
    if not x.numel():
        return True
    low, high = x.aminmax()  # one pass, nothing allocated; a NaN shows in both
    return isfinite(low.item()) and isfinite(high.item())


def _diverged(run: TrainingRun, where: str) -> NotFiniteError:
    return NotFiniteError(
        f"{run.progress.algorithm.name} diverged: after round {run.progress.round} "
        f"{where} is not finite, so lower lr, which is {run.plan.lr:g}."
    )
