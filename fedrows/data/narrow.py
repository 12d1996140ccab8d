"""A cohort's examples, cut down to the rows that its clients have in a round.

An example that needs a row its client does not have is left out. Slots are counted anew among the
rows that the client has, so it trains on them as on any submodel.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fedrows.data.batches import LocalData, local_data
from fedrows.data.federation import FederatedData
from fedrows.rows.index import Index, entries
from fedrows.rows.params import Submodels
from fedrows.rows.ragged import Column, Ragged, pick

_MISSING = -2  # the slot of a row that a client does not have; −1 stands for no row at all


@dataclass(frozen=True, eq=False)
class Narrowed:
    """What is left of a cohort's data."""

    local: LocalData  # of the clients that have an example left
    index: dict[str, Index]  # the rows that those clients have
    clients: Tensor  # (A,), their places in the cohort


def narrow(data: FederatedData, cohort: Tensor, rows: Mapping[str, Index]) -> Narrowed:
    """The cohort's examples that the given rows of each client are enough for.

    A table that `rows` does not name is there as a whole.
    """
    held = {table: index.select(cohort) for table, index in data.index.items()}
    rows = {table: rows.get(table, index) for table, index in held.items()}
    own, device = local_data(data, cohort), data.train.label.device
    _, owner, positions = entries(own.starts.numpy(), own.sizes.numpy(), torch.device("cpu"))
    positions = positions.to(device)  # (n,), of the examples, and whose each is
    usable = torch.ones(len(positions), dtype=torch.bool)
    slots: dict[str, Column] = {}
    new = {table: _new_slots(index, rows[table]) for table, index in held.items()}
    for name, column in data.slots.items():
        table = data.fields[name]
        slots[name] = moved = _moved(column, positions, owner, held[table], new[table])
        usable &= _complete(moved)
    left = torch.nonzero(usable).flatten()
    counts = torch.bincount(owner[left], minlength=len(cohort))
    active = torch.nonzero(counts > 0).flatten()
    examples = data.train.pick(positions[left.to(device)])
    local = replace(
        own,
        clients=cohort[active],
        starts=(torch.cumsum(counts, 0) - counts)[active],
        sizes=counts[active],
        slots={name: pick(column, left).to(device) for name, column in slots.items()},
        label=examples.label,
        numbers=examples.numbers,
        weight=examples.weight,
    )
    index = {table: sets.select(active) for table, sets in rows.items()}
    return Narrowed(local, index, active)


def in_common(held: Index, asked: Index) -> Index:
    """The rows of each client that stand in both of two indexes of the same clients."""
    owner = held.owner.cpu()
    both = find(held, asked) >= 0
    lengths = torch.bincount(owner[both], minlength=held.clients)
    splits = torch.cat([lengths.new_zeros(1), torch.cumsum(lengths, 0)])
    where = both.to(held.ids.device)
    position = None if held.place is None else held.place[where]
    return Index(held.ids[where], splits, position, held.held)


def find(held: Index, asked: Index) -> Tensor:
    """Where each entry of an index stands in another index of the same clients: (R,), on the CPU.

    −1 where the other index does not have it.
    """
    ids, others = held.ids.cpu(), asked.ids.cpu()
    if not len(ids) or not len(others):
        return torch.full((len(ids),), -1)
    size = int(max(ids.max(), others.max())) + 1
    keys, sought = asked.owner.cpu() * size + others, held.owner.cpu() * size + ids
    position = torch.searchsorted(keys, sought).clamp_(max=len(keys) - 1)
    return torch.where(keys[position] == sought, position, -1)


def part_of(submodels: Submodels, clients: Tensor, index: Mapping[str, Index]) -> Submodels:
    """Some clients' submodels with some of their rows: `index` counts clients as `clients` does.

    Every row of the index must be there.
    """
    rows = {}
    for table, sets in index.items():
        source = submodels.index[table]
        size = int(torch.cat([source.ids, sets.ids]).max()) + 1 if len(sets.ids) else 1
        sought = clients.to(sets.ids.device)[sets.owner] * size + sets.ids
        position = torch.searchsorted(source.owner * size + source.ids, sought)
        rows[table] = submodels.rows[table][position]
    dense = {name: x[clients.to(x.device)] for name, x in submodels.dense.items()}
    return Submodels(index, rows, dense)


def _new_slots(held: Index, rows: Index) -> Tensor:
    """The slot that each held row has among a client's rows: (R+1,), the last for no row at all."""
    position = find(held, rows)
    slots = torch.where(position < 0, _MISSING, position - rows.splits[:-1][held.owner.cpu()])
    return torch.cat([slots, torch.full((1,), -1)])


def _moved(
    column: Column, positions: Tensor, owner: Tensor, held: Index, new: Tensor
) -> Column:  # fmt: skip
    """The slots of some examples among the rows that their clients have, on the CPU."""
    if isinstance(column, Ragged):
        lists = column.pick(positions).to(torch.device("cpu"))
        of = torch.repeat_interleave(lists.sizes)
        return replace(lists, values=new[_entries(lists.values, owner[of], held)])
    return new[_entries(column[positions].cpu(), owner, held)]


def _entries(slots: Tensor, owner: Tensor, held: Index) -> Tensor:
    """The entries of an index that slots of some clients stand for; −1 where there is nothing."""
    first = held.splits[:-1][owner].view(-1, *[1] * (slots.dim() - 1))
    return torch.where(slots < 0, -1, slots + first)


def _complete(column: Column) -> Tensor:
    """Whether no row that an example reads in a field is missing: (n,)."""
    if isinstance(column, Ragged):
        of = torch.repeat_interleave(column.sizes)
        return torch.bincount(of[column.values == _MISSING], minlength=len(column)) == 0
    return (column != _MISSING).unsqueeze(-1).flatten(1).all(1)
