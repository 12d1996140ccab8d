"""The order in which clients see their own examples: a stream of batches for a whole cohort.

A client's batches depend on (seed, round, client) alone, so it meets the same ones in a cohort of
one on a device as in a cohort of thousands in the simulator.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from fedrows.data.federation import FederatedData
from fedrows.data.fresh_negatives import Pools, drawn_slots
from fedrows.plan import Plan
from fedrows.rows.index import Index
from fedrows.rows.ragged import Column, look_up
from fedrows.seeds import BATCH, SHUFFLE, STEP, below, bits, client_keys, counters


@dataclass(frozen=True, eq=False)
class LocalData:
    """The training examples of K clients, left where they lie in the federation's columns."""

    clients: Tensor  # (K,), the clients' numbers, which their randomness depends on
    starts: Tensor  # (K,), where each one's examples begin; these three are on the CPU
    sizes: Tensor  # (K,)
    slots: Mapping[str, Column]  # field → (n,), (n, L) or n lists
    label: Tensor  # (n,)
    fields: Mapping[str, str]  # field → table
    padded: frozenset[str] = frozenset()  # tables whose id 0 means nothing
    local: frozenset[str] = frozenset()  # tables whose rows stay on their client
    numbers: Mapping[str, Tensor] = field(default_factory=dict)  # field → (n,) or (n, D)
    weight: Tensor | None = None  # (n,)
    pools: Pools | None = None  # of fresh negatives; None: examples are as they lie there

    def slice(self, start: int, stop: int) -> LocalData:
        """The examples of the clients start … stop−1, left where they lie."""
        clients, starts, sizes = (x[start:stop] for x in (self.clients, self.starts, self.sizes))
        pools = None if self.pools is None else self.pools.slice(start, stop)
        return replace(self, clients=clients, starts=starts, sizes=sizes, pools=pools)


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
    which, splits = cohort.numpy(), data.train.splits.numpy()  # NumPy: what counts is the calls
    starts = splits[which]
    return LocalData(
        cohort,
        torch.from_numpy(starts),
        torch.from_numpy(splits[which + 1] - starts),
        data.slots,
        data.train.label,
        data.fields,
        data.padded,
        data.local,
        data.train.numbers,
        data.train.weight,
    )


def batches(
    local: LocalData, index: Mapping[str, Index], plan: Plan, round_: int, random: bool = False
) -> Iterator[Batch]:
    """Every step's batch in a round; with the keys of the steps' own randomness, if asked."""
    on_host = round_inputs(local, index, plan, round_, random)
    inputs = RoundInputs(on_host.to(local.label.device, non_blocking=True), list(index))
    if plan.batches == "draw":
        stream = drawn(local, inputs, plan)
    else:
        order = shuffled(local, inputs, plan)
        steps = int(steps_of(local, plan).max())
        stream = (nth_shuffled(local, inputs, plan, order, step) for step in range(steps))
    return with_keys(stream, inputs) if random else stream


def with_keys(
    stream: Iterator[Batch], inputs: RoundInputs, first: int | Tensor = 0
) -> Iterator[Batch]:  # fmt: skip
    """The same batches with the keys of each step's own randomness, counted from the first."""
    for step, batch in enumerate(stream):
        yield replace(batch, key=bits(inputs.steps, torch.as_tensor(first + step)))


def steps_of(local: LocalData, plan: Plan) -> Tensor:
    """How many steps each client takes in a round: (K,), on the CPU."""
    if plan.batches == "draw":
        return torch.full_like(local.sizes, plan.local_steps)
    return (local.sizes + plan.batch_size - 1) // plan.batch_size * plan.epochs


def round_inputs(
    local: LocalData, index: Mapping[str, Index], plan: Plan, round_: int, random: bool
) -> Tensor:
    """The keys, sizes and offsets that a round's batches depend on; `RoundInputs` names them."""
    use = BATCH if plan.batches == "draw" else SHUFFLE
    keys = client_keys(plan.seed, use, round_, local.clients)
    steps = client_keys(plan.seed, STEP, round_, local.clients) if random else keys
    offsets = [sets.splits[:-1] for sets in index.values()]
    pools = local.pools
    if pools is not None:
        negatives = pools.keys(plan.seed, round_, local.clients)
        offsets += [negatives, pools.starts, pools.sizes]
    rows = [x.numpy() for x in (keys, steps, local.starts, local.sizes, *offsets)]
    return torch.from_numpy(np.stack(rows))


class RoundInputs:
    """The rows of `round_inputs`, by name, where the examples lie: (K,) each."""

    def __init__(self, rows: Tensor, tables: Sequence[str]) -> None:
        self.batches, self.steps, self.starts, self.sizes, *more = rows.unbind()
        offsets, self.pools = more[: len(tables)], more[len(tables) :]  # of keys, starts and sizes
        self.offsets = dict(zip(tables, offsets, strict=True))  # where its rows begin in the block


def drawn(local: LocalData, inputs: RoundInputs, plan: Plan) -> Iterator[Batch]:
    """I batches of B examples, each drawn with replacement; looked up in one go."""
    count = counters(plan.local_steps, plan.batch_size, inputs.starts.device)  # (I, B)
    random = bits(inputs.batches[:, None], count[:, None])  # (I, K, B)
    position = below(random, inputs.sizes[:, None]) + inputs.starts[:, None]
    step = torch.arange(plan.local_steps, device=position.device)
    whole = _look_up(local, inputs, position, step)  # (I, K, B)
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


def nth_shuffled(
    local: LocalData, inputs: RoundInputs, plan: Plan, order: Tensor, step: int | Tensor
) -> Batch:
    """One step of whole passes; a client that is through sits it out."""
    size = plan.batch_size
    per_epoch = (inputs.sizes + size - 1) // size  # (K,), a client's batches in one pass
    active = step < per_epoch * plan.epochs
    epoch = torch.clamp(step // per_epoch, max=plan.epochs - 1)
    first = torch.cumsum(inputs.sizes, 0) - inputs.sizes  # (K,), where its order begins
    within = torch.arange(size, device=inputs.sizes.device)
    rank = (step % per_epoch * size)[:, None] + within  # (K, B), a place in the pass
    weight = (rank < inputs.sizes[:, None]) & active[:, None]
    entry = first[:, None] + torch.where(weight, rank, 0)
    position = order[epoch[:, None], entry] + inputs.starts[:, None]
    batch = _look_up(local, inputs, position, step)
    real = weight if batch.weight is None else weight * batch.weight
    dtype = plan.torch_dtype
    return replace(batch, weight=real.to(dtype), active=active.to(dtype))


def shuffled(local: LocalData, inputs: RoundInputs, plan: Plan) -> Tensor:
    """A random order of every client's examples for each pass, one after another: (epochs, T)."""
    device = local.label.device
    total = int(local.sizes.sum())
    owner = torch.repeat_interleave(
        torch.arange(len(inputs.sizes), device=device), inputs.sizes, output_size=total
    )
    first = torch.cumsum(inputs.sizes, 0) - inputs.sizes
    position = torch.arange(total, device=device) - first[owner]  # 0 … size−1 in each client
    epochs = torch.arange(plan.epochs, device=device)[:, None]
    random = bits(inputs.batches[owner], (epochs << 32) + position)  # (epochs, T)
    order = torch.argsort(random, dim=1, stable=True)
    order = order.gather(1, torch.argsort(owner[order], dim=1, stable=True))
    return position[order]


def _look_up(
    local: LocalData, inputs: RoundInputs, position: Tensor, step: int | Tensor
) -> Batch:  # fmt: skip
    """The examples at some positions (…, K, B) of the columns, for the steps so numbered (…)."""
    ids = {}
    for name, column in local.slots.items():
        slots = look_up(column, position, nothing=-1)  # (…, K, B) or (…, K, B, L)
        if local.pools is not None and name == local.pools.field:
            slots = _with_negatives(slots, local.pools.count, inputs, step)  # (…, K, B, 1 + r)
        deep = slots.dim() - position.dim()
        table = local.fields[name]
        offset = inputs.offsets[table].view(-1, 1, *[1] * deep)  # (K, 1) or (K, 1, 1)
        if table in local.padded:
            ids[name] = torch.where(slots < 0, -1, slots + offset)
        else:
            ids[name] = slots.add_(offset)
    return Batch(
        ids,
        look_up(local.label, position),
        None if local.weight is None else look_up(local.weight, position),
        numbers={name: look_up(column, position) for name, column in local.numbers.items()},
    )


def _with_negatives(
    positive: Tensor, count: int, inputs: RoundInputs, step: int | Tensor
) -> Tensor:
    """Slots (…, K, B) with those of fresh negatives beside them: (…, K, B, 1 + r)."""
    position = torch.arange(positive.shape[-1] * count, device=positive.device)
    first = (torch.as_tensor(step, device=positive.device) << 32).unsqueeze(-1)
    keys, starts, sizes = inputs.pools
    slots = drawn_slots(keys, starts, sizes, first + position)  # (…, K, B · r)
    negative = slots.view(*positive.shape, count)  # (…, K, B, r)
    return torch.cat([positive.unsqueeze(-1), negative], -1)


def occurred(
    local: LocalData, index: Mapping[str, Index], plan: Plan, round_: int
) -> dict[str, Tensor]:
    """Whether each entry of an index occurs in its client's batches, by shared table: (R,) bool.

    Batches follow from (seed, round, client), so nothing of the training itself is needed. A row
    can occur and not move, where steps cancel; so what a client sends cannot tell. An example of
    weight 0 has no say in a batch, so its rows do not occur by it.
    """
    shared = {table: rows for table, rows in index.items() if table not in local.local}
    marks = {  # one more than there are entries, for places of −1, which mean nothing
        table: torch.zeros(len(rows.ids) + 1, dtype=torch.bool, device=rows.ids.device)
        for table, rows in shared.items()
    }
    for batch in batches(local, index, plan, round_):
        for name, places in batch.ids.items():
            if local.fields[name] not in shared:
                continue
            if batch.weight is not None:
                deep = [1] * (places.dim() - batch.weight.dim())
                real = (batch.weight > 0).view(*batch.weight.shape, *deep)  # (K, B) or (K, B, 1)
                places = torch.where(real, places, -1)
            marks[local.fields[name]][places] = True
    return {table: x[:-1] for table, x in marks.items()}
