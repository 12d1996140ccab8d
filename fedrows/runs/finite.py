"""Whether a run is still finite: a rate that is too large ends in infinity and NaN.

The loss is looked at whenever the plan has an evaluation, and the whole model before it is saved.
So a checkpoint is always finite, and no round is slower.
"""

from __future__ import annotations

from math import isfinite
from typing import Any

from torch import Tensor

from fedrows.errors import NotFiniteError
from fedrows.rows.params import Params
from fedrows.runs.run import TrainingRun
from fedrows.tables import SparseTable


def check_model(run: TrainingRun) -> None:
    """Raises a NotFiniteError if a number of the model is infinite or NaN.

    O(model), or O(rows that have changed since the last checkpoint) if tables are mapped.
    """
    if odd := not_finite(run.progress.params):
        raise _diverged(run, odd)
    tables = run.progress.table_folder
    if tables is not None and (table := tables.not_finite()):
        raise _diverged(run, f"table {table!r}")


def check_loss(run: TrainingRun, line: dict[str, Any]) -> None:
    """Raises a NotFiniteError if the loss in a line of metrics is infinite or NaN."""
    if isfinite(line["train_loss"]) or not len(run.evaluator.train):
        return
    check_model(run)
    raise _diverged(run, "the training loss")


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
