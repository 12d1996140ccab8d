"""The weighted mean of a cohort's updates out of a secure sum, of rows that enough parties hold.

    a party sends    S = Σ w_k Δ_k / keep over its clients k + what it has held back,
                     cut to ± range · Σ w_k
    the server has   Σ S / Σ w on the rows with enough holders

`keep` is the probability that a holder asks for its row, by which its update was divided. What is
cut off or not opened stays with the party, which adds it to its next upload.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from fedrows.algorithm import Algorithm
from fedrows.privacy.families import contributed_values, families_of, refined
from fedrows.privacy.held_back import NOBODY, HeldBack
from fedrows.privacy.layout import Contribution, OpenedRows, SumLayout
from fedrows.privacy.protocol import ProtocolError
from fedrows.privacy.ring import Coding
from fedrows.privacy.values import Values
from fedrows.rows.heat import Heat
from fedrows.rows.index import Index
from fedrows.rows.params import Submodels

PRECISION = 1e-6  # of a mean, after the correction
WEIGHT_SLACK = 1e-3  # of a weight sum: its words are rounded


@dataclass(frozen=True, eq=False)
class ClientUpdates:
    """What the clients of a cohort that have trained made of their rows."""

    update: Submodels  # of A clients, shared tables only, float64 on the CPU
    weights: np.ndarray  # (A,)
    party: np.ndarray  # (A,), the place of each client's party, rising
    names: np.ndarray  # (P,), of the parties, by which they hold rows back
    losses: np.ndarray  # (A,), before they trained; 0 if they are not told


@dataclass(frozen=True, eq=False)
class Mean:
    """What the server makes of a sum."""

    weight: float
    rows: Mapping[str, tuple[Tensor, Tensor]]  # table → ids, rows
    dense: Mapping[str, Tensor]
    loss: float | None = None  # before training, if it was told


@dataclass(frozen=True)
class WeightedMean:
    """The client's and the server's part in a weighted mean."""

    widths: Mapping[str, int]  # of the shared tables
    dense: Mapping[str, tuple[int, ...]]  # shapes
    range: float  # the largest number of a party's mean update
    losses: bool = False  # whether clients tell their loss
    values: Mapping[str, Values] | None = None  # what rows are made of, if rows of few are closed

    def layout(self, union: Mapping[str, np.ndarray]) -> SumLayout:
        """The vector of a round over a union."""
        extra = 1 + self.losses + dense_size(self.dense)
        return SumLayout(union, self.widths, extra, self.values, 1 + self.losses)

    def coding(self, weights: np.ndarray, parties: int, least: int, correction: float) -> Coding:
        """How numbers are written: precise after the largest correction.

        weights: of the parties there may be. least: how many of them are in a sum at least.
        """
        lightest = float(np.sort(weights)[:least].sum())
        largest = float(weights.max()) * max(1.0, self.range)
        return Coding(largest, parties, correction, PRECISION, max(lightest, 1e-9))

    def contribute(
        self, updates: ClientUpdates, union: Mapping[str, np.ndarray], held: HeldBack
    ) -> Contribution:
        """What the parties send; one without a client that trained sends zeros."""
        party, count = updates.party, len(updates.names)
        weights = torch.from_numpy(updates.weights)
        weighted = updates.update.map(torch.clone)
        weighted.scale_(weights)
        totals = np.bincount(party, updates.weights, minlength=count)
        names = np.where(totals > 0, updates.names, NOBODY)
        joined = self._contributed(held.joined(weighted, party, names, union, self.values))
        rows, rest = {}, {}
        for table, x in joined.rows.items():
            most = self.range * torch.from_numpy(totals)[joined.index[table].owner][:, None]
            rows[table] = x.clamp(-most, most)
            rest[table] = (x - rows[table]).numpy()
        figures = [totals[:, None]]
        if self.losses:
            # A loss above the range of a number would leave its client out of the sum.
            loss = np.minimum(updates.losses, max(1.0, self.range))
            figures.append(np.bincount(party, updates.weights * loss, minlength=count)[:, None])
        extra = np.concatenate([*figures, dense_lines(weighted, self.dense, party, count)], axis=1)
        return Contribution(Submodels(joined.index, rows, {}), extra, rest)

    def within_range(self, sent: Contribution) -> Contribution:
        """What a node sends instead: numbers that are finite and in the range of an honest coding.

        A node that dropped out for a number would tell the server of it.
        """
        most = max(1.0, self.range) * sent.extra[:, :1]
        return Contribution(
            sent.rows.map(torch.nan_to_num),
            np.clip(np.nan_to_num(sent.extra), -most, most),
            {t: np.nan_to_num(x, posinf=0.0, neginf=0.0) for t, x in sent.rest.items()},
        )

    def keep_(
        self,
        held: HeldBack,
        sent: Contribution,
        names: np.ndarray,
        layout: SumLayout,
        opened: Mapping[str, np.ndarray],
        inside: np.ndarray,
        heard: np.ndarray,
    ) -> None:
        """What was not opened, or was too large, stays with its party.

        opened: table → (U,), the rows that count as sent. inside: whether each party's part is in
        the sum: (P,). heard: whether it has a proof of what was opened; without one it sends
        nothing twice. Of a value that was opened in part the rest is dropped: sent later, without
        the other rows of the value, it could be taken apart.
        """
        for table, index in sent.rows.index.items():
            owner, ids = index.owner.numpy(), index.ids.numpy()
            own = np.flatnonzero(inside[owner])
            owner, ids, rest = owner[own], ids[own], sent.rest[table][own]
            shown = opened[table][np.searchsorted(layout.union[table], ids)]
            left = np.where(shown[:, None], rest, sent.rows.rows[table].numpy()[own] + rest)
            if self.values is not None and refined(self.values[table]):
                raw, _ = self.values[table].of(layout.union[table])
                touched = np.isin(raw, raw[opened[table]])
                left[touched[np.searchsorted(layout.union[table], ids)]] = 0.0
            held.put_(table, names[owner], ids, left * heard[owner][:, None])

    def _contributed(self, rows: Submodels) -> Submodels:
        """The rows that a party counts as a contributor of, where rows of few stay closed.

        A value of which it has nothing but zeros hides nobody else's number. One that it does not
        have whole could be taken apart.
        """
        if self.values is None:
            return rows
        index, parts = dict(rows.index), dict(rows.rows)
        for table, sets in rows.index.items():
            owner, ids = sets.owner.numpy(), sets.ids.numpy()
            some = np.asarray(rows.rows[table].numpy().any(1))
            counts = contributed_values(owner, ids, some, self.values[table])
            if not counts.all():
                keep = torch.from_numpy(counts)
                splits = np.searchsorted(owner[counts], np.arange(sets.clients + 1))
                index[table] = Index(sets.ids[keep], torch.from_numpy(splits))
                parts[table] = rows.rows[table][keep]
        return Submodels(index, parts, rows.dense)

    def mean(self, opened: OpenedRows, layout: SumLayout) -> Mean | None:
        """The mean out of a sum; None if nobody in it has trained, or too few have.

        A row of one of F families may open in every F-th round only. It then counts F times, so
        that it moves as far as if it could in each.
        """
        weight, rows = float(opened.extra[0]), {}
        if not weight > 0:
            return None
        for table, (marks, sums) in opened.rows.items():
            ids, mean = layout.union[table][marks], sums[marks] / weight
            if self.values is not None:
                raw, _ = self.values[table].of(ids)
                mean *= np.where(raw == ids, 1, families_of(raw, self.values[table]))[:, None]
            rows[table] = torch.from_numpy(ids), torch.from_numpy(mean)
        dense = dense_of(opened.extra[1 + self.losses :] / weight, self.dense)
        return Mean(weight, rows, dense, opened.extra[1] / weight if self.losses else None)

    def bounded(
        self, mean: Mean | None, weights: Tensor, algorithm: Algorithm, heat: Mapping[str, Heat]
    ) -> Mean | None:
        """The mean within the bounds of honest ones, or a ProtocolError if its weight is wrong.

            weight   at most that of all clients that were asked, and at least that of one
            row      no further than ± range once it is corrected, as far as one party may move it

        A sum that a liar has been in may lie anywhere in the ring. A weight sum outside of its
        bounds ends the round, for every number is divided by it; rows and dense numbers are
        clamped. weights: of the clients whose parties are in the sum (K,).
        """
        if mean is None:
            return None
        least = float(weights.min()) * (1 - WEIGHT_SLACK)
        most = float(weights.sum()) * (1 + WEIGHT_SLACK)
        if not least <= mean.weight <= most:
            raise ProtocolError(
                f"The weights of the sum add up to {mean.weight:g}, but only {least:g} to {most:g} "
                "can be right: a node lies about its clients' examples."
            )
        index = {t: Index(ids, torch.tensor([0, len(ids)])) for t, (ids, _) in mean.rows.items()}
        factors = algorithm.correction(index, heat, torch.float64) or {}
        rows = {}
        for table, (ids, values) in mean.rows.items():
            factor = factors.get(table, torch.ones(len(ids), dtype=torch.float64)).clamp(min=1)
            far = (self.range / factor)[:, None].to(values.dtype)
            rows[table] = ids, values.clamp(-far, far)
        most = max(1.0, self.range)  # as far as a number of the sum is coded
        dense = {name: x.clamp(-most, most) for name, x in mean.dense.items()}
        return replace(mean, rows=rows, dense=dense)


def dense_size(shapes: Mapping[str, tuple[int, ...]]) -> int:
    """Numbers of all dense tensors."""
    return sum(math.prod(shape) for shape in shapes.values())


def dense_lines(
    update: Submodels, names: Iterable[str], party: np.ndarray, count: int
) -> np.ndarray:
    """Clients' dense tensors added up by party, in one line each: (P, D)."""
    parts = [update.dense[name].unsqueeze(-1).flatten(1) for name in names]
    flat = torch.cat([torch.zeros(len(party), 0, dtype=torch.float64), *parts], dim=1)
    sums = torch.zeros(count, flat.shape[1], dtype=torch.float64)
    return sums.index_add_(0, torch.from_numpy(party), flat).numpy()


def dense_of(
    numbers: np.ndarray, shapes: Mapping[str, tuple[int, ...]]
) -> dict[str, Tensor]:  # fmt: skip
    """Dense tensors out of one line of numbers."""
    tensors, at = {}, 0
    for name, shape in shapes.items():
        size = math.prod(shape)
        tensors[name] = torch.from_numpy(numbers[at : at + size].copy()).view(shape)
        at += size
    return tensors
