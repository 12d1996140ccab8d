"""Heat: how many clients hold each row, and the correction that FedSubAvg derives from it.

    count[m] = Σ w_i over the clients i with m ∈ S(i),   total = Σ w_i over all clients

Unit weights give the paper's n_m and N, example counts its weighted form. The weights must be
those of the mean. Kept sparse: only rows that somebody holds have an entry. Where clients also draw
rows at random, counts are expectations, and all rows that nobody holds have one and the same.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

from fedrows.rows.index import Index


@dataclass(frozen=True, eq=False)
class Heat:
    """The heat of one table."""

    ids: Tensor  # (H,), sorted
    counts: Tensor  # (H,), float64
    total: float
    rest: float = 0.0  # the count of every row that is not in `ids`
    _factors: dict[tuple[float | None, float, torch.dtype], Tensor] = field(
        default_factory=dict, repr=False
    )

    def correction(
        self,
        index: Index,
        dtype: torch.dtype = torch.float64,
        cap: float | None = None,
        alpha: float = 1.0,
    ) -> Tensor:
        """min(cap, (total / count)^alpha) for every entry of an index; 1 where the count is 0."""
        key = (cap, alpha, dtype)
        if key not in self._factors:
            factors = torch.where(self.counts > 0, self.total / self.counts, 1.0) ** alpha
            self._factors[key] = factors.clamp(max=torch.inf if cap is None else cap).to(dtype)
        factors = self._factors[key]
        if index.place is not None and index.held is self.ids:
            return factors.index_select(0, index.place)
        missing = (self.total / self.rest) ** alpha if self.rest else 1.0
        return self._look_up(factors, index.ids, missing if cap is None else min(cap, missing))

    @property
    def dispersion(self) -> float:
        """max n_m / min n_m over the rows that somebody holds."""
        held = self.counts[self.counts > 0]
        return float(held.max() / held.min()) if len(held) else float("nan")

    def between(self, low: int, high: int) -> Heat:
        """The heat of the rows low … high−1 alone: one group of features in a shared table."""
        inside = (self.ids >= low) & (self.ids < high)
        return Heat(self.ids[inside], self.counts[inside], self.total, self.rest)

    def of(self, ids: Tensor) -> Tensor:
        """The count of each id of any shape; 0 where nobody has it."""
        return self._look_up(self.counts, ids, missing=self.rest)

    def changed(self, ids: Tensor, counts: Tensor, total: float, rest: float = 0.0) -> Heat:
        """The heat after some counts (R,) were added at ids (R,), or taken away; ids may repeat.

        rest: what is added to every row on top of that. Costs O(rows that somebody holds), not the
        sum over all clients.
        """
        every, position = torch.unique(torch.cat([self.ids, ids]), return_inverse=True)
        sums = torch.zeros(len(every), dtype=torch.float64, device=every.device)
        counts = counts.to(torch.float64)
        sums.index_add_(0, position, torch.cat([self.counts - self.rest, counts]))
        held = sums > 1e-9 * self.total  # what is left of a sum that was taken away again
        everywhere = max(self.rest + rest, 0.0)
        return Heat(every[held], sums[held] + everywhere, self.total + total, everywhere)

    def _look_up(self, values: Tensor, ids: Tensor, missing: float) -> Tensor:
        """The value that stands at each id, by binary search."""
        if not len(self.ids):
            return torch.full(ids.shape, missing, dtype=values.dtype, device=ids.device)
        position = torch.searchsorted(self.ids, ids).clamp_(max=len(self.ids) - 1)
        return torch.where(self.ids[position] == ids, values[position], missing)


def ceiling(counts: Tensor, quantile: float | None) -> float:
    """The most examples (N,) that a client's weight counts: a quantile of them, up to a power of 2.

    So a client that claims more than others have gains little, and a newcomer rarely changes the
    weights of all. Fewer than the share 1 − quantile of the clients cannot raise it.
    """
    if quantile is None or not len(counts):
        return math.inf
    return 2.0 ** math.ceil(math.log2(max(1.0, float(lower_quantile(counts.double(), quantile)))))


def lower_quantile(values: Tensor, quantile: float) -> Tensor:
    """The value at rank floor(quantile · (n − 1)) of the n that are not NaN; NaN if none is.

    Of each row of values (…, n) by itself. It never is the largest of two or more, unless the
    quantile is 1.
    """
    ascending = values.sort().values  # NaN comes last
    count = (~values.isnan()).sum(-1)
    rank = ((count - 1) * quantile + 1e-9).floor().clamp(min=0).to(torch.int64)
    return ascending.gather(-1, rank[..., None])[..., 0]


def heat_of(index: Index, weights: Tensor) -> Heat:
    """The heat that a federation's index sets and its clients' weights (N,) add up to."""
    if index.held is not None and index.place is not None:
        held, position = index.held, index.place
    else:
        held, position = torch.unique(index.ids, return_inverse=True)
    weights = weights.to(torch.float64)
    counts = torch.zeros(len(held), dtype=torch.float64, device=held.device)
    counts.index_add_(0, position, index.spread(weights))
    return Heat(held, counts, float(weights.sum()))
