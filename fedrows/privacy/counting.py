"""Heat counted in one of four ways, and the table that compares them.

    exact                 every client shows S(i)
    secure                the server sees how many clients hold each row
    randomized-response   a bit per row or per value, with lies (`response`)
    hashed                a sketch of fixed size, with noise (`oracle`)

The first gives Σ w_i, the second n_m, both exactly. A secure sum never adds up weights: the server
knows them, and could tell from Σ w_i who the holders are. The others estimate n_m, with a standard
error; what a correction uses is floored at max(1, z standard errors). They count clients, not
weights, unless weights are capped: then a client's bit stands with probability min(w_i, cap)/cap,
and the count is cap times the estimate, which is unbiased for Σ min(w_i, cap) and as private as
before.

ε is against the server, for one raw value added to or removed from a client's data. A value may
stand behind several rows (`values`): a movie behind three, a gender behind one for every movie.
With coins by value they share one coin. With coins by row their ε adds up.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from fedrows.data.federation import FederatedData
from fedrows.errors import PlanError
from fedrows.options import check, option
from fedrows.privacy.ledger import Entry
from fedrows.privacy.noise import RandomBytes
from fedrows.privacy.noisy_counts import RESOLVED, Estimate, Holders, by_row, by_sketch, by_value
from fedrows.privacy.oracle import Oracle
from fedrows.privacy.response import floored
from fedrows.privacy.values import Values, derived
from fedrows.rows.heat import Heat, heat_of
from fedrows.rows.index import Index

WAYS = ("exact", "secure", "randomized-response", "hashed")
COINS = (
    "A client has one coin for each raw value, or one for each row, whose ε adds up. It is for "
    "noisy heat and for answers on which rows a client wants; hashed heat has coins by row."
)


@dataclass(frozen=True)
class Counting:
    """How heat is counted: the options behind `--heat`."""

    heat: str = option("exact", "How rows' heat is counted.", choices=WAYS)
    heat_epsilon: float = option(2.0, "ε of one coin, of a row or of a value.", above=0)
    heat_z: float = option(1.0, "Counts are raised to at least X standard errors.", least=0)
    coins: str = option("value", COINS, choices=("value", "row"))
    heat_cap: float | None = option(
        None, "Add up weights of at most X; without a cap, count clients.", above=0
    )
    heat_buckets: int = option(2**15, "Words that a client sends for hashed heat.", least=1)

    def __post_init__(self) -> None:
        check(self)
        noisy = self.heat == "randomized-response"
        if noisy and self.coins == "value" and self.heat_cap is not None:
            raise PlanError(
                "heat-cap is given, but weights are counted with coins by row only: set coins to "
                "'row', or leave heat-cap out."
            )


@dataclass(frozen=True, eq=False)
class Counted(Estimate):
    """The heat of one table, the estimates behind it, and what counting it cost."""

    way: str
    heat: Heat  # floored: what the correction uses

    def entries(self, table: str, round_: int = 0) -> tuple[Entry, ...]:
        """What the counting writes into the ledger: for one value, and for the whole set.

        A secure sum shows nothing of one client's messages; what its exact total shows has no
        bound, and is of a kind of its own.
        """
        name = f"heat of {table}"
        if self.way == "secure":
            return (Entry("totals/value", name, round_, math.inf),)
        return (
            Entry("server/value", name, round_, self.epsilon),
            Entry("server/set", name, round_, self.epsilon_set),
        )


def count(
    index: Index,
    weights: Tensor,
    rows: int,
    how: Counting,
    values: Values | None = None,
    source: RandomBytes = os.urandom,
) -> Counted:
    """The heat that N clients' index sets in a table of so many rows come to, in one of four ways.

    Its ids are those that anybody holds: no other row is ever asked for.
    """
    clear = heat_of(index, torch.ones_like(weights) if how.heat == "secure" else weights)
    if how.heat in ("exact", "secure"):
        return _clear(clear, index, rows, how)
    if how.heat_cap is not None and not bool((weights >= 0).all()):
        raise PlanError("A client's weight is below 0, so its share of heat-cap is no probability.")
    cap, own = how.heat_cap, weights.cpu().numpy()
    shares = None if cap is None else np.minimum(own / cap, 1.0)
    held = clear.ids.cpu().numpy()
    estimate = _estimate(Holders(index, held, rows, values or Values(), shares), how, source)
    unit = cap or 1.0
    counts = unit * floored(estimate.estimates, estimate.errors, how.heat_z)
    total = float(index.clients if cap is None else np.minimum(own, cap).sum())
    heat = Heat(clear.ids, torch.from_numpy(counts).to(clear.ids.device), total)
    scaled = {name: unit * getattr(estimate, name) for name in ("estimates", "errors", "smallest")}
    return Counted(**{**vars(estimate), **scaled}, way=how.heat, heat=heat)


def heats(
    data: FederatedData, weighting: str, how: Counting, source: RandomBytes = os.urandom
) -> dict[str, Counted]:
    """The heat of every table that is shared, in one of four ways."""
    weights = data.weights(weighting)
    return {
        table: count(index, weights, data.tables[table], how, values_of(data, table), source)
        for table, index in data.index.items()
        if table not in data.local
    }


def values_of(data: FederatedData, table: str) -> Values:
    """The raw values behind a table's rows."""
    return derived(data.groups.get(table, {}))


@dataclass(frozen=True)
class WayCost:
    """One way's line in the table: what it costs and what it can tell."""

    table: str
    way: str
    bytes_up: float
    error: float  # median standard error, in clients
    epsilon: float
    epsilon_set: float
    smallest: float
    resolved: float  # share of the held rows whose true count is twice its standard error

    @property
    def verdict(self) -> str:
        """What the way is good for, in words."""
        if self.smallest <= 1:
            return "resolves every row"
        if not self.resolved:
            return "resolves nothing useful: no row is held by enough clients"
        return f"resolves {self.resolved:.1%} of the rows"


def table(
    data: FederatedData, how: Counting | None = None, source: RandomBytes = os.urandom
) -> list[WayCost]:
    """Bytes, error, ε and the smallest count resolved, for the four ways on a task's own data."""
    how = replace(how or Counting(), heat="exact", heat_cap=None)
    lines = []
    for way in WAYS:
        for name, counted in heats(data, "uniform", replace(how, heat=way), source).items():
            true = heat_of(data.index[name], data.weights("uniform")).counts.cpu().numpy()
            lines.append(
                WayCost(
                    name,
                    way,
                    counted.bytes_up,
                    float(np.median(counted.errors)) if len(true) else 0.0,
                    counted.epsilon,
                    counted.epsilon_set,
                    counted.smallest,
                    float((true >= RESOLVED * counted.errors).mean()) if len(true) else 0.0,
                )
            )
    return lines


def _estimate(holders: Holders, how: Counting, source: RandomBytes) -> Estimate:
    if how.heat == "hashed":
        salt = int.from_bytes(source(8), "big")  # public, but fresh
        return by_sketch(holders, Oracle(how.heat_epsilon, salt, how.heat_buckets), source)
    return (by_row if how.coins == "row" else by_value)(holders, how.heat_epsilon, source)


def _clear(heat: Heat, index: Index, rows: int, how: Counting) -> Counted:
    """The true heat: a word per id in the clear, a word per row of the table in a secure sum."""
    word = 4 if heat.total < 2**32 and rows <= 2**32 else 8
    ids = len(index.ids) / max(index.clients, 1)
    counts, sent = heat.counts.cpu().numpy(), word * (ids if how.heat == "exact" else rows)
    return Counted(counts, np.zeros(len(counts)), sent, math.inf, math.inf, 1.0, how.heat, heat)
