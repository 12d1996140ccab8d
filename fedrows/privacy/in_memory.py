"""Protocols carried within this process: a simulated cohort's union and sum, real or without masks.

real         both halves of every protocol run, message by message
arithmetic   the same results from the plain numbers, for research
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from fedrows.privacy import openings, union
from fedrows.privacy.keys import NodeKey
from fedrows.privacy.layout import Contribution, OpenedRows, PartyVectors, SumLayout
from fedrows.privacy.options import Privacy
from fedrows.privacy.protocol import Phase, ProtocolError, run
from fedrows.privacy.ring import Coding, RangeError
from fedrows.privacy.server_side import plan_bytes


class ClientKeys(dict[int, NodeKey]):
    """A signing key for every client, made when it is first needed."""

    def __missing__(self, client: int) -> NodeKey:
        self[client] = NodeKey(os.urandom(32))
        return self[client]


@dataclass(eq=False)
class UnionOutcome:
    """What came of a union."""

    places: np.ndarray  # sorted
    there: np.ndarray  # (K,), whether each client came through
    bytes_up: float = 0.0  # of all clients together
    bytes_down: float = 0.0
    failed: str = ""  # why there is no union


@dataclass(eq=False)
class SumOutcome:
    """What came of a sum."""

    opened: OpenedRows
    inside: np.ndarray  # (K,), whose parts are in it
    heard: np.ndarray  # (K,), who was told what was opened
    bytes_up: float = 0.0  # of all clients together
    bytes_down: float = 0.0
    left_out: dict[int, str] = field(default_factory=dict)  # client → why it is not in it
    failed: str = ""  # why nothing was opened


@dataclass(frozen=True)
class InMemoryProtocols:
    """Carries the protocols of one round of a cohort.

    `drop`, in what follows, is the first phase in which a client falls silent: for tests.
    """

    privacy: Privacy
    keys: ClientKeys
    cohort: list[int]
    name: str  # of the round; never serves twice

    @property
    def threshold(self) -> int:
        """How many clients must stay, or nothing is opened."""
        return self.privacy.least(len(self.cohort))

    def unite(
        self, plan: union.UnionPlan, sets: Mapping[int, np.ndarray], drop: Mapping[int, int]
    ) -> UnionOutcome:
        """The union of the clients' sets of places."""
        nobody, nothing = np.zeros(len(self.cohort), dtype=bool), np.empty(0, dtype=np.int64)
        if self.privacy.secure_sum == "arithmetic":
            through = sets.keys() - drop.keys()
            ids = np.unique(np.concatenate([nothing, *(sets[one] for one in through)]))
            up = float(len(self.cohort) * plan_bytes(plan))
            down = float(4 * len(ids) * len(self.cohort))
        else:
            cohort = tuple(sorted(sets))
            terms = union.terms(plan, f"{self.name}, union", cohort, self.threshold)
            registry = {one: self.keys[one].public for one in cohort}
            halves = {
                one: union.client(terms, plan, one, self.keys[one], registry, sets[one])
                for one in cohort
            }
            try:
                outcome = run(union.server(terms, plan, registry), halves, drop)
            except ProtocolError as error:
                return UnionOutcome(nothing, nobody, failed=str(error))
            up, down = _bytes(outcome.phases)
            ids, through = outcome.result.ids, set(outcome.clients)
        there = np.array([one in through for one in self.cohort])
        return UnionOutcome(ids, there, up, down)

    def add_up(
        self,
        layout: SumLayout,
        contribution: Contribution,
        coding: Coding,
        there: np.ndarray,
        drop: Mapping[int, int],
    ) -> SumOutcome:
        """The sum over the clients that are there (K,)."""
        vectors = PartyVectors(layout, contribution, coding)
        left_out: dict[int, str] = {}
        for place in np.flatnonzero(there & ~vectors.fitting()).tolist():
            try:
                vectors.words(place, self.cohort[place])
            except RangeError as error:
                left_out[self.cohort[place]] = str(error)
        inside = [
            place for place in np.flatnonzero(there).tolist() if self.cohort[place] not in left_out
        ]
        try:
            if self.privacy.secure_sum == "real":
                outcome = self._real(layout, vectors, inside, drop)
            else:
                outcome = self._arithmetic(layout, vectors, inside, drop)
        except ProtocolError as error:
            nobody = np.zeros(len(self.cohort), dtype=bool)
            outcome = SumOutcome(layout.nothing(), nobody, nobody, failed=str(error))
        outcome.left_out |= left_out
        return outcome

    def _arithmetic(
        self,
        layout: SumLayout,
        vectors: PartyVectors,
        inside: list[int],
        drop: Mapping[int, int],
    ) -> SumOutcome:
        inside = [place for place in inside if self.cohort[place] not in drop]
        self._check_enough(len(inside), self.threshold)
        marks = np.zeros(len(self.cohort), dtype=bool)
        marks[inside] = True
        words, holders, extra = vectors.total(marks)
        opened = layout.opened(
            words, holders >= self.privacy.min_contributors, extra, vectors.coding
        )
        cohort = tuple(range(len(self.cohort)))
        plan = layout.plan("arithmetic", cohort, self.privacy, vectors.coding)
        size = float(len(cohort) * plan.length * vectors.coding.dtype.itemsize)
        return SumOutcome(opened, marks, marks, size)

    def _real(
        self,
        layout: SumLayout,
        vectors: PartyVectors,
        inside: list[int],
        drop: Mapping[int, int],
    ) -> SumOutcome:
        needed = max(self.threshold, self.privacy.min_contributors, self.privacy.openers)
        self._check_enough(len(inside), needed)
        members = tuple(self.cohort[place] for place in inside)
        plan = layout.plan(f"{self.name}, update", members, self.privacy, vectors.coding)
        terms = plan.terms(self.threshold, colluding=self.privacy.colluding)
        registry = {one: self.keys[one].public for one in members}
        halves = {}
        for place, one in zip(inside, members, strict=True):
            words = vectors.words(place, one)
            halves[one] = openings.client(plan, terms, one, self.keys[one], registry, *words)
        outcome = run(openings.server(plan, terms, registry), halves, drop)
        result, total = outcome.result, outcome.result.total
        opened = layout.opened(result.rows.reshape(-1), result.opened, result.extra, vectors.coding)
        marks = np.array([one in total.clients for one in self.cohort])
        heard = np.array([one in outcome.clients for one in self.cohort])
        return SumOutcome(opened, marks, heard, *_bytes(outcome.phases), dict(total.left_out))

    def _check_enough(self, clients: int, needed: int) -> None:
        if clients < needed:
            raise ProtocolError(
                f"{clients} of {len(self.cohort)} clients are left, but {needed} are needed: "
                "nothing was opened."
            )


def _bytes(phases: list[Phase]) -> tuple[float, float]:
    """What all clients of a protocol sent, and were sent."""
    return float(sum(x.bytes_up for x in phases)), float(sum(x.bytes_down for x in phases))
