"""A new client fits what is its own, in a few local steps, before the model is used for it.

Rows of local tables and personal parts move; everything that clients share stays as it is.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

import torch

from fedrows.data.batches import Batch
from fedrows.data.examples import Examples, index_of
from fedrows.errors import DataError
from fedrows.model import Model
from fedrows.rows.params import Params, Submodels, take
from fedrows.rows.ragged import look_up
from fedrows.seeds import STEP, bits, key


def adapt(
    model: Model,
    params: Params,
    examples: Examples,
    fields: Mapping[str, str],
    own_tables: Collection[str],
    *,
    padded: Collection[str] = (),
    steps: int = 10,
    lr: float = 0.1,
) -> Submodels:
    """One client's own rows after some steps of gradient descent on all its examples.

    examples: of this client alone, where and as the parameters are. fields: the table that each
    field reads; own_tables: the tables whose rows are the client's own, as `FederatedData` has them
    in `fields` and `local`. The parameters do not change: `with_rows` puts the rows in their place.
    """
    if not len(examples):
        raise DataError("A client without examples cannot adapt: give it at least one.")
    alone = replace(examples, splits=torch.tensor([0, len(examples)]))
    index, slots = index_of(params.tables, fields, padded, 1, [alone])
    here = take(params, index, 1)
    every = torch.arange(len(alone), device=alone.label.device)
    stream = key(0, STEP)
    batch = Batch(
        {name: look_up(column, every, nothing=-1)[None] for name, column in slots.items()},
        alone.label[None],  # (1, n)
        None if alone.weight is None else alone.weight[None],
        numbers={name: column[None] for name, column in alone.numbers.items()},
    )
    own = [table for table in here.rows if table in own_tables]
    for step in range(steps):
        if model.random:
            drawn = bits(torch.tensor([stream]), torch.tensor(step)).to(every.device)  # (1,)
            batch = replace(batch, key=drawn)
        gradient = model.gradient(here, batch)
        for table in own:
            here.rows[table].add_(gradient.rows[table], alpha=-lr)
    return Submodels({t: here.index[t] for t in own}, {t: here.rows[t] for t in own}, {})


def with_rows(params: Params, own: Submodels) -> Params:
    """The parameters with a client's own rows; tables that have none of them are not copied."""
    tables = dict(params.tables)
    for table, rows in own.rows.items():
        tables[table] = params.tables[table].index_copy(0, own.index[table].ids, rows)
    return Params(tables, params.dense)
