"""What a model is worth to clients that never trained, before and after they fit what is their own.

A new client has the rows of local tables and the personal parts that everybody began with. Here it
fits them in a few steps of gradient descent on the first of its examples, and is measured on the
rest. What clients share stays as it is.
"""

from __future__ import annotations

from math import ceil
from typing import Any

import torch
from torch import Tensor

from fedrows.data.examples import Examples
from fedrows.data.federation import FederatedData
from fedrows.data.personal import with_personal
from fedrows.errors import DataError, PlanError
from fedrows.lifting.adapt import adapt, with_rows
from fedrows.lifting.lifted import Lifted
from fedrows.measure.metrics import measured
from fedrows.model import Model
from fedrows.rows.params import Params


def new_clients(
    model: Model,
    params: Params,
    data: FederatedData,
    *,
    share: float = 0.5,
    steps: int = 10,
    lr: float = 0.1,
) -> dict[str, Any]:
    """How many new clients there are, and the metrics of their examples: `start` and `fitted`.

    New are the clients of the data that have test examples but none to train on. Each fits on the
    first `share` of its test examples, at least one, and is measured on the others, at least one; a
    client with a single example is left out. params: of a finished run, with its tables in memory.
    """
    if isinstance(model, Lifted) and model.personal is not None:
        data = with_personal(data)
    if data.labels == "ranking":
        raise DataError("Ranking data have no labels that a new client could fit: leave it out.")
    if not data.local:
        raise DataError(
            f"{data.name} has no local table and the model no personal part: a new client has "
            "nothing to fit."
        )
    if not 0 < share < 1:
        raise PlanError(f"share is {share}, but must be between 0 and 1.")
    like = next(iter(params.dense.values()), next(iter(params.tables.values())))
    test = data.test.to(like.device, like.dtype)
    sizes = data.test.splits.diff()
    new = [c for c in range(data.clients, len(sizes)) if int(sizes[c]) > 1]
    if not new:
        raise DataError(
            f"{data.name} has no new client with two examples: hold out all examples of some "
            "clients for the test."
        )
    parts: dict[str, list[Tensor]] = {"start": [], "fitted": []}
    labels, owners = [], []
    for client in new:
        own = test.of(torch.tensor([client]))
        first = min(ceil(share * len(own)), len(own) - 1)
        every = torch.arange(len(own), device=like.device)
        known, asked = own.pick(every[:first]), own.pick(every[first:])
        rows = adapt(
            model, params, known, data.fields, data.local, padded=data.padded, steps=steps, lr=lr
        )
        parts["start"].append(_scores(model, params, asked))
        parts["fitted"].append(_scores(model, with_rows(params, rows), asked))
        labels.append(asked.label)
        owners.append(torch.full_like(every[first:], client))
    label, owner = torch.cat(labels), torch.cat(owners)
    result: dict[str, Any] = {"clients": len(new), "examples": len(label)}
    for name, scored in parts.items():
        scores = torch.cat(scored)
        result[name] = measured(data.labels, scores, model.loss(scores, label), label, owner)
    return result


def _scores(model: Model, params: Params, examples: Examples) -> Tensor:
    """The score of every example of one client."""
    every = torch.arange(len(examples), device=examples.label.device)
    with torch.no_grad():
        return model.scores(params, examples.fields(every))
