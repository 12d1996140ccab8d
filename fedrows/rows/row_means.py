"""The means of a row over a cohort: what its total Σ_k share_k · Δ_k[m] is multiplied by.

    cohort     1                        the clients without the row count as zero: FedAvg
    heat       1 / p_m                  the expected weight of its holders: FedSubAvg
    holders    1 / s_m                  the weight of the holders that are present
    stepped    1 / t_m                  the weight of those in whose batches the row occurred
    bounded    1 / max(p_m, s_m)        the larger of what is expected and what is present

p_m is the share of all clients' weight that holds row m, s_m the share of the cohort's weight, and
t_m the part of s_m whose batches had the row in them. A factor is given for every entry of a
cohort's block (R,), and is the same in all entries of a row.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import torch
from torch import Tensor

from fedrows.rows.heat import Heat
from fedrows.rows.index import Index
from fedrows.rows.params import RowTotal

MEANS = ("cohort", "heat", "holders", "stepped", "bounded")


def row_factors(mean: str, table: str, rows: RowTotal, heat: Mapping[str, Heat]) -> Tensor:
    """The factor of every entry of a table's total (R,), by the name of the mean."""
    if mean == "heat":
        return heat[table].correction(rows.index, rows.share.dtype)
    if mean == "holders":
        return holders_factor(rows.index, rows.share)
    if mean == "stepped":
        return stepped_factor(rows)
    if mean == "bounded":
        return bounded_factor(rows.index, rows.share, heat[table])
    return torch.ones_like(rows.share)


def row_mean(
    mean: str, table: str, rows: RowTotal, heat: Mapping[str, Heat]
) -> tuple[Tensor, Tensor]:
    """The rows that a cohort has something to say on, each once, and their means: (U,), (U, width).

    These are the rows that somebody in the cohort holds; for the mean "stepped" those that occurred
    in somebody's batches.
    """
    merged = rows.merged
    factors = merged.one_of(row_factors(mean, table, rows, heat))  # (U,)
    values = merged.values * factors[:, None]
    if mean != "stepped" or rows.occurred is None:
        return merged.ids, values
    counted = merged.sum(rows.occurred.to(values.dtype)) > 0
    return merged.ids[counted], values[counted]


def holders_factor(index: Index, share: Tensor) -> Tensor:
    """1 / s_m, from each entry's share of the mean (R,)."""
    return 1 / index.sum_by_row(share)


def stepped_factor(rows: RowTotal) -> Tensor:
    """1 / t_m; 1 for a row that occurred in nobody's batches."""
    assert rows.occurred is not None, "the algorithm's `needs_occurred` asks clients for it"
    stepped = rows.index.sum_by_row(rows.share * rows.occurred)
    return torch.where(stepped > 0, 1 / stepped, 1.0)


def bounded_factor(index: Index, share: Tensor, heat: Heat) -> Tensor:
    """1 / max(p_m, s_m), which is the smaller of FedSubAvg's factor and the holders' mean's."""
    return torch.minimum(heat.correction(index, share.dtype), holders_factor(index, share))


def known_factors(
    mean: str,
    index: Mapping[str, Index],
    heat: Mapping[str, Heat],
    dtype: torch.dtype,
    share: Tensor | None,
) -> dict[str, Tensor] | None:
    """`Algorithm.correction` of a mean: its factors by table, before anything was trained.

    share: of each client of the index (K,); None: not known, and the factors are the largest
    possible. What occurs in batches is not known then, so the mean "stepped" has no factors here.
    """
    if mean == "heat" or (mean == "bounded" and share is None):
        return {table: heat[table].correction(x, dtype) for table, x in index.items()}
    if share is None or mean not in ("holders", "bounded"):
        return None
    spread = {table: x.spread(share.to(dtype)) for table, x in index.items()}
    if mean == "holders":
        return {table: holders_factor(x, spread[table]) for table, x in index.items()}
    return {table: bounded_factor(x, spread[table], heat[table]) for table, x in index.items()}


class SteppedBy(Protocol):
    """An algorithm with the option `mean`."""

    @property
    def mean(self) -> str:
        """The name of the mean."""


def correction_by_mean(
    algorithm: SteppedBy,
    index: Mapping[str, Index],
    heat: Mapping[str, Heat],
    dtype: torch.dtype,
    share: Tensor | None = None,
) -> dict[str, Tensor] | None:
    """The method `correction` of an algorithm with the option `mean`."""
    return known_factors(algorithm.mean, index, heat, dtype, share)


def needs_occurred_by_mean(algorithm: SteppedBy) -> bool:
    """The property `needs_occurred` of an algorithm with the option `mean`."""
    return algorithm.mean == "stepped"
