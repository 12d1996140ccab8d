"""What the clients of a cohort make of the rows that they asked for.

A client trains on the examples whose rows it both holds and has asked for; without any, it sits the
round out. A holder keeps a row with a known probability, by which its update is divided.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from fedrows.algorithm import Round
from fedrows.client import train
from fedrows.data.narrow import Narrowed, in_common, narrow, part_of
from fedrows.private.asking import Asked
from fedrows.rows.index import Index
from fedrows.rows.params import Submodels, join
from fedrows.simulator.simulated import SimulatedFleet, SimulatedRound


@dataclass(frozen=True, eq=False)
class Trained:
    """What came of a cohort's training."""

    update: Submodels  # of all K clients; without rows for those who sat out
    active: np.ndarray  # (K,), who trained
    steps: Tensor  # taken by each who did
    left_out_share: float  # of the cohort's examples, for want of a row


def trained(
    inner: SimulatedRound,
    start: Submodels,
    sent: Submodels | None,
    asked: Asked,
    keep: float,
) -> Trained:
    """The updates of a cohort, each row divided by the probability that a holder keeps it."""
    held, fleet, round_, cohort = inner.index, inner.fleet, inner.round, inner.round.cohort
    through = torch.from_numpy(asked.there)
    if bool(through.all()) and all(_same(held[t], its) for t, its in asked.index.items()):
        upload = inner.train(replace(start, index=held), sent)
        update, active = upload.update, np.ones(len(cohort), dtype=bool)
        return Trained(_divided(update, asked, keep), active, upload.steps, 0.0)
    some = {table: in_common(held[table], index) for table, index in asked.index.items()}
    left = narrow(fleet.data, cohort, some)
    share = left.left_out / max(left.examples, 1)
    active = np.zeros(len(cohort), dtype=bool)
    if not len(left.clients):
        return Trained(
            _spread(None, start, left.clients, len(cohort)), active, torch.ones(1), share
        )
    active[left.clients.numpy()] = True
    update, steps = _train(fleet, left, start, sent, round_)
    whole = _spread(_divided(update, asked, keep), start, left.clients, len(cohort))
    return Trained(whole, active, steps, share)


def _train(
    fleet: SimulatedFleet, left: Narrowed, start: Submodels, sent: Submodels | None, round_: Round
) -> tuple[Submodels, Tensor]:
    """The updates of those who have examples left, in chunks."""
    own = part_of(start, left.clients, left.index)
    more = None if sent is None else part_of(sent, left.clients, left.index)
    chunk, parts = fleet.plan.chunk or len(left.clients), []
    for low in range(0, len(left.clients), chunk):
        high = min(low + chunk, len(left.clients))
        local = replace(
            left.local,
            clients=left.local.clients[low:high],
            starts=left.local.starts[low:high],
            sizes=left.local.sizes[low:high],
        )
        its_sent = None if more is None else more.slice(low, high)
        its = own.slice(low, high)
        parts.append(
            train(fleet.model, fleet.algorithm, local, its, its_sent, None, fleet.plan, round_)
        )
    update = join(left.index, [part.update for part in parts])
    return replace(update, index=left.index), torch.cat([part.steps for part in parts])


def _divided(update: Submodels, asked: Asked, keep: float) -> Submodels:
    """The update with the rows that were asked for divided by a probability."""
    rows = {t: x / keep if t in asked.index and keep != 1 else x for t, x in update.rows.items()}
    return Submodels(update.index, rows, update.dense)


def _spread(
    update: Submodels | None, start: Submodels, clients: Tensor, count: int
) -> Submodels:  # fmt: skip
    """The submodels of some clients of a cohort as those of all, the others without rows."""
    index, rows = {}, {}
    for table, like in start.rows.items():
        lengths = torch.zeros(count, dtype=torch.int64)
        if update is not None:
            lengths[clients] = update.index[table].lengths
        splits = torch.cat([lengths.new_zeros(1), torch.cumsum(lengths, 0)])
        ids = start.index[table].ids[:0] if update is None else update.index[table].ids
        index[table] = Index(ids, splits)
        rows[table] = like[:0] if update is None else update.rows[table]
    dense = {}
    for name, like in start.dense.items():
        dense[name] = torch.zeros_like(like)
        if update is not None:
            dense[name][clients.to(like.device)] = update.dense[name]
    return Submodels(index, rows, dense)


def _same(held: Index, asked: Index) -> bool:
    return torch.equal(held.splits, asked.splits) and torch.equal(held.ids.cpu(), asked.ids.cpu())


def shared(update: Submodels, tables: Mapping[str, int]) -> Submodels:
    """The shared part of an update in float64 on the CPU."""
    cpu = torch.device("cpu")
    return Submodels(
        {table: update.index[table].to(cpu) for table in tables},
        {table: update.rows[table].to(cpu, torch.float64) for table in tables},
        {name: x.to(cpu, torch.float64) for name, x in update.dense.items()},
    )
