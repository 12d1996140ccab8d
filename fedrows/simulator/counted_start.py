"""A counted start: biases that begin at log-odds, which were counted before the first round.

    the model's one bias          logit(p)
    the bias of an item           its log-odds minus the prior's
    the bias of a client's row    likewise, worked out on the client, where it stays

The untrained model then scores as well as counting does. The rounds learn what counting cannot.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from fedrows.data.federation import FederatedData
from fedrows.data.label_counts import LabelCounts, client_log_odds, items_of, label_sets
from fedrows.errors import PlanError
from fedrows.model import Biases, Model
from fedrows.plan import Plan
from fedrows.rows.heat import heat_of
from fedrows.rows.params import Params


def check_counted(model: Model, plan: Plan) -> Biases:
    """The biases that a counted start fills; a PlanError if there can be none."""
    if model.biases is None:
        raise PlanError(
            f"start is {plan.start!r}, but the model names no biases that could start "
            "there: choose start zero, or a model such as mf or logistic."
        )
    if model.biases.general not in model.schema.dense:
        raise PlanError(
            f"start is {plan.start!r}, but the model's {model.biases.general!r}, which starts at "
            "what all clients like, is a personal part: choose start zero, or leave it out of "
            "personal."
        )
    if plan.tables != "memory":
        raise PlanError(
            f"start is {plan.start!r}, but tables is {plan.tables!r}, and rows in files start by "
            "their ids alone: choose tables memory, or start zero."
        )
    return model.biases


def count_labels(data: FederatedData) -> LabelCounts:
    """The two counters of every item, in the clear."""
    table, (examples, positives) = items_of(data), label_sets(data)
    ones = torch.ones(data.clients, dtype=torch.float64)
    have, like = heat_of(examples, ones), heat_of(positives, ones)
    return LabelCounts(table, have.ids, have.counts, like.counts)


def start_counted_(
    params: Params, biases: Biases, data: FederatedData, counts: LabelCounts, plan: Plan
) -> None:
    """Sets the biases of a model that has not been trained yet."""
    start_shared_(params, biases, counts, counts.table in data.padded, plan)
    for table, levels in own_levels(biases, data, counts.prior, plan).items():
        rows = params.tables[table]
        rows[data.index[table].ids.to(rows.device), biases.columns[table]] = levels.to(rows)


def start_shared_(
    params: Params, biases: Biases, counts: LabelCounts, padded: bool, plan: Plan
) -> None:
    """Sets the biases that all clients share. padded: whether row 0 of the items is no item."""
    params.dense[biases.general].fill_(math.log(counts.prior / (1 - counts.prior)))
    if counts.table in biases.columns:
        rows = params.tables[counts.table]
        ids, levels = counts.ids, counts.log_odds(plan.start_pseudo)
        if plan.start_near:  # also of rows that nobody has counted; row 0 may be no item
            ids = torch.arange(int(padded), len(rows))
            levels = counts.log_odds_near(len(rows), plan.start_near, plan.start_pseudo)[ids]
        elif padded:  # counts with noise have that row, too
            ids, levels = ids[ids > 0], levels[ids > 0]
        rows[ids.to(rows.device), biases.columns[counts.table]] = levels.to(rows)


def own_levels(
    biases: Biases, data: FederatedData, prior: float, plan: Plan
) -> dict[str, Tensor]:  # fmt: skip
    """Where the biases begin that clients keep: for each table with one row a client, (N,)."""
    own = client_log_odds(data, prior, plan.start_pseudo)
    tables = data.local & biases.columns.keys()
    return {table: own for table in tables if bool((data.index[table].lengths == 1).all())}
