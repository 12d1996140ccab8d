"""The order in which clients see their own examples: a stream of batches for a whole cohort.

A client's batches depend on (seed, round, client) alone, so it meets the same ones in a cohort of
one on a device as in a cohort of thousands in the simulator.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from fedrows.data import FederatedData
from fedrows.index import Index
from fedrows.plan import Plan
from fedrows.ragged import Column, look_up
from fedrows.seeds import BATCH, SHUFFLE, STEP, below, bits, client_keys, counters


@dataclass(frozen=True, eq=False)
class LocalData:
    """The training examples of K clients, left where they lie in the federation's columns."""

    clients: Tensor  # (K,), the clients' numbers, which their randomness depends on
    starts: Tensor  # (K,), where each one's examples begin
    sizes: Tensor  # (K,)
    slots: Mapping[str, Column]  # field → (n,), (n, L) or n lists
    label: Tensor  # (n,)
    fields: Mapping[str, str]  # field → table
    padded: frozenset[str] = frozenset()  # tables whose id 0 means nothing
    local: frozenset[str] = frozenset()  # tables whose rows stay on their client
    numbers: Mapping[str, Tensor] = field(default_factory=dict)  # field → (n,) or (n, D)
    weight: Tensor | None = None  # (n,)


@dataclass(frozen=True, eq=False)
class Batch:
    """One step's examples for every client; ids are places in the cohort's block of rows.

    A place of −1 means that a list ended before, or that an example has nothing there.
    """

    ids: Mapping[str, Tensor]  # field → (K, B) or (K, B, L)
    label: Tensor  # (K, B)
    weight: Tensor | None = None  # (K, B), 0 where a client has no example; None: all 1
    active: Tensor | None = None  # (K,), 0 where a client sits the step out; None: all 1
    numbers: Mapping[str, Tensor] = field(default_factory=dict)  # field → (K, B) or (K, B, D)
    key: Tensor | None = None  # (K,), of the step's own randomness, if the model has any


def local_data(data: FederatedData, cohort: Tensor) -> LocalData:
    """The cohort's own examples."""
    device = data.train.label.device
    starts, ends = data.train.splits[cohort], data.train.splits[cohort + 1]  # not O(N)
    return LocalData(
        cohort.to(device),
        starts.to(device),
        (ends - starts).to(device),
        data.slots,
        data.train.label,
        data.fields,
        data.padded,
        data.local,
        data.train.numbers,
        data.train.weight,
    )


def batches(
    local: LocalData, index: Mapping[str, Index], plan: Plan, round_: int
) -> Iterator[Batch]:
    """Every step's batch in a round, by the plan's way of making batches."""
    device = local.label.device
    offsets = {name: index[table].splits[:-1].to(device) for name, table in local.fields.items()}
    make = _drawn if plan.batches == "draw" else _shuffled
    return make(local, offsets, plan, round_)


def step_keys(local: LocalData, plan: Plan, round_: int, step: int) -> Tensor:
    """The key of every client's own randomness in a step, such as dropout: (K,)."""
    return bits(client_keys(plan.seed, STEP, round_, local.clients), torch.tensor(step))


def _drawn(
    local: LocalData, offsets: Mapping[str, Tensor], plan: Plan, round_: int
) -> Iterator[Batch]:
    """I batches of B examples, each drawn with replacement; looked up in one go."""
    keys = client_keys(plan.seed, BATCH, round_, local.clients)  # (K,)
    count = counters(plan.local_steps, plan.batch_size, keys.device)  # (I, B)
    random = bits(keys[:, None], count[:, None])  # (I, K, B)
    position = below(random, local.sizes[:, None]) + local.starts[:, None]
    whole = _look_up(local, offsets, position)  # (I, K, B)
    ids, numbers = _by_step(whole.ids, plan), _by_step(whole.numbers, plan)
    weights = [None] * plan.local_steps if whole.weight is None else whole.weight.unbind()
    for parts in zip(ids, whole.label.unbind(), weights, numbers, strict=True):
        yield Batch(*parts[:3], numbers=parts[3])


def _by_step(columns: Mapping[str, Tensor], plan: Plan) -> list[dict[str, Tensor]]:
    """Columns of all steps (I, …) as one mapping a step; views."""
    if not columns:
        return [{}] * plan.local_steps
    steps = zip(*(column.unbind() for column in columns.values()), strict=True)
    return [dict(zip(columns, step, strict=True)) for step in steps]


def _shuffled(
    local: LocalData, offsets: Mapping[str, Tensor], plan: Plan, round_: int
) -> Iterator[Batch]:
    """Whole passes in a new order; a client that is through sits out the steps that remain."""
    size = plan.batch_size
    per_epoch = (local.sizes + size - 1) // size  # (K,), a client's batches in one pass
    steps = per_epoch * plan.epochs
    first = torch.cumsum(local.sizes, 0) - local.sizes  # (K,), where its order begins
    orders = _orders(local, plan, round_)  # (epochs, T)
    within = torch.arange(size, device=local.label.device)
    for step in range(int(steps.max())):
        active = step < steps
        epoch = torch.clamp(step // per_epoch, max=plan.epochs - 1)
        rank = (step % per_epoch * size)[:, None] + within  # (K, B), a place in the pass
        weight = (rank < local.sizes[:, None]) & active[:, None]
        entry = first[:, None] + torch.where(weight, rank, 0)
        position = orders[epoch[:, None], entry] + local.starts[:, None]
        batch = _look_up(local, offsets, position)
        real = weight if batch.weight is None else weight * batch.weight
        dtype = plan.torch_dtype
        yield replace(batch, weight=real.to(dtype), active=active.to(dtype))


def _orders(local: LocalData, plan: Plan, round_: int) -> Tensor:
    """A random order of every client's examples for each pass, one after another: (epochs, T)."""
    device = local.label.device
    total = int(local.sizes.sum())
    owner = torch.repeat_interleave(
        torch.arange(len(local.sizes), device=device), local.sizes, output_size=total
    )
    first = torch.cumsum(local.sizes, 0) - local.sizes
    position = torch.arange(total, device=device) - first[owner]  # 0 … size−1 in each client
    keys = client_keys(plan.seed, SHUFFLE, round_, local.clients)[owner]
    epochs = torch.arange(plan.epochs, device=device)[:, None]
    random = bits(keys, (epochs << 32) + position)  # (epochs, T)
    order = torch.argsort(random, dim=1, stable=True)
    order = order.gather(1, torch.argsort(owner[order], dim=1, stable=True))
    return position[order]


def _look_up(local: LocalData, offsets: Mapping[str, Tensor], position: Tensor) -> Batch:
    """The examples at some positions (…, K, B) of the columns."""
    ids = {}
    for name, column in local.slots.items():
        found = look_up(column, position, nothing=-1)  # (…, K, B) or (…, K, B, L)
        deep = found.dim() - position.dim()
        offset = offsets[name].view(-1, 1, *[1] * deep)  # (K, 1) or (K, 1, 1)
        if local.fields[name] in local.padded:
            ids[name] = torch.where(found < 0, -1, found + offset)
        else:
            ids[name] = found.add_(offset)
    return Batch(
        ids,
        look_up(local.label, position),
        None if local.weight is None else look_up(local.weight, position),
        numbers={name: look_up(column, position) for name, column in local.numbers.items()},
    )
