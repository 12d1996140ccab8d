"""The mean update of a cohort out of a secure sum: weighted, or clipped and noisy.

weighted   Σ_k w_k Δ_k / Σ_k w_k over the rows with enough holders; a client holds the rest back
noisy      ( Σ_k ū_k + noise ) / D on rows chosen in private (`privacy.central`); the rest is
           dropped, since it would count in a round that its client was not drawn for
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedrows.privacy.central import CentralDP, Touched, corrected
from fedrows.privacy.keys import NodeKey
from fedrows.privacy.noise import Source
from fedrows.privacy.options import Privacy
from fedrows.privacy.ring import Coding
from fedrows.private.asking import Asked
from fedrows.private.held import HeldBack
from fedrows.private.summing import Opened, Parts, SecureSum, Shape
from fedrows.rows.heat import Heat
from fedrows.rows.params import Submodels
from fedrows.simulator.simulated import SimulatedFleet

PRECISION = 1e-6  # of a mean, after the correction
SLACK = 1e-6  # share of a clipped norm that is left for rounding to fixed point


@dataclass(frozen=True, eq=False)
class Sending:
    """What a cohort is about to send, and under which name."""

    cohort: list[int]
    update: Submodels  # of K clients, shared tables only, float64 on the CPU
    active: np.ndarray  # (K,), who has trained; the others send zeros, which does not show
    weights: np.ndarray  # (K,)
    asked: Asked
    name: str
    threshold: int
    nodes: Mapping[int, NodeKey]
    drop: Mapping[int, int]


@dataclass(frozen=True, eq=False)
class Mean:
    """What the server makes of it; without weight there is nothing."""

    opened: Opened
    weight: float = 0.0
    rows: Mapping[str, tuple[Tensor, Tensor]] | None = None  # table → ids, rows
    dense: Mapping[str, Tensor] | None = None


class WeightedMean:
    """Sums of weighted updates, of rows that enough clients hold."""

    def __init__(
        self,
        fleet: SimulatedFleet,
        privacy: Privacy,
        widths: Mapping[str, int],
        heat: Mapping[str, Heat],
        threshold: int,
        held: HeldBack,
    ) -> None:
        self._widths, self._held, self._range = widths, held, privacy.update_range
        heaviest, lightest = float(fleet.weights.max()), float(fleet.weights.min())
        coding = Coding(
            heaviest * max(1.0, privacy.update_range),
            fleet.plan.clients_per_round,
            fleet.algorithm.largest_correction({table: heat[table] for table in widths}),
            PRECISION,
            max(threshold * lightest, 1e-9),
        )
        self._sum = _secure_sum(privacy, coding)

    def send(self, sending: Sending, source: Source) -> Mean:
        """The mean of one round; what was not opened is held back."""
        who = [one if a else -1 for one, a in zip(sending.cohort, sending.active, strict=True)]
        whole = self._held.joined(sending.update, who, sending.asked.union)
        cut = {t: x.clamp(-self._range, self._range) for t, x in whole.rows.items()}
        weights = sending.weights * sending.active
        weighted = Submodels(whole.index, dict(cut), whole.dense).map(torch.clone)
        weighted.scale_(torch.from_numpy(weights))
        extra = np.concatenate([_flat(weighted, len(who)), weights[:, None]], axis=1)
        opened = _add_up(self._sum, sending, Parts(weighted, extra), self._widths)
        rest = {table: (x - cut[table]).numpy() for table, x in whole.rows.items()}
        self._hold_back(who, sending, whole, rest, opened)
        dense, at = _unflat(opened.extra, whole.dense)
        weight = float(opened.extra[at])
        if not opened.clients.any() or not weight > 0:
            return Mean(opened)
        rows = {
            table: (
                torch.from_numpy(sending.asked.union[table][marks]),
                torch.from_numpy(sums[marks]) / weight,
            )
            for table, (marks, sums) in opened.rows.items()
        }
        return Mean(opened, weight, rows, {name: x / weight for name, x in dense.items()})

    def _hold_back(
        self,
        who: list[int],
        sending: Sending,
        whole: Submodels,
        rest: Mapping[str, np.ndarray],
        opened: Opened,
    ) -> None:
        """What was not opened, or did not fit, stays with its client."""
        sent, names = opened.clients & sending.active, np.array(who)
        for table, index in whole.index.items():
            marks, union = opened.rows[table][0], sending.asked.union[table]
            owner, ids = index.owner.numpy(), index.ids.numpy()
            mine = np.flatnonzero(sent[owner])
            owner, ids, rows = owner[mine], ids[mine], whole.rows[table].numpy()[mine]
            shown = marks[np.searchsorted(union, ids)]
            left = np.where(shown[:, None], rest[table][mine], rows)
            # Who was not told what was opened must send nothing twice.
            self._held.put_(table, names[owner], ids, left * opened.heard[owner][:, None])


class NoisyMean:
    """Sums of clipped updates, with noise, on rows chosen in private."""

    def __init__(
        self,
        fleet: SimulatedFleet,
        privacy: Privacy,
        widths: Mapping[str, int],
        heat: Mapping[str, Heat],
        central: CentralDP,
    ) -> None:
        self._fleet, self._widths, self._heat, self._central = fleet, widths, heat, central
        numbers = fleet.model.schema.dense_size + 1
        for table, width in widths.items():
            numbers += width * int(fleet.data.index[table].lengths.max())
        # Rounding moves d numbers by √d steps at most, which the slack has room for.
        precise = min(PRECISION, SLACK * min(central.clip, 1.0) / math.sqrt(numbers))
        cohort = fleet.plan.clients_per_round
        coding = Coding(max(central.clip, 1.0), cohort, precision=precise)
        self._sum = _secure_sum(privacy, coding)

    def send(self, sending: Sending, source: Source) -> Mean:
        """The private mean of one round."""
        central, fleet, count = self._central, self._fleet, len(sending.cohort)
        exact = sending.update
        index = {table: its.to(fleet.device) for table, its in exact.index.items()}
        factors = fleet.algorithm.correction(index, self._heat, torch.float64)
        if factors is not None:
            exact = corrected(exact, {table: x.cpu() for table, x in factors.items()})
        exact = central.clipped(exact, torch.from_numpy(sending.weights))
        exact.scale_(torch.full((count,), 1 - SLACK, dtype=torch.float64))
        parts = Parts(self._with_counts(exact), _flat(exact, count))
        wider = {table: width + 1 for table, width in self._widths.items()}
        opened = _add_up(self._sum, sending, parts, wider)
        if not opened.clients.any():
            return Mean(opened)
        touched = {
            table: Touched(
                torch.from_numpy(sending.asked.union[table]),
                torch.from_numpy(sums[:, -1].copy()),
                torch.from_numpy(sums[:, :-1].copy()),
            )
            for table, (_, sums) in opened.rows.items()
        }
        dense, _ = _unflat(opened.extra, exact.dense)
        sizes = {table: fleet.model.schema.tables[table].rows for table in touched}
        cohort = fleet.plan.clients_per_round
        return Mean(opened, 1.0, *central.noised(touched, dense, sizes, cohort, source))

    def _with_counts(self, exact: Submodels) -> Submodels:
        """The rows with 1 / √|S(i)| behind each, |S(i)| over all tables together."""
        if not exact.index:
            return exact
        sizes = torch.stack([its.lengths for its in exact.index.values()]).sum(0)
        part = (1 - SLACK) * sizes.to(torch.float64).clamp(min=1).rsqrt()  # (K,)
        rows = {
            table: torch.cat([x, part[exact.index[table].owner][:, None]], dim=1)
            for table, x in exact.rows.items()
        }
        return Submodels(exact.index, rows, exact.dense)


def _secure_sum(privacy: Privacy, coding: Coding) -> SecureSum:
    return SecureSum(
        privacy.min_contributors,
        privacy.openers,
        coding,
        privacy.colluding,
        privacy.secure_sum == "real",
    )


def _add_up(sum_: SecureSum, sending: Sending, parts: Parts, widths: Mapping[str, int]) -> Opened:
    shape = Shape(sending.asked.union, widths, parts.extra.shape[1])
    return sum_.add_up(
        shape,
        parts,
        sending.cohort,
        sending.asked.there,
        sending.name,
        sending.threshold,
        sending.nodes,
        sending.drop,
    )


def _flat(update: Submodels, clients: int) -> np.ndarray:
    """Each client's dense numbers in one line: (K, D)."""
    parts = [x.reshape(clients, -1).numpy() for x in update.dense.values()]
    return np.concatenate([np.empty((clients, 0)), *parts], axis=1)


def _unflat(numbers: np.ndarray, like: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], int]:
    """Dense tensors out of one line, and where it goes on."""
    found, at = {}, 0
    for name, x in like.items():
        size = math.prod(x.shape[1:])
        found[name] = torch.from_numpy(numbers[at : at + size].copy()).view(x.shape[1:])
        at += size
    return found, at
