"""A cohort's updates added up over a union of rows, so that nobody's own is ever seen.

The vector of a client has the rows of each table's union one after another, and behind them what is
opened in any case. Tables of different widths share one sum: a row is cut into pieces as wide as
the greatest common divisor of all widths, and every piece has its row's holders.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from fedrows.privacy import openings
from fedrows.privacy.keys import NodeKey
from fedrows.privacy.openings import Openings
from fedrows.privacy.protocol import ProtocolError, run
from fedrows.privacy.ring import Coding, RangeError
from fedrows.rows.params import Submodels


@dataclass(frozen=True)
class Shape:
    """The vector of one round."""

    union: Mapping[str, np.ndarray]  # table → ids, sorted
    widths: Mapping[str, int]
    extra: int  # numbers behind the rows

    @property
    def piece(self) -> int:
        """How wide a piece is."""
        return math.gcd(*self.widths.values()) if self.widths else 1

    @property
    def rows(self) -> int:
        """Numbers that all rows have."""
        return sum(len(ids) * self.widths[table] for table, ids in self.union.items())

    def starts(self) -> dict[str, int]:
        """Where each table's numbers begin."""
        found, start = {}, 0
        for table, ids in self.union.items():
            found[table] = start
            start += len(ids) * self.widths[table]
        return found


@dataclass(frozen=True, eq=False)
class Parts:
    """What the clients of a cohort put into a sum.

    index and rows are those of K clients, with 0 rows for who sends none; every row of the index
    is one that its client holds.
    """

    rows: Submodels  # float64, on the CPU
    extra: np.ndarray  # (K, extra)


@dataclass(eq=False)
class Opened:
    """What came out."""

    rows: dict[str, tuple[np.ndarray, np.ndarray]]  # table → opened marks (U,), sums (U, width)
    extra: np.ndarray  # (extra,)
    clients: np.ndarray  # (K,), whose parts are in it
    heard: np.ndarray  # (K,), who was told what was opened
    bytes_up: float = 0.0  # of all clients together
    bytes_down: float = 0.0
    left_out: dict[int, str] = field(default_factory=dict)  # client → why it is not in it
    failed: str = ""  # why nothing was opened


@dataclass(frozen=True)
class SecureSum:
    """How parts are added up."""

    minimum: int
    openers: int
    coding: Coding
    colluding: int = 1
    real: bool = True

    def plan(self, shape: Shape, cohort: tuple[int, ...], name: str) -> Openings:
        """The protocol's own plan of a sum."""
        rows = shape.rows // shape.piece
        word = self.coding.dtype.name
        return Openings(
            name, cohort, rows, shape.piece, self.minimum, shape.extra, self.openers, word
        )

    def add_up(
        self,
        shape: Shape,
        parts: Parts,
        cohort: list[int],
        taking_part: np.ndarray,
        name: str,
        threshold: int,
        nodes: Mapping[int, NodeKey],
        drop: Mapping[int, int],
    ) -> Opened:
        """The sum over those of a cohort that take part (K,), by the protocol or by arithmetic."""
        vectors = _Vectors(shape, parts, self.coding)
        left_out: dict[int, str] = {}
        for place in np.flatnonzero(taking_part & ~vectors.fitting()).tolist():
            try:
                vectors.encode(place, cohort[place])
            except RangeError as error:
                left_out[cohort[place]] = str(error)
        inside = [k for k, there in enumerate(taking_part) if there and cohort[k] not in left_out]
        try:
            if self.real:
                made = self._real(shape, vectors, inside, cohort, name, threshold, nodes, drop)
            else:
                made = self._arithmetic(shape, vectors, inside, cohort, threshold, drop)
        except ProtocolError as error:
            made = vectors.nothing(len(cohort), str(error))
        made.left_out |= left_out
        return made

    def _arithmetic(
        self,
        shape: Shape,
        vectors: _Vectors,
        inside: list[int],
        cohort: list[int],
        threshold: int,
        drop: Mapping[int, int],
    ) -> Opened:
        inside = [place for place in inside if cohort[place] not in drop]
        _check_enough(len(inside), len(cohort), threshold)
        marks = np.zeros(len(cohort), dtype=bool)
        marks[inside] = True
        words, pieces, extra = vectors.total(marks)
        plan = self.plan(shape, tuple(range(len(cohort))), "arithmetic")
        size = float(len(cohort) * plan.length * self.coding.dtype.itemsize)
        return vectors.opened(words, pieces >= self.minimum, extra, marks, marks, size, 0.0)

    def _real(
        self,
        shape: Shape,
        vectors: _Vectors,
        inside: list[int],
        cohort: list[int],
        name: str,
        threshold: int,
        nodes: Mapping[int, NodeKey],
        drop: Mapping[int, int],
    ) -> Opened:
        _check_enough(len(inside), len(cohort), max(threshold, self.minimum, self.openers))
        members = tuple(cohort[place] for place in inside)
        plan = self.plan(shape, members, f"{name}, update")
        terms = plan.terms(threshold, colluding=self.colluding)
        registry = {one: nodes[one].public for one in members}
        halves = {}
        for place in inside:
            at, values, extra = vectors.encode(place, cohort[place])
            whole = np.zeros(shape.rows, dtype=self.coding.dtype)
            whole[at] = values
            holds = np.zeros(plan.rows, dtype=bool)
            holds[vectors.pieces(place)] = True
            one = cohort[place]
            halves[one] = openings.client(
                plan, terms, one, nodes[one], registry, whole.reshape(-1, shape.piece), holds, extra
            )
        outcome = run(openings.server(plan, terms, registry), halves, drop)
        result = outcome.result
        in_it, told = set(result.total.clients), outcome.clients.keys()
        marks = np.array([one in in_it for one in cohort])
        heard = np.array([one in told for one in cohort])
        up, down = (
            float(sum(getattr(phase, which) for phase in outcome.phases))
            for which in ("bytes_up", "bytes_down")
        )
        made = vectors.opened(
            result.rows.reshape(-1), result.opened, result.extra, marks, heard, up, down
        )
        made.left_out = dict(result.total.left_out)
        return made


class _Vectors:
    """From submodels to places in a vector, and back."""

    def __init__(self, shape: Shape, parts: Parts, coding: Coding) -> None:
        self.shape, self.parts, self.coding = shape, parts, coding
        self._starts = shape.starts()
        self._splits = {t: its.splits.numpy() for t, its in parts.rows.index.items()}
        self._at = {
            table: np.searchsorted(shape.union[table], its.ids.numpy())
            for table, its in parts.rows.index.items()
        }

    def encode(self, place: int, client: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """A client's places, the words there, and the words behind the rows."""
        places, values = [np.empty(0, dtype=np.int64)], [np.empty(0)]
        for table, width in self.shape.widths.items():
            low, high = self._splits[table][place : place + 2]
            at = self._starts[table] + self._at[table][low:high, None] * width + np.arange(width)
            places.append(at.reshape(-1))
            values.append(self.parts.rows.rows[table][low:high].numpy().reshape(-1))
        values.append(self.parts.extra[place])
        words = self.coding.encode(np.concatenate(values), client)
        rows = len(words) - self.shape.extra
        return np.concatenate(places), words[:rows], words[rows:]

    def pieces(self, place: int) -> np.ndarray:
        """The pieces of the rows that a client holds."""
        found = [np.empty(0, dtype=np.int64)]
        for table, width in self.shape.widths.items():
            low, high = self._splits[table][place : place + 2]
            each = width // self.shape.piece
            first = self._starts[table] // self.shape.piece + self._at[table][low:high, None] * each
            found.append((first + np.arange(each)).reshape(-1))
        return np.concatenate(found)

    def fitting(self) -> np.ndarray:
        """Whether each client's numbers are all within the range: (K,)."""
        limit = self.coding.range
        fits = (np.abs(self.parts.extra) <= limit).all(1)
        for table, its in self.parts.rows.index.items():
            wrong = ~(np.abs(self.parts.rows.rows[table].numpy()) <= limit).all(1)
            fits[its.owner.numpy()[wrong]] = False
        return fits

    def total(self, inside: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The sum of some clients' words, the holders of each piece, and the words behind."""
        words = np.zeros(self.shape.rows, dtype=self.coding.dtype)
        counts = np.zeros(self.shape.rows // self.shape.piece, dtype=np.int64)
        for table, width in self.shape.widths.items():
            mine = inside[self.parts.rows.index[table].owner.numpy()]
            at, values = self._at[table][mine], self.parts.rows.rows[table].numpy()[mine]
            size, start = len(self.shape.union[table]), self._starts[table]
            encoded = self.coding.encode(values).reshape(-1, width)
            np.add.at(words[start : start + size * width].reshape(-1, width), at, encoded)
            each, first = width // self.shape.piece, start // self.shape.piece
            holders = np.repeat(np.bincount(at, minlength=size), each)
            counts[first : first + size * each] = holders
        behind = self.coding.encode(self.parts.extra[inside])
        extra = behind.reshape(-1, self.shape.extra).sum(0, dtype=self.coding.dtype)
        return words, counts, extra

    def opened(
        self,
        words: np.ndarray,
        pieces: np.ndarray,
        extra: np.ndarray,
        clients: np.ndarray,
        heard: np.ndarray,
        up: float,
        down: float,
    ) -> Opened:
        """Sums of words as numbers, table by table."""
        numbers, rows = self.coding.decode(words), {}
        for table, ids in self.shape.union.items():
            width, start = self.shape.widths[table], self._starts[table]
            first, each = start // self.shape.piece, width // self.shape.piece
            marks = pieces[first : first + len(ids) * each : each]
            sums = numbers[start : start + len(ids) * width].reshape(len(ids), width)
            rows[table] = marks, np.where(marks[:, None], sums, 0.0)
        return Opened(rows, self.coding.decode(extra), clients, heard, up, down)

    def nothing(self, clients: int, why: str) -> Opened:
        """What is left of a sum that failed."""
        nobody = np.zeros(clients, dtype=bool)
        rows = {
            table: (np.zeros(len(ids), dtype=bool), np.zeros((len(ids), self.shape.widths[table])))
            for table, ids in self.shape.union.items()
        }
        return Opened(rows, np.zeros(self.shape.extra), nobody, nobody, failed=why)


def _check_enough(clients: int, cohort: int, needed: int) -> None:
    if clients < needed:
        raise ProtocolError(
            f"{clients} of {cohort} clients are left, but {needed} are needed: nothing was opened."
        )
