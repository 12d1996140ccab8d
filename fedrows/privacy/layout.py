"""How the updates of a round lie in the one vector of a secure sum, and how they are read back.

The rows of each table's union come one after another, and behind them the figures (weight, loss)
and the dense numbers. Tables of different widths share one sum: a row is cut into pieces as wide as
the greatest common divisor of all widths, and every piece has its row's holders. Where rows of few
stay closed, the figures and the dense numbers are one row each: what a single party has put there
is opened no more than its rows are. Else they are opened in any case.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from fedrows.privacy.families import RowFamilies
from fedrows.privacy.keys import MaskWords
from fedrows.privacy.noisy_coding import WordCoding
from fedrows.privacy.openings import Openings
from fedrows.privacy.options import Privacy
from fedrows.privacy.ring import Coding
from fedrows.privacy.values import Values
from fedrows.rows.params import Submodels


@dataclass(frozen=True, eq=False)
class Contribution:
    """What P parties put into one sum, before it is coded and masked."""

    rows: Submodels  # float64, on the CPU; a party holds every row of its index
    extra: np.ndarray  # (P, extra), what stands behind the rows
    rest: Mapping[str, np.ndarray]  # table → (R, width), what was too large to be sent


@dataclass(frozen=True, eq=False)
class OpenedRows:
    """What a sum shows: rows with enough holders, and the numbers behind them."""

    rows: Mapping[str, tuple[np.ndarray, np.ndarray]]  # table → opened (U,), sums (U, width)
    extra: np.ndarray  # (extra,), 0 where too few have contributed

    @property
    def marks(self) -> dict[str, np.ndarray]:
        """Which rows of each table's union were opened: (U,)."""
        return {table: opened for table, (opened, _) in self.rows.items()}


@dataclass(frozen=True, eq=False)
class SumLayout:
    """The vector of one round."""

    union: Mapping[str, np.ndarray]  # table → ids, sorted
    widths: Mapping[str, int]
    extra: int  # numbers behind the rows
    values: Mapping[str, Values] | None = None  # what rows are made of; None: all are opened
    figures: int = 0  # of the numbers behind the rows, those that come before the dense ones

    @property
    def piece(self) -> int:
        """How wide a piece is."""
        return math.gcd(*self.widths.values()) if self.widths else 1

    @property
    def numbers(self) -> int:
        """Numbers that all rows have."""
        return sum(len(ids) * self.widths[table] for table, ids in self.union.items())

    @property
    def pieces(self) -> int:
        """Pieces that all rows have, and what opens as rows do."""
        return self.numbers // self.piece + sum(pieces for _, _, pieces in self.behind)

    @cached_property
    def behind(self) -> list[tuple[int, int, int]]:
        """What opens as rows do, of the numbers behind them: from, to, and in how many pieces."""
        if self.values is None:
            return []
        cuts = (0, self.figures), (self.figures, self.extra)
        return [(low, high, -(-(high - low) // self.piece)) for low, high in cuts if low < high]

    @cached_property
    def starts(self) -> dict[str, int]:
        """Where each table's numbers begin."""
        starts, start = {}, 0
        for table, ids in self.union.items():
            starts[table] = start
            start += len(ids) * self.widths[table]
        return starts

    @cached_property
    def families(self) -> RowFamilies | None:
        """Which rows are refinements of others."""
        if self.values is None:
            return None
        pieces = {table: width // self.piece for table, width in self.widths.items()}
        behind = [pieces for _, _, pieces in self.behind]
        return RowFamilies.of(self.union, self.values, pieces, behind)

    def plan(
        self, name: str, cohort: tuple[int, ...], privacy: Privacy, coding: WordCoding, turn: int
    ) -> Openings:
        """The protocol's own plan of such a sum. turn: the number of the round."""
        return Openings(
            name,
            cohort,
            self.pieces,
            self.piece,
            privacy.min_contributors,
            0 if self.behind else self.extra,
            privacy.openers,
            coding.dtype.name,
            self.families,
            turn,
        )

    def opened(
        self, words: MaskWords, pieces: np.ndarray, extra: MaskWords, coding: WordCoding
    ) -> OpenedRows:
        """Sums of words, and which pieces were opened, as numbers table by table.

        extra: the words that were opened in any case.
        """
        numbers, rows = coding.decode(words), {}
        for table, opened in self.marks(pieces).items():
            size, width, start = len(opened), self.widths[table], self.starts[table]
            sums = numbers[start : start + size * width].reshape(size, width)
            rows[table] = opened, np.where(opened[:, None], sums, 0.0)
        if not self.behind:
            return OpenedRows(rows, coding.decode(extra))
        behind, at = np.zeros(self.extra), self.numbers // self.piece
        for low, high, each in self.behind:
            if pieces[at]:
                behind[low:high] = numbers[at * self.piece :][: high - low]
            at += each
        return OpenedRows(rows, behind)

    def marks(self, pieces: np.ndarray) -> dict[str, np.ndarray]:
        """Which rows of each table's union were opened, from the pieces that were: (U,)."""
        marks = {}
        for table, ids in self.union.items():
            first, each = self.starts[table] // self.piece, self.widths[table] // self.piece
            marks[table] = pieces[first : first + len(ids) * each : each]
        return marks

    def nothing(self) -> OpenedRows:
        """What is left of a sum that failed."""
        none = {table: np.zeros(len(ids), dtype=bool) for table, ids in self.union.items()}
        rows = {t: (marks, np.zeros((len(marks), self.widths[t]))) for t, marks in none.items()}
        return OpenedRows(rows, np.zeros(self.extra))


class PartyVectors:
    """The vectors of the parties of one contribution."""

    def __init__(self, layout: SumLayout, contribution: Contribution, coding: Coding) -> None:
        self.layout, self.contribution, self.coding = layout, contribution, coding
        index = contribution.rows.index
        self._splits = {table: sets.splits.numpy() for table, sets in index.items()}
        self._at = {
            table: np.searchsorted(layout.union[table], sets.ids.numpy())
            for table, sets in index.items()
        }

    def words(self, party: int, name: int | None = None) -> tuple[MaskWords, np.ndarray, MaskWords]:
        """A party's rows (pieces, piece), which of them it holds, and the words behind.

        What opens as rows do is among the rows. Zeros there are no contribution.
        Raises a RangeError that names the party if a number does not fit.
        """
        layout = self.layout
        places, values = [np.empty(0, dtype=np.int64)], [np.empty(0)]
        holds = np.zeros(layout.pieces, dtype=bool)
        for table, width in layout.widths.items():
            low, high = self._splits[table][party : party + 2]
            at = self._at[table][low:high, None]
            places.append((layout.starts[table] + at * width + np.arange(width)).reshape(-1))
            values.append(self.contribution.rows.rows[table][low:high].numpy().reshape(-1))
            each = width // layout.piece
            holds[layout.starts[table] // layout.piece + at * each + np.arange(each)] = True
        extra, first = self.contribution.extra[party], layout.numbers // layout.piece
        for low, high, pieces in layout.behind:
            places.append(first * layout.piece + np.arange(high - low))
            holds[first : first + pieces] = extra[low:high].any()
            first += pieces
        words = self.coding.encode(np.concatenate([*values, extra]), name)
        rows = np.zeros(layout.pieces * layout.piece, dtype=self.coding.dtype)
        count = sum(map(len, places))
        rows[np.concatenate(places)] = words[:count]
        return rows.reshape(-1, layout.piece), holds, words[count:]

    def fitting(self) -> np.ndarray:
        """Whether each party's numbers are all within the range: (P,)."""
        limit, parts = self.coding.range, self.contribution
        fits = (np.abs(parts.extra) <= limit).all(1)
        for table, sets in parts.rows.index.items():
            wrong = ~(np.abs(parts.rows.rows[table].numpy()) <= limit).all(1)
            fits[sets.owner.numpy()[wrong]] = False
        return fits

    def total(self, inside: np.ndarray) -> tuple[MaskWords, np.ndarray, MaskWords]:
        """The sum of some parties' words, the holders of each piece, and the words behind."""
        layout, parts = self.layout, self.contribution
        words = np.zeros(layout.pieces * layout.piece, dtype=self.coding.dtype)
        counts = np.zeros(layout.pieces, dtype=np.int64)
        for table, width in layout.widths.items():
            own = inside[parts.rows.index[table].owner.numpy()]
            at, values = self._at[table][own], parts.rows.rows[table].numpy()[own]
            size, start = len(layout.union[table]), layout.starts[table]
            encoded = self.coding.encode(values).reshape(-1, width)
            np.add.at(words[start : start + size * width].reshape(-1, width), at, encoded)
            each, first = width // layout.piece, start // layout.piece
            holders = np.repeat(np.bincount(at, minlength=size), each)
            counts[first : first + size * each] = holders
        behind = self.coding.encode(parts.extra[inside])
        extra = behind.reshape(-1, layout.extra).sum(0, dtype=self.coding.dtype)
        first = layout.numbers // layout.piece
        for low, high, pieces in layout.behind:
            words[first * layout.piece :][: high - low] = extra[low:high]
            counts[first : first + pieces] = parts.extra[inside, low:high].any(1).sum()
            first += pieces
        return words, counts, extra[:0] if layout.behind else extra
