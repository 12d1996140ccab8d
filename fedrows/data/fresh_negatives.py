"""Fresh negatives: items that a client does not hold in training, drawn anew in every round.

Data with labels="ranking" have positives only: items that a client interacted with. In a round
each client draws a pool of P items, uniformly and without replacement, from the items that stand in
none of its training examples. It downloads their rows with its own, and in every step each positive
gets r negatives out of the pool. The draw is blind to validation and test items: they are in the
pool as often as any other item that the client does not hold.

    index of a round     a client's own rows, and behind them its pool's
    batch                a field of candidates (K, B, 1 + r), the positive in column 0
    heat                 a row's expected holders: n_m + Σ P_i / (M − |S_i|) over the others

Pools and negatives are functions of (seed, round, client), whatever the cohort.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedrows.data.column_checks import check_ranked
from fedrows.data.federation import FederatedData
from fedrows.data.unheld import MOST, draw_unheld, room_of
from fedrows.errors import DataError, PlanError
from fedrows.plan import Plan
from fedrows.rows.heat import Heat, heat_of
from fedrows.rows.index import Index
from fedrows.seeds import NEGATIVE, POOL, below, bits, client_keys


@dataclass(frozen=True, eq=False)
class Pools:
    """Where the pools of K clients lie in their rows."""

    field: str  # whose examples get negatives
    count: int  # r
    starts: Tensor  # (K,), the slot of a client's first pool row; these two are on the CPU
    sizes: Tensor  # (K,)

    def slice(self, start: int, stop: int) -> Pools:
        """The pools of the clients start … stop−1."""
        return Pools(self.field, self.count, self.starts[start:stop], self.sizes[start:stop])

    def keys(self, seed: int, round_: int, clients: Tensor) -> Tensor:
        """The key of each client's stream of negatives: (K,)."""
        return client_keys(seed, NEGATIVE, round_, clients)


def drawn_slots(keys: Tensor, starts: Tensor, sizes: Tensor, counters: Tensor) -> Tensor:
    """A slot of the pool for each counter (…, n), of every client (K,): (…, K, n)."""
    random = bits(keys[:, None], counters.unsqueeze(-2))
    return below(random, sizes[:, None]) + starts[:, None]


def items_of(data: FederatedData) -> tuple[str, tuple[int, int]]:
    """The table that the target of ranking data reads, and the span of its items' ids."""
    check_ranked(data.target, data.fields, data.local)
    assert data.target is not None
    table = data.fields[data.target[0]]
    return table, (1 if table in data.padded else 0, data.tables[table])


class FreshNegatives:
    """Draws the pools of cohorts from what their clients do not hold.

    pooled: the data are those of one client, which holds every item that somebody met. It draws its
    negatives from these, and so now and then an item that the user at hand has met.
    """

    def __init__(self, data: FederatedData, plan: Plan, pooled: bool = False) -> None:
        self.table, self.span = items_of(data)
        assert data.target is not None
        self.field, self.seed = data.target[0], plan.seed
        self.count, self.pool = plan.negatives, plan.negatives_pool
        self.lengths, self.pooled = data.index[self.table].lengths, pooled
        if pooled:
            return
        room = room_of(self.lengths, self.span)
        if self.pool > MOST:
            raise PlanError(f"negatives-pool is {self.pool}, but can be {MOST} at most.")
        if not bool((room > 0).all()):
            client = int(room.argmin())
            name = client if data.client_names is None else data.client_names[client].item()
            raise DataError(
                f"Client {name!r} of {data.name} holds all {self.span[1] - self.span[0]} items of "
                f"table {self.table!r} in training, so there is no negative to draw for it: leave "
                "it out."
            )

    def pools(self, cohort: Tensor) -> Pools:
        """Where the pools of a cohort lie in its rows."""
        lengths = self.lengths[cohort]
        if self.pooled:
            return Pools(self.field, self.count, torch.zeros_like(lengths), lengths)
        sizes = room_of(lengths, self.span).clamp(max=self.pool)
        return Pools(self.field, self.count, lengths, sizes)

    def draw(self, held: Index, cohort: Tensor, round_: int) -> Index:
        """The items in each client's pool of a round, sorted."""
        keys = client_keys(self.seed, POOL, round_, cohort)
        return draw_unheld(held, keys, self.pool, self.span)

    def rows(self, held: Index, cohort: Tensor, round_: int) -> Index:
        """Each client's own rows, and behind them those of its pool of the round."""
        return held if self.pooled else behind(held, self.draw(held, cohort, round_))

    def heat(self, index: Index, weights: Tensor) -> Heat:
        """The weight of the clients that are expected to have each row in a round."""
        if self.pooled:
            return heat_of(index, weights)
        room = room_of(self.lengths, self.span)
        drawn = weights * room.clamp(max=self.pool) / room  # (N,), of a row that a client lacks
        held = heat_of(index, weights - drawn)
        everywhere = float(drawn.sum())
        return Heat(held.ids, held.counts + everywhere, float(weights.sum()), rest=everywhere)


def behind(held: Index, more: Index) -> Index:
    """The rows of two indexes of the same clients: of each client first the one, then the other."""
    device = held.ids.device
    shift = torch.stack([more.splits[:-1], held.splits[1:]]).to(device, non_blocking=True)
    ids = held.ids.new_empty(len(held.ids) + len(more.ids))
    for own, gap in ((held, shift[0]), (more, shift[1])):
        place = torch.arange(len(own.ids), device=device) + gap[own.owner]
        ids[place] = own.ids
    return Index(ids, held.splits + more.splits)
