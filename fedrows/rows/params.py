"""A model's numbers: whole at the server, cut into submodels for a cohort, added up again.

    take     download     rows = table[ids], dense tensors stacked K times
    total    aggregate    Σ_k share_k · Δ_k, with share_k = w_k / Σ w
    add_     apply        one index_add_ per table

All of it costs what it touches: O(rows of the cohort), never O(table).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import prod

import torch
from torch import Tensor

from fedrows.rows.index import Index


@dataclass
class Params:
    """The whole model, or anything of its shape (a momentum, a control variate)."""

    tables: dict[str, Tensor]  # (rows, width) each
    dense: dict[str, Tensor]

    def map(self, change: Callable[[Tensor], Tensor]) -> Params:
        """A new model with `change` applied to every tensor."""
        return Params(
            {name: change(x) for name, x in self.tables.items()},
            {name: change(x) for name, x in self.dense.items()},
        )

    def without(self, tables: Collection[str]) -> Params:
        """The same tensors but for some tables."""
        return Params({t: x for t, x in self.tables.items() if t not in tables}, self.dense)

    def copy(self) -> Params:
        """The same numbers in tensors of their own."""
        return self.map(Tensor.clone)


@dataclass
class Submodels:
    """The submodels of K clients, or anything of their shape (gradients, updates).

    Rows are flat and ragged, each client having its own copy; dense tensors are stacked.
    """

    index: Mapping[str, Index]
    rows: dict[str, Tensor]  # (R, width) each
    dense: dict[str, Tensor]  # (K, …) each

    def map(self, change: Callable[..., Tensor], *others: Submodels) -> Submodels:
        """New submodels, `change` applied to every tensor together with the others' like-named."""
        return Submodels(
            self.index,
            {t: change(x, *(o.rows[t] for o in others)) for t, x in self.rows.items()},
            {d: change(x, *(o.dense[d] for o in others)) for d, x in self.dense.items()},
        )

    def without(self, tables: Collection[str]) -> Submodels:
        """The same tensors but for some tables."""
        if not tables:
            return self
        index = {t: sets for t, sets in self.index.items() if t not in tables}
        return Submodels(index, {t: self.rows[t] for t in index}, self.dense)

    def add_(self, other: Submodels, scale: float | Tensor = 1.0) -> None:
        """Adds scale · other to every number."""
        own = [*self.rows.values(), *self.dense.values()]
        others = [*(other.rows[t] for t in self.rows), *(other.dense[d] for d in self.dense)]
        if isinstance(scale, Tensor):  # on the GPU, not known to the host
            others, scale = list(torch._foreach_mul(others, scale)), 1.0
        # One kernel for all that lie alike in memory; a single stranger would undo that.
        alike = [x.stride() == y.stride() for x, y in zip(own, others, strict=True)]
        for x, y in itertools.compress(zip(own, others, strict=True), [not a for a in alike]):
            x.add_(y, alpha=scale)
        if any(alike):
            into, added = (list(itertools.compress(xs, alike)) for xs in (own, others))
            torch._foreach_add_(into, added, alpha=scale)

    def scale_(self, by_client: Tensor) -> None:
        """Multiplies each client's numbers by its own factor (K,)."""
        some = next(iter((*self.rows.values(), *self.dense.values())))
        by_client = by_client.to(some.device, non_blocking=True)
        for table, rows in self.rows.items():
            rows.mul_(by_client[self.index[table].owner, None])
        for dense in self.dense.values():
            dense.mul_(by_client.view(-1, *[1] * (dense.dim() - 1)))

    def norms(self) -> Tensor:
        """The Euclidean norm of each client's numbers over all tables and dense tensors: (K,)."""
        squares: Tensor | None = None
        for table, rows in self.rows.items():
            index = self.index[table]
            part = rows.new_zeros(index.clients)
            part.index_add_(0, index.owner, rows.square().sum(1))
            squares = part if squares is None else squares + part
        for dense in self.dense.values():
            part = dense.reshape(len(dense), prod(dense.shape[1:])).square().sum(1)
            squares = part if squares is None else squares + part
        assert squares is not None, "a model has at least one tensor"
        return squares.sqrt()

    def slice(self, start: int, stop: int) -> Submodels:
        """The submodels of the clients start … stop−1, as views."""
        index = {table: whole.slice(start, stop) for table, whole in self.index.items()}
        rows = {}
        for table, whole in self.index.items():
            low, high = int(whole.splits[start]), int(whole.splits[stop])
            rows[table] = self.rows[table][low:high]
        return Submodels(index, rows, {d: x[start:stop] for d, x in self.dense.items()})


def join(index: Mapping[str, Index], parts: list[Submodels]) -> Submodels:
    """The parts of a cohort, client after client, as one; the inverse of slicing."""
    if len(parts) == 1:
        return parts[0]
    return Submodels(
        index,
        {table: torch.cat([part.rows[table] for part in parts]) for table in parts[0].rows},
        {name: torch.cat([part.dense[name] for part in parts]) for name in parts[0].dense},
    )


def take(params: Params, index: Mapping[str, Index], clients: int) -> Submodels:
    """Every client's own copy of its rows and of the dense tensors: the download of a round."""
    return Submodels(
        index,
        {table: index_select(params.tables[table], rows.ids) for table, rows in index.items()},
        {name: x.expand(clients, *x.shape).clone() for name, x in params.dense.items()},
    )


@dataclass
class RowTotal:
    """One table's share of a total: every client's entry times its share, not yet added up.

    Most algorithms only add it onto the table, which one `index_add_` does straight from this
    form; `merged` adds the entries of each row up for those that need the sum itself.
    """

    index: Index
    values: Tensor  # (R, width), share_k · Δ_k
    share: Tensor  # (R,), share_k
    occurred: Tensor | None = None  # (R,), whether the row was in its client's batches; if asked

    def add_(self, table: Tensor, factor: Tensor | None = None) -> None:
        """table[m] += factor[m] · Σ_k share_k · Δ_k[m]; the factor is given per entry (R,)."""
        values = self.values if factor is None else self.values * factor[:, None]
        index_add_(table, self.index.ids, values)

    @cached_property
    def merged(self) -> MergedRows:
        """The rows of the cohort, each once."""
        ids, inverse = torch.unique(self.index.ids, return_inverse=True)
        values = self.values.new_zeros(len(ids), self.values.shape[1])
        index_add_(values, inverse, self.values)
        return MergedRows(ids, inverse, values)


@dataclass
class MergedRows:
    """The union of the cohort's rows: ids (U,), the sums (U, width), and entry → row (R,)."""

    ids: Tensor
    inverse: Tensor
    values: Tensor

    def sum(self, entries: Tensor) -> Tensor:
        """Adds up one number per entry (R,) by row: (U,)."""
        return entries.new_zeros(len(self.ids)).index_add_(0, self.inverse, entries)

    def one_of(self, entries: Tensor) -> Tensor:
        """One number per row (U,) out of one per entry (R,) that is the same in all of a row."""
        return entries.new_empty(len(self.ids)).index_copy_(0, self.inverse, entries)


@dataclass
class Total:
    """What a cohort's updates come to: Σ_k share_k · Δ_k, and the same for any extra upload."""

    rows: dict[str, RowTotal]
    dense: dict[str, Tensor]
    share: Tensor  # (K,), each client's share, adding up to 1
    weight: float  # Σ_k w_k, the weight that 1 stands for
    steps: Tensor  # (K,), the local steps each client took
    extra: dict[str, Total] = field(default_factory=dict)

    def add_(self, params: Params, factors: Mapping[str, Tensor] | None = None) -> None:
        """Adds the total to the model; rows times their factor where one is given."""
        for table, rows in self.rows.items():
            rows.add_(params.tables[table], None if factors is None else factors[table])
        for name, dense in self.dense.items():
            params.dense[name].add_(dense)


def total(
    updates: Submodels,
    weights: Tensor,
    steps: Tensor,
    occurred: Mapping[str, Tensor] | None = None,
) -> Total:
    """The weighted mean of K clients' updates: the one aggregation there is.

    A row's mean divides by the weight of the whole cohort, as if the clients without it had sent
    zero. Clients are added in cohort order, so the result does not depend on chunks.
    """
    weight = float(weights.sum())
    share = weights / weight  # (K,)
    some = next(iter((*updates.rows.values(), *updates.dense.values())))
    own = share.to(some.device, some.dtype, non_blocking=True)  # to where the numbers are, once
    rows, dense = mean(updates, own)
    if occurred is not None:
        rows = {table: replace(x, occurred=occurred[table]) for table, x in rows.items()}
    return Total(rows, dense, share, weight, steps)


def mean(updates: Submodels, share: Tensor) -> tuple[dict[str, RowTotal], dict[str, Tensor]]:
    """Σ_k share_k · Δ_k of the rows and of the dense tensors, the shares being where they are."""
    rows = {}
    for table, values in updates.rows.items():
        index = updates.index[table]
        per_entry = index.spread(share)  # (R,)
        rows[table] = RowTotal(index, values * per_entry[:, None], per_entry)
    dense = {
        name: torch.mv(x.reshape(len(x), -1).t(), share).view(x.shape[1:])  # (K, …), (K,) → (…)
        for name, x in updates.dense.items()
    }
    return rows, dense


def index_select(table: Tensor, ids: Tensor) -> Tensor:
    """table[ids]; a table one wide is read as a vector, which PyTorch does four times as fast."""
    if table.shape[1] == 1 and type(table) is Tensor:
        return table.view(-1).index_select(0, ids).view(-1, 1)
    return table.index_select(0, ids)


def index_add_(table: Tensor, ids: Tensor, values: Tensor) -> None:
    """table[ids] += values, adding duplicates in order; a table one wide goes in as a vector."""
    if table.shape[1] == 1 and type(table) is Tensor:
        table.view(-1).index_add_(0, ids, values.view(-1))
    else:
        table.index_add_(0, ids, values)
