"""What a party does in a private round: one client of a simulation, or a node with its clients.

    rows for the union      `RowSpace.places` of what its clients hold
    rows it asks for        `Asking.wanted`, client by client
    training                `train_on_asked`: on the examples whose rows were asked for
    its part in the sum     `contribute` of a mechanism, such as `WeightedMean`
    what it keeps           rows held back (`keep_`), and the rows of local tables

A cohort of K parties is done at once, and one party just the same: nothing here knows which.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from fedrows.client import Upload
from fedrows.data.batches import LocalData, local_data
from fedrows.data.federation import FederatedData
from fedrows.data.narrow import in_common, narrow, part_of
from fedrows.privacy.row_space import RowSpace
from fedrows.rows.index import Index
from fedrows.rows.params import Submodels

Train = Callable[[LocalData, Submodels, "Submodels | None"], Upload]


@dataclass(frozen=True, eq=False)
class AskedTraining:
    """What came of training on the rows that clients asked for."""

    clients: Tensor  # (A,), who trained, as places in the cohort
    local: LocalData | None  # the examples they trained on; None if nobody did
    start: Submodels  # where they started
    update: Submodels  # what they made of it, before anything is divided or weighted
    left_out_share: float  # of the cohort's examples, for want of a row


def train_on_asked(
    data: FederatedData,
    cohort: Tensor,
    asked: Mapping[str, Index],
    present: Tensor,
    start: Submodels,
    sent: Submodels | None,
    train: Train,
) -> AskedTraining:
    """Trains each client on the examples whose rows it both holds and has asked for.

    asked: table → what each client of the cohort asks for, of shared tables. present: whether
    each came through the union (K,). start, sent: over the rows asked for, and all rows of local
    tables. A client without such an example sits the round out.
    """
    held = {table: index.select(cohort) for table, index in data.index.items()}
    if bool(present.all()) and all(_same(held[t], sets) for t, sets in asked.items()):
        local, start = local_data(data, cohort), replace(start, index=held)
        update = train(local, start, sent).update
        return AskedTraining(torch.arange(len(cohort)), local, start, update, 0.0)
    who = torch.nonzero(present).flatten()
    rows = {t: in_common(held[t].select(who), sets.select(who)) for t, sets in asked.items()}
    left, splits = narrow(data, cohort[who], rows), data.train.splits
    clients, examples = who[left.clients], int((splits[cohort + 1] - splits[cohort]).sum())
    share = (examples - int(left.local.sizes.sum())) / max(examples, 1)
    own = part_of(start, clients, left.index)
    if not len(clients):
        return AskedTraining(clients, None, own, own, share)
    if sent is not None:
        sent = part_of(sent, clients, {table: left.index[table] for table in sent.index})
    return AskedTraining(clients, left.local, own, train(left.local, own, sent).update, share)


def shared_update(training: AskedTraining, tables: tuple[str, ...], keep: float) -> Submodels:
    """The shared part of the updates in float64 on the CPU, rows divided by `keep`.

    keep: the probability that a holder asks for a row. Only so is a row's mean right on average.
    """
    cpu, update = torch.device("cpu"), training.update
    return Submodels(
        {table: update.index[table].to(cpu) for table in tables},
        {table: update.rows[table].to(cpu, torch.float64) / keep for table in tables},
        {name: x.to(cpu, torch.float64) for name, x in update.dense.items()},
    )


def heat_vector(space: RowSpace, data: FederatedData) -> np.ndarray:
    """How many of a party's clients hold each row: (rows,).

    Clients, never examples: the server may know how many examples each client has, and could tell
    from a sum of them who the holders are.
    """
    counts = np.zeros(space.rows, dtype=np.uint64)
    for table, start in space.starts.items():
        np.add.at(counts, data.index[table].ids.numpy() + start, 1)
    return counts


def _same(held: Index, asked: Index) -> bool:
    return torch.equal(held.splits, asked.splits) and torch.equal(held.ids.cpu(), asked.ids.cpu())


def local_rows(training: AskedTraining, tables: frozenset[str], in_it: Tensor) -> Submodels:
    """The updates of local tables of the clients in a sum: every client keeps its own rows."""
    index, rows = {}, {}
    for table in tables:
        sets = training.update.index[table]
        inside = in_it[training.clients][sets.owner.cpu()].to(sets.ids.device)
        index[table] = Index(sets.ids[inside], torch.tensor([0, int(inside.sum())]))
        rows[table] = training.update.rows[table][inside]
    return Submodels(index, rows, {})
