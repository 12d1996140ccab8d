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
from fedrows.privacy.distributed_mean import NoisyVectors
from fedrows.privacy.keys import NodeKey
from fedrows.privacy.layout import OpenedRows, PartyVectors
from fedrows.privacy.options import Privacy
from fedrows.privacy.protocol import Phase, ProtocolError, run
from fedrows.privacy.ring import RangeError
from fedrows.privacy.server_side import plan_bytes

SumVectors = PartyVectors | NoisyVectors  # of the clients of one sum


class ClientKeys(dict[int, NodeKey]):
    """A signing key for every client, made when it is first needed."""

    def __missing__(self, client: int) -> NodeKey:
        self[client] = NodeKey(os.urandom(32))
        return self[client]


@dataclass(eq=False)
class UnionOutcome:
    """What came of a union."""

    places: np.ndarray  # sorted
    present: np.ndarray  # (K,), whether each client came through
    bytes_up: float = 0.0  # of all clients together
    bytes_down: float = 0.0
    failed: str = ""  # why there is no union


@dataclass(eq=False)
class SumOutcome:
    """What came of a sum."""

    opened: OpenedRows
    inside: np.ndarray  # (K,), whose parts are in it
    sent: np.ndarray  # (K,), who may have sent its part; all of them where a sum failed half-way
    heard: np.ndarray  # (K,), who has a proof of what was opened
    gone: Mapping[str, np.ndarray]  # table → (U,), the rows that count as sent by that proof
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
    round: int = 0

    @property
    def threshold(self) -> int:
        """How many clients must stay, or nothing is opened."""
        return self.privacy.least(len(self.cohort))

    def all_rows(self, rows: int) -> UnionOutcome:
        """Every row instead of a union, which would show what the cohort holds."""
        return UnionOutcome(np.arange(rows), np.ones(len(self.cohort), dtype=bool))

    def unite(
        self, plan: union.UnionPlan, sets: Mapping[int, np.ndarray], drop: Mapping[int, int]
    ) -> UnionOutcome:
        """The union of the clients' sets of places."""
        nobody, nothing = np.zeros(len(self.cohort), dtype=bool), np.empty(0, dtype=np.int64)
        if self.privacy.secure_sum == "arithmetic":
            through = sets.keys() - drop.keys()
            ids = np.unique(np.concatenate([nothing, *(sets[client] for client in through)]))
            up = float(len(self.cohort) * plan_bytes(plan))
            down = float(4 * len(ids) * len(self.cohort))
        else:
            cohort = tuple(sorted(sets))
            colluding = self.privacy.colluding
            terms = union.terms(plan, f"{self.name}, union", cohort, self.threshold, colluding)
            registry = {client: self.keys[client].public for client in cohort}
            halves = {
                client: union.client(terms, plan, client, self.keys[client], registry, sets[client])
                for client in cohort
            }
            try:
                outcome = run(union.server(terms, plan, registry), halves, drop)
            except ProtocolError as error:
                return UnionOutcome(nothing, nobody, failed=str(error))
            up, down = _bytes(outcome.phases)
            ids, through = outcome.result.ids, set(outcome.clients)
        present = np.array([client in through for client in self.cohort])
        return UnionOutcome(ids, present, up, down)

    def add_up(
        self, vectors: SumVectors, present: np.ndarray, drop: Mapping[int, int]
    ) -> SumOutcome:  # fmt: skip
        """The sum over the clients that are present (K,)."""
        left_out: dict[int, str] = {}
        for position in np.flatnonzero(present & ~vectors.fitting()).tolist():
            try:
                vectors.words(position, self.cohort[position])
            except RangeError as error:
                left_out[self.cohort[position]] = str(error)
        inside = [
            position
            for position in np.flatnonzero(present).tolist()
            if self.cohort[position] not in left_out
        ]
        try:
            add_up = self._real if self.privacy.secure_sum == "real" else self._arithmetic
            outcome = add_up(vectors, inside, drop)
        except ProtocolError as error:
            nobody = np.zeros(len(self.cohort), dtype=bool)
            sent, nothing = self._marks(inside), vectors.layout.nothing()
            outcome = SumOutcome(nothing, nobody, sent, nobody, nothing.marks, failed=str(error))
        outcome.left_out |= left_out
        return outcome

    def _arithmetic(
        self, vectors: SumVectors, inside: list[int], drop: Mapping[int, int]
    ) -> SumOutcome:
        inside = [position for position in inside if self.cohort[position] not in drop]
        self._check_enough(len(inside), self.threshold)
        marks = self._marks(inside)
        words, holders, extra = vectors.total(marks)
        cohort, layout = tuple(range(len(self.cohort))), vectors.layout
        plan = layout.plan("arithmetic", cohort, self.privacy, vectors.coding, self.round)
        opened = layout.opened(words, plan.may_open(holders), extra, vectors.coding)
        size = float(len(cohort) * plan.length * vectors.coding.dtype.itemsize)
        return SumOutcome(opened, marks, marks, marks, opened.marks, size)

    def _real(self, vectors: SumVectors, inside: list[int], drop: Mapping[int, int]) -> SumOutcome:
        needed = max(self.threshold, self.privacy.min_contributors, self.privacy.openers)
        self._check_enough(len(inside), needed)
        members = tuple(self.cohort[position] for position in inside)
        layout, about = vectors.layout, f"{self.name}, update"
        plan = layout.plan(about, members, self.privacy, vectors.coding, self.round)
        terms = plan.terms(self.threshold, colluding=self.privacy.colluding)
        registry = {client: self.keys[client].public for client in members}
        halves = {}
        for position, client in zip(inside, members, strict=True):
            words = vectors.words(position, client)
            halves[client] = openings.client(
                plan, terms, client, self.keys[client], registry, *words
            )
        outcome = run(openings.server(plan, terms, registry), halves, drop)
        result, total = outcome.result, outcome.result.total
        opened = layout.opened(result.rows.reshape(-1), result.opened, result.extra, vectors.coding)
        marks = np.array([client in total.clients for client in self.cohort])
        heard = np.array([client in outcome.clients for client in self.cohort])
        proofs = outcome.clients.values()  # the same for all, as this server is honest
        gone = layout.marks(next(iter(proofs), np.ones(plan.rows, dtype=bool)))
        left_out = dict(total.left_out)
        return SumOutcome(opened, marks, marks, heard, gone, *_bytes(outcome.phases), left_out)

    def _marks(self, places: list[int]) -> np.ndarray:
        """Some places of the cohort, marked: (K,)."""
        marks = np.zeros(len(self.cohort), dtype=bool)
        marks[places] = True
        return marks

    def _check_enough(self, clients: int, needed: int) -> None:
        if clients < needed:
            raise ProtocolError(
                f"{clients} of {len(self.cohort)} clients are left, but {needed} are needed: "
                "nothing was opened."
            )


def _bytes(phases: list[Phase]) -> tuple[float, float]:
    """What all clients of a protocol sent, and were sent."""
    return float(sum(x.bytes_up for x in phases)), float(sum(x.bytes_down for x in phases))
