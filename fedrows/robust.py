"""Rules that bound what a few lying clients can do to a round, before its updates are added up.

    RowClip       rows of Δ_k at a running quantile           no client moves its rows far
    clip_norms_   Δ_k · min(1, bound / ‖Δ_k‖)                no client moves the model far
    trim          a row's holders send their trimmed mean     no few holders move a row at all

All take and give the updates of a cohort, so that `params.total` stays the one aggregation.
Updates are taken to be finite. A row with few holders has nobody to outvote a liar: there only the
clipping and a cap on the correction N/n_m help.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor

from fedrows.errors import PlanError
from fedrows.rows.heat import lower_quantile
from fedrows.rows.params import Submodels

WINDOW = 1000  # clients that a running quantile is taken over


class RowClip:
    """Clips each row of each client's update, as it is sent and as it will move the model.

        sent     ‖Δ_k[m]‖                       what a client asks for
        moved    c_m · share_k · ‖Δ_k[m]‖       how far it moves the row, after the correction c_m

    Each client has one say on each of four bounds: its largest row, and the root mean square of its
    rows, both sent and moved. The first keeps a client from moving one row far, the second from
    moving all of its rows as far as the first allows. A bound is a quantile of what the last 1,000
    clients said, the present cohort included. So fewer than the share 1 − quantile of the clients
    cannot raise it above what honest ones send, however many rows or examples and however little
    heat they claim. A dense tensor counts as one row. Costs O(rows of the cohort).
    """

    def __init__(self, quantile: float, tensors: Iterable[str]) -> None:
        self.quantile = quantile
        self.windows = {  # NaN: nobody yet; the newest client is last
            f"{measure}/{name}": torch.full((WINDOW,), torch.nan, dtype=torch.float64)
            for name in tensors
            for measure in ("largest-sent", "largest-moved", "mean-sent", "mean-moved")
        }

    def clip(
        self,
        update: Submodels,
        share: Tensor,
        correction: Mapping[str, Tensor] | None = None,
        part: str = "",
    ) -> Submodels:
        """A cohort's updates with their rows clipped; takes note of how large they were.

        share: of each client in the mean (K,). correction: of each row of the updates (R,).
        part: what goes before the tensors' names, for what is sent beside the update. The bounds
        are hundreds of small operations, so they are found on the CPU.
        """
        tensors = [*update.rows.values(), *(x.reshape(len(x), -1) for x in update.dense.values())]
        norms = [x.double().norm(dim=1) for x in tensors]  # a liar's squares need float64
        factors = [] if correction is None else [correction[t].double() for t in update.rows]
        on_cpu = _split(torch.cat([*norms, *factors]).cpu(), [*norms, *factors])
        by_table = dict(zip(update.rows, on_cpu, strict=False))
        factor = dict(zip(update.rows, on_cpu[len(norms) :], strict=False))
        share, scales = share.to("cpu", torch.float64), []
        for table, sent in by_table.items():
            owner = torch.repeat_interleave(update.index[table].lengths)  # (R,), on the CPU
            moves = share[owner] * factor.get(table, 1.0)
            scales.append(self._scale(part + table, sent, owner, moves, len(share)))
        if update.dense:
            sizes = torch.stack(on_cpu[len(update.rows) : len(norms)])  # (T, K)
            names = [part + name for name in update.dense]
            scales += [*self._scale_dense(names, sizes, share)]
        device = tensors[0].device
        scale_of = _split(torch.cat(scales).to(device, tensors[0].dtype), scales)
        clipped = [x * scale[:, None] for x, scale in zip(tensors, scale_of, strict=True)]
        rows = dict(zip(update.rows, clipped, strict=False))
        left = zip(update.dense.items(), clipped[len(rows) :], strict=True)
        return Submodels(update.index, rows, {name: y.view(x.shape) for (name, x), y in left})

    def _scale(
        self, name: str, norms: Tensor, owner: Tensor, moves: Tensor, clients: int
    ) -> Tensor:  # fmt: skip
        """What each row of a table is multiplied by: (R,)."""
        scale, none = torch.ones_like(norms), norms.new_zeros(clients)
        measures = {"sent": norms, "moved": norms * moves}
        for measure, sizes in measures.items():
            sizes = sizes * scale
            largest = none.scatter_reduce(0, owner, sizes, "amax")
            bound = self._bounds([f"largest-{measure}/{name}"], largest[None])
            scale = scale * torch.where(sizes > bound, bound / sizes, 1.0)
        count = none.index_add(0, owner, (norms > 0).double()).clamp(min=1)
        for measure, sizes in measures.items():
            mean = (none.index_add(0, owner, (sizes * scale).square()) / count).sqrt()
            bound = self._bounds([f"mean-{measure}/{name}"], mean[None])
            scale = scale * torch.where(mean > bound, bound / mean, 1.0)[owner]
        return scale

    def _scale_dense(self, names: list[str], norms: Tensor, share: Tensor) -> Tensor:
        """What each client's tensors are multiplied by: (T, K). The only row is also the mean."""
        scale = torch.ones_like(norms)
        for measure, sizes in {"sent": norms, "moved": norms * share}.items():
            sizes = sizes * scale
            bounds = self._bounds([f"largest-{measure}/{name}" for name in names], sizes)[:, None]
            scale = scale * torch.where(sizes > bounds, bounds / sizes, 1.0)
        return scale

    def _bounds(self, names: list[str], sizes: Tensor) -> Tensor:
        """The quantiles (T,) of what the last clients have said, once these (T, K) have."""
        windows = torch.stack([self.windows[name] for name in names])
        # Who sends nothing has no say.
        reported = torch.cat([windows, torch.where(sizes > 0, sizes, torch.nan)], dim=1)
        for name, window in zip(names, reported[:, -WINDOW:], strict=True):
            self.windows[name].copy_(window)
        return lower_quantile(reported, self.quantile)


def _split(values: Tensor, like: Sequence[Tensor]) -> list[Tensor]:
    """One vector cut into parts as long as others."""
    return list(values.split([len(x) for x in like]))


def clip_norms_(update: Submodels, bound: float) -> Tensor:
    """Scales each client's update to a norm of at most `bound`; which clients it cut: (K,) bool."""
    if not (bound > 0 and math.isfinite(bound)):
        raise PlanError(f"The bound on an update's norm is {bound}: give a positive number.")
    norms = update.map(Tensor.double).norms()  # a liar's squares may not fit into float32
    clipped = norms > bound
    if bool(clipped.any()):
        update.scale_(torch.where(clipped, bound / norms, 1.0))
    return clipped


def trim(update: Submodels, share: float) -> Submodels:
    """The updates with every entry of a row replaced by the row's trimmed mean, by coordinate.

    Of the h entries of a row, floor(share · h) are dropped at each end, and of the K of a dense
    tensor floor(share · K). Where that is none the entries stay as they are. With no more liars
    among the holders than are dropped at one end, the mean lies between two honest entries.
    A trimmed row's mean is the plain one, because a weight would be one more thing to lie about.
    """
    if not 0 <= share < 0.5:
        raise PlanError(f"The share to trim at each end is {share}: give one from 0 to below 0.5.")
    rows = {table: _trim(x, update.index[table].ids, share) for table, x in update.rows.items()}
    dense = {}
    for name, x in update.dense.items():
        same = torch.zeros(len(x), dtype=torch.int64, device=x.device)  # all hold the same thing
        dense[name] = _trim(x.reshape(len(x), -1), same, share).view(x.shape)
    return Submodels(update.index, rows, dense)


def _trim(values: Tensor, ids: Tensor, share: float) -> Tensor:
    """Each entry's trimmed mean over the entries of the same id: (R, width), (R,) → (R, width)."""
    _, group, held = torch.unique(ids, return_inverse=True, return_counts=True)
    drop = _drops(held, share)
    result = values.clone()
    crowded = (drop[group] > 0).nonzero().squeeze(1)  # the entries of rows that drop some: (C,)
    if not len(crowded):
        return result
    values, group = values[crowded], group[crowded]
    # Sorted by value and then, stably, by group: every group's entries ascend, in each column.
    ascending, order = values.sort(0)
    ascending = ascending.gather(0, group[order].argsort(dim=0, stable=True))  # (C, width)
    group_of = group.sort().values  # (C,), the same in all columns
    size = torch.where(drop > 0, held, 0)
    start = size.cumsum(0) - size
    position = torch.arange(len(group_of), device=values.device) - start[group_of]  # in its group
    inner = (position >= drop[group_of]) & (position < (held - drop)[group_of])
    sums = values.new_zeros(len(held), values.shape[1])
    sums.index_add_(0, group_of[inner], ascending[inner])
    means = sums / (held - 2 * drop)[:, None].to(values.dtype)
    result[crowded] = means[group]
    return result


def _drops(held: Tensor, share: float) -> Tensor:
    """floor(share · h), as it is on paper: 0.29 · 100 is 29; and something is always left."""
    drop = (held.to(torch.float64) * share + 1e-9).floor().to(torch.int64)
    return torch.minimum(drop, torch.div(held - 1, 2, rounding_mode="floor"))
