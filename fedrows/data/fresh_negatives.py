"""Fresh negatives: items that a client does not hold in training, drawn anew in every round.

Data with labels="ranking" have positives only: items that a client interacted with. In a round
each client draws a pool of P items, uniformly and without replacement, from the items that stand in
none of its training examples. It downloads their rows with its own, and in every step each positive
gets r negatives out of the pool. The draw is blind to validation and test items: they are in the
pool as often as any other item that the client does not hold.

    index of a round     a client's own rows, and behind them its pool's
    batch                a field of candidates (K, B, 1 + r), the positive in column 0
    heat                 a row's expected holders: n_m + Σ P_i / (M − |S_i|) over the others

Pools and negatives are functions of (seed, round, client), whatever the cohort. `PoolDraws` needs
no data but the index sets of the clients at hand: a node and its server draw the same pools.
"""

from __future__ import annotations

from collections.abc import Mapping
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

    def beside(self, positives: Tensor, keys: Tensor) -> Tensor:
        """Slots (n,) of one client's positives, with those of negatives: (n, 1 + r)."""
        counters = torch.arange(len(positives) * self.count)
        negatives = drawn_slots(keys, self.starts, self.sizes, counters)[0]
        return torch.cat([positives[:, None], negatives.view(-1, self.count)], 1)


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


@dataclass(frozen=True)
class PoolDraws:
    """How the clients of a run draw their pools."""

    field: str  # whose examples get negatives
    table: str  # that the field reads
    span: tuple[int, int]  # of the ids of its items
    count: int  # r
    pool: int  # P
    seed: int

    @classmethod
    def of(cls, data: FederatedData, plan: Plan) -> PoolDraws:
        """The draws of a run on ranking data."""
        table, span = items_of(data)
        assert data.target is not None
        if plan.negatives_pool > MOST:
            raise PlanError(f"negatives-pool is {plan.negatives_pool}, but can be {MOST} at most.")
        field, count, pool = data.target[0], plan.negatives, plan.negatives_pool
        return cls(field, table, span, count, pool, plan.seed)

    @property
    def items(self) -> int:
        """M, the number of items."""
        return self.span[1] - self.span[0]

    def pools(self, lengths: Tensor) -> Pools:
        """Where the pools of clients lie that hold so many items each (K,)."""
        sizes = room_of(lengths, self.span).clamp(max=self.pool)
        return Pools(self.field, self.count, lengths, sizes)

    def draw(self, held: Index, clients: Tensor, round_: int) -> Index:
        """The items in each client's pool of a round, sorted."""
        keys = client_keys(self.seed, POOL, round_, clients)
        return draw_unheld(held, keys, self.pool, self.span)

    def index(
        self, held: Mapping[str, Index], clients: Tensor, round_: int
    ) -> dict[str, Index]:  # fmt: skip
        """The rows that clients have in a round: what they hold, and behind it their pools."""
        own = held[self.table]
        return {**held, self.table: behind(own, self.draw(own, clients, round_))}

    def expected(self, lengths: Tensor, weights: Tensor) -> tuple[Tensor, float]:
        """The counts of heat, by clients that hold so many items each (K,) and their weights (K,).

        What a client counts more at the rows that it holds than elsewhere (K,), and what all of
        them count at every row.
        """
        room = room_of(lengths, self.span)
        drawn = weights * room.clamp(max=self.pool) / room  # (K,), of a row that a client lacks
        return weights - drawn, float(drawn.sum())


class FreshNegatives:
    """Draws the pools of cohorts from what their clients do not hold.

    pooled: the data are those of one client, which holds every item that somebody met. It draws its
    negatives from these, and so now and then an item that the user at hand has met.
    """

    def __init__(self, data: FederatedData, plan: Plan, pooled: bool = False) -> None:
        self.draws = PoolDraws.of(data, plan)
        self.table = self.draws.table
        self.lengths, self.pooled = data.index[self.table].lengths, pooled
        if not pooled:
            check_room(data, self.draws)

    def pools(self, cohort: Tensor) -> Pools:
        """Where the pools of a cohort lie in its rows."""
        lengths = self.lengths[cohort]
        if self.pooled:
            none = torch.zeros_like(lengths)
            return Pools(self.draws.field, self.draws.count, none, lengths)
        return self.draws.pools(lengths)

    def draw(self, held: Index, cohort: Tensor, round_: int) -> Index:
        """The items in each client's pool of a round, sorted."""
        return self.draws.draw(held, cohort, round_)

    def rows(self, held: Index, cohort: Tensor, round_: int) -> Index:
        """Each client's own rows, and behind them those of its pool of the round."""
        return held if self.pooled else behind(held, self.draw(held, cohort, round_))

    def heat(self, index: Index, weights: Tensor) -> Heat:
        """The weight of the clients that are expected to have each row in a round."""
        if self.pooled:
            return heat_of(index, weights)
        own, everywhere = self.draws.expected(self.lengths, weights)
        held = heat_of(index, own)
        return Heat(held.ids, held.counts + everywhere, float(weights.sum()), rest=everywhere)


def check_room(data: FederatedData, draws: PoolDraws) -> None:
    """Raises a DataError if a client holds every item, and so has no negative to draw."""
    room = room_of(data.index[draws.table].lengths, draws.span)
    if bool((room > 0).all()):
        return
    client = int(room.argmin())
    name = client if data.client_names is None else data.client_names[client].item()
    raise DataError(
        f"Client {name!r} of {data.name} holds all {draws.items} items of table {draws.table!r} in "
        "training, so there is no negative to draw for it: leave it out."
    )


def behind(held: Index, more: Index) -> Index:
    """The rows of two indexes of the same clients: of each client first the one, then the other."""
    device = held.ids.device
    shift = torch.stack([more.splits[:-1], held.splits[1:]]).to(device, non_blocking=True)
    ids = held.ids.new_empty(len(held.ids) + len(more.ids))
    for own, gap in ((held, shift[0]), (more, shift[1])):
        position = torch.arange(len(own.ids), device=device) + gap[own.owner]
        ids[position] = own.ids
    return Index(ids, held.splits + more.splits)
