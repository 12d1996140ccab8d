"""The loss that a client reports: that of the submodel it was sent, before it trains."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from fedrows.data.batches import LocalData
from fedrows.data.examples import Examples
from fedrows.model import Model
from fedrows.rows.params import Params, Submodels
from fedrows.rows.ragged import Column, Ragged

LOSS_EXAMPLES = 1_000  # of each client


def losses(model: Model, local: LocalData, start: Submodels, keys: Tensor | None = None) -> Tensor:
    """Each client's mean loss over its first examples, of the submodel it was sent: (K,).

    keys (K,): of the clients' streams of negatives. Of ranking data it is the loss of each
    example's item among negatives from the client's pool of the round.
    """
    return torch.stack(
        [_loss(model, local, i, start.slice(i, i + 1), keys) for i in range(len(local.clients))]
    )


def _loss(
    model: Model, local: LocalData, client: int, submodel: Submodels, keys: Tensor | None
) -> Tensor:
    """One client's mean loss: its rows are a small model, and its slots the ids of that one."""
    low, size = int(local.starts[client]), int(local.sizes[client])
    some = torch.arange(low, low + min(size, LOSS_EXAMPLES))
    splits = torch.tensor([0, len(local.label)])
    own = Examples(splits, dict(local.slots), local.label, dict(local.numbers)).pick(some)
    first = {table: int(table in local.padded) for table in submodel.rows}  # row 0 is padding
    shifted = {name: _shifted(x, first[local.fields[name]]) for name, x in own.ids.items()}
    tables = {
        table: torch.cat([rows.new_zeros(first[table], rows.shape[1]), rows])
        for table, rows in submodel.rows.items()
    }
    params = Params(tables, {name: x[0] for name, x in submodel.dense.items()})
    examples = replace(own, ids=shifted)
    with torch.no_grad():
        model.calibrate(params, examples)
        fields = examples.fields(torch.arange(len(some)))
        if local.pools is not None and keys is not None:
            name, only = local.pools.field, slice(client, client + 1)
            positives = own.ids[name]
            assert isinstance(positives, Tensor)
            candidates = local.pools.slice(client, client + 1).beside(positives, keys[only])
            fields[name] = candidates + first[local.fields[name]]
        scores = model.scores(params, fields)
        return model.loss(scores, examples.label).mean()


def _shifted(column: Column, by: int) -> Column:
    if isinstance(column, Ragged):
        return replace(column, values=column.values + by)
    return column + by
