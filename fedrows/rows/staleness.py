"""Staleness: what an update counts for if the model has moved since its client read it.

An update that is τ steps late is multiplied by s(τ) = 1 / √(1 + τ). What τ counts is the rule:

    version   the steps of the server since the client read the model (FedBuff, Nguyen et al.,
              AISTATS 2022)
    row       for each row, the steps that moved *this row* since the client read it; dense tensors
              move in every step, and age as one
    none      nothing: s = 1
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from torch import Tensor

from fedrows.rows.index import Index
from fedrows.rows.params import Submodels

Moves = Mapping[str, Tensor]  # table → how often rows were moved


def weigh(
    update: Submodels,
    age: Tensor,
    rule: str,
    moves: Moves,
    read: Moves,
    local: Collection[str] = (),
) -> Submodels:
    """Updates times s(τ); rows of local tables belong to their client, and stay as they are.

    age: the server's steps since each client read the model (K,). moves: of every row of a table
    by now. read: of the rows of the update, when their client read them (R,). Only the rule `row`
    looks at the last two.
    """
    if rule == "none" or not bool(age.any()):
        return update
    by_client = (1 + age.double()).rsqrt_()
    dense = {}
    for name, x in update.dense.items():
        own = by_client.to(x.device, x.dtype)
        dense[name] = x * own.view(-1, *[1] * (x.dim() - 1))  # (K,) → (K, 1, …)
    rows = dict(update.rows)
    for table in rows.keys() - local:
        index, values = update.index[table], rows[table]
        if rule == "version":
            factor = index.spread(by_client.to(values.dtype))
        else:
            moved = moves[table].index_select(0, index.ids).sub_(read[table])
            factor = moved.to(values.dtype).add_(1).rsqrt_()
        rows[table] = values * factor[:, None]
    return Submodels(update.index, rows, dense)


def count_moves_(moves: Moves, index: Mapping[str, Index]) -> None:
    """Adds 1 to every row that a step has moved, however many clients moved it."""
    for table, counts in moves.items():
        ids = index[table].ids
        counts.index_copy_(0, ids, counts.index_select(0, ids).add_(1))
