"""A cohort's examples and rows, cut down to the rows that its clients have at hand in a round.

An example that needs a row its client did not get is left out. Slots are counted anew among the
rows that are left, so a client trains on them as on any submodel.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fedrows.data.batches import LocalData
from fedrows.data.federation import FederatedData
from fedrows.rows.index import Index
from fedrows.rows.params import Submodels
from fedrows.rows.ragged import Column, Ragged


@dataclass(frozen=True, eq=False)
class Narrowed:
    """What is left of a cohort's data."""

    local: LocalData  # of the clients that have an example left
    index: dict[str, Index]  # their rows
    clients: Tensor  # (A,), their places in the cohort
    left_out: int  # examples that are not there
    examples: int  # that the cohort has in all


def narrow(
    data: FederatedData, cohort: Tensor, held: Mapping[str, Index], there: Mapping[str, Tensor]
) -> Narrowed:
    """The cohort's data without the rows that are not there; `there` marks entries of `held`: (R,).

    A table that `there` does not name is there as a whole.
    """
    splits = data.train.splits
    sizes = splits[cohort + 1] - splits[cohort]
    ends = torch.cumsum(sizes, 0)
    owner = torch.repeat_interleave(sizes)  # (n,), the client of each example
    positions = (torch.arange(int(sizes.sum())) + (splits[cohort] - ends + sizes)[owner]).to(
        data.train.label.device
    )
    whole = {
        table: there.get(table, torch.ones(len(index.ids), dtype=torch.bool))
        for table, index in held.items()
    }
    usable = torch.ones(len(positions), dtype=torch.bool)
    for name, column in data.slots.items():
        table = data.fields[name]
        usable &= _usable(column, positions, owner, held[table], whole[table])
    kept = positions[usable.to(positions.device)]
    counts = torch.bincount(owner[usable], minlength=len(cohort))
    active = torch.nonzero(counts > 0).flatten()
    chosen = data.train.pick(kept)
    slots = {
        name: _slots(column, kept, owner[usable], held[data.fields[name]], whole[data.fields[name]])
        for name, column in data.slots.items()
    }
    starts = torch.cumsum(counts, 0) - counts
    local = LocalData(
        cohort[active],
        starts[active],
        counts[active],
        slots,
        chosen.label,
        data.fields,
        data.padded,
        data.local,
        chosen.numbers,
        chosen.weight,
    )
    index = {table: _index(its, whole[table], active) for table, its in held.items()}
    return Narrowed(local, index, active, int((~usable).sum()), len(positions))


def part_of(whole: Submodels, clients: Tensor, index: Mapping[str, Index]) -> Submodels:
    """Some clients' submodels with some of their rows: `index` counts clients as `clients` does.

    Every row of the index must be there.
    """
    rows = {}
    for table, its in index.items():
        source = whole.index[table]
        size = int(torch.cat([source.ids, its.ids]).max()) + 1 if len(its.ids) else 1
        mine = clients.to(its.ids.device)[its.owner] * size + its.ids
        place = torch.searchsorted(source.owner * size + source.ids, mine)
        rows[table] = whole.rows[table][place]
    dense = {name: x[clients.to(x.device)] for name, x in whole.dense.items()}
    return Submodels(index, rows, dense)


def _entries(slots: Tensor, owner: Tensor, held: Index) -> Tensor:
    """The entries of an index that slots of some clients stand for; −1 where there is nothing."""
    first = held.splits[:-1][owner].view(-1, *[1] * (slots.dim() - 1))
    return torch.where(slots < 0, -1, slots + first)


def _usable(
    column: Column, positions: Tensor, owner: Tensor, held: Index, there: Tensor
) -> Tensor:  # fmt: skip
    """Whether every row that an example reads in a field is there: (n,)."""
    # The row after the last is for places where there is nothing, which is always there.
    known = torch.cat([there.cpu(), torch.ones(1, dtype=torch.bool)])
    if isinstance(column, Ragged):
        lists = column.pick(positions)
        of = torch.repeat_interleave(lists.sizes.cpu())
        missing = ~known[_entries(lists.values.cpu(), owner[of], held)]
        return torch.bincount(of[missing], minlength=len(positions)) == 0
    found = known[_entries(column[positions].cpu(), owner, held)]
    return found.reshape(len(positions), -1).all(1)


def _slots(
    column: Column, positions: Tensor, owner: Tensor, held: Index, there: Tensor
) -> Column:  # fmt: skip
    """The slots of some examples, counted among the rows that are there."""
    rank = torch.cumsum(there.cpu(), 0) - 1
    before = torch.cat([torch.zeros(1, dtype=torch.int64), rank + 1])[held.splits[:-1]]  # (K,)
    new = rank - torch.repeat_interleave(before, held.lengths)
    new = torch.cat([new, torch.full((1,), -1)])  # the last is for places where there is nothing
    if isinstance(column, Ragged):
        lists = column.pick(positions)
        of = torch.repeat_interleave(lists.sizes.cpu())
        values = new[_entries(lists.values.cpu(), owner[of], held)]
        return replace(lists, values=values.to(lists.values.device))
    return new[_entries(column[positions].cpu(), owner, held)].to(column.device)


def _index(held: Index, there: Tensor, active: Tensor) -> Index:
    """The rows that are there, of the clients that are active."""
    mine = torch.zeros(held.clients, dtype=torch.bool)
    mine[active] = True
    owner = held.owner.cpu()
    kept = there.cpu() & mine[owner]
    lengths = torch.bincount(owner[kept], minlength=held.clients)[active]
    splits = torch.cat([lengths.new_zeros(1), torch.cumsum(lengths, 0)])
    where = kept.to(held.ids.device)
    return Index(held.ids[where], splits, None if held.place is None else held.place[where],
                 held.held)  # fmt: skip
