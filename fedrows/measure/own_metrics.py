"""Metrics that users bring: plain functions of scores, labels and clients.

    def share_above_half(scores, label, client):      # NumPy arrays: (n,), (n,), (n,)
        return (scores > 0.5).mean()

It is in the lines of metrics.jsonl as `test_share_above_half`, and as
`validation_share_above_half` if there are validation examples. For data that are ranked the columns
are others: where each held-out item stands among the sampled items and among all, from 0, and the
client.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from math import nan
from pathlib import Path
from typing import Any

from torch import Tensor

from fedrows.errors import PluginError
from fedrows.files.plugins import refer, why
from fedrows.measure.metric_choice import HELD_OUT

OwnMetric = Callable[[Any, Any, Any], float]
OwnMetrics = Mapping[str, OwnMetric]

TAKEN = (*HELD_OUT, "examples")


def checked(metrics: OwnMetrics) -> dict[str, OwnMetric]:
    """The same metrics; a PluginError if one is no function, or has a name that cannot be."""
    if not isinstance(metrics, Mapping):
        raise PluginError(
            f"metrics is {metrics!r}, but must map names to functions of scores, label and client."
        )
    for name, function in metrics.items():
        if not isinstance(name, str) or not re.fullmatch("[a-z][a-z0-9_]*", name):
            raise PluginError(
                f"A metric is called {name!r}: use small letters, digits and underscores."
            )
        if name in TAKEN:
            raise PluginError(f"The metric {name!r} has the name of a built-in: give it another.")
        if not callable(function):
            raise PluginError(
                f"The metric {name!r} is of type {type(function).__name__}, but must be a function "
                "of scores, label and client."
            )
    return dict(metrics)


def measure(
    metrics: OwnMetrics, scores: Tensor, label: Tensor, owner: Tensor
) -> dict[str, float]:  # fmt: skip
    """The value of every metric by name; NaN without examples."""
    if not metrics or not len(label):
        return dict.fromkeys(metrics, nan)
    columns = [x.detach().cpu() for x in (scores, label, owner)]
    arrays = [(x.double() if x.is_floating_point() else x).numpy() for x in columns]
    values = {}
    for name, function in metrics.items():
        try:
            values[name] = float(function(*(array.copy() for array in arrays)))
        except Exception as error:
            raise PluginError(
                f"The metric {name!r} gave no number for {len(label)} examples ({why(error)})."
            ) from error
    return values


def load_metrics(references: Iterable[str]) -> dict[str, OwnMetric]:
    """The functions behind `module:name` or `file.py:name`, by their names in small letters."""
    functions: dict[str, OwnMetric] = {}
    for text in references:
        function, _, _ = refer(text, f"The metric {text!r}", "name")
        name = text.rpartition(":")[2].lower()
        if name in functions:
            raise PluginError(f"Two metrics are called {name!r}: give one of them another name.")
        functions[name] = function
    return checked(functions)


def absolute(reference: str) -> str:
    """The same reference, its file by an absolute path: a run may go on from another folder."""
    where, colon, word = reference.rpartition(":")
    if not where.endswith(".py"):
        return reference
    return f"{Path(where).expanduser().absolute()}{colon}{word}"
