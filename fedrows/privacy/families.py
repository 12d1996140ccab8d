"""Which rows of a sum may open, so that differences of opened rows have enough contributors too.

Rows of one value are refinements of one another. The holders of movie 7 are those of F×7 and M×7
together, so in a linear model  Σ(7) − Σ(F×7)  is what the holders of M×7 sent. A family is one such
split of a value: the rows gender×movie of a movie are one, the rows age×movie another. The plain
rows of a group (all movies) split the dense numbers behind all rows, such as a bias.

With at least `minimum` = t holders, and n the counts that openers know:

    a plain row     opens if n ≥ t
    a group         what is left of the total without its open rows must have 0 or ≥ t contributors
    a value         opens variants only if its plain row is open, of one family in each round
    a family        opens variants with n ≥ t; the rest of the value must have 0 or ≥ t contributors

A rest has at least as many contributors as its largest closed row, and as the value's count is
above the sum of its open variants. If that is not enough, the smallest open row is closed as well,
which has t holders. Two families at a time could not be judged by counts: if the 5 holders of F×7
and the 6 of 18×7 are the same but for one, the difference is that one's number.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from fedrows.errors import PlanError
from fedrows.privacy.messages import digest
from fedrows.privacy.values import Values

_FAMILY = 32  # bits of a variant below the number of its group


@dataclass(frozen=True, eq=False)
class RowFamilies:
    """How the R rows of a sum hang together."""

    group: np.ndarray  # (R,), the group of values that a row belongs to
    value: np.ndarray  # (R,), 0 … V − 1
    family: np.ndarray  # (R,), 0 for a value's plain row, 1 … F for its variants
    families: np.ndarray  # (R,), F of the row's value
    pieces: np.ndarray  # (R,), in how many pieces the sum has a row

    @classmethod
    def of(
        cls,
        union: Mapping[str, np.ndarray],
        values: Mapping[str, Values],
        pieces: Mapping[str, int],
        behind: Sequence[int] = (),
    ) -> RowFamilies:
        """The families among the rows of a union; rows of different tables have none in common.

        pieces: of a row, by table. behind: of more rows behind the union, each for itself.
        """
        parts, groups, start = [], 0, 0
        for table, ids in union.items():
            raw, variant = values[table].of(ids)
            _, group = np.unique(values[table].bases(ids), return_inverse=True)
            _, value = np.unique(raw, return_inverse=True)
            family = np.array(_ranks(values[table]))[variant >> _FAMILY]
            several = families_of(raw, values[table])
            each = np.full(len(ids), pieces[table])
            parts.append((groups + group, start + value, family, several, each))
            groups += int(group.max(initial=-1)) + 1
            start += int(value.max(initial=-1)) + 1
        if behind:
            own, none = np.arange(len(behind)), np.zeros(len(behind), dtype=np.int64)
            parts.append((groups + own, start + own, none, none, np.array(behind)))
        if not parts:
            return cls(*[np.empty(0, dtype=np.int64)] * 5)
        return cls(*(np.concatenate(part).astype(np.int64) for part in zip(*parts, strict=True)))

    @cached_property
    def digest(self) -> bytes:
        """What all halves of a sum must agree on."""
        parts = (self.group, self.value, self.family, self.families, self.pieces)
        return digest(*(part.astype("<i8").tobytes() for part in parts))

    def open(self, counts: np.ndarray, minimum: int, turn: int) -> np.ndarray:
        """The pieces that may open, given how many hold each: (pieces,). See the module.

        turn: the number of the round, by which the families of a value take turns.
        """
        if len(counts) != self.pieces.sum():
            raise PlanError(
                f"The sum has {len(counts)} pieces of rows, but its families have "
                f"{self.pieces.sum()}."
            )
        if not len(counts):
            return np.zeros(0, dtype=bool)
        starts = np.cumsum(self.pieces) - self.pieces
        held = np.minimum.reduceat(counts.astype(np.int64), starts)
        plain = np.zeros(int(self.value.max()) + 1, dtype=np.int64)  # holders of each value
        plain[self.value[self.family == 0]] = held[self.family == 0]
        values = self._open_values(held, minimum, turn)
        opened = values[self.value] & (self.family == 0)
        first = (self.value + turn) % np.maximum(self.families, 1) + 1  # whose turn it is
        variants = np.flatnonzero(values[self.value] & (self.family == first))
        if len(variants):
            variants = variants[np.argsort(self.value[variants], kind="stable")]
            opened[variants] = self._open_variants(variants, held, plain, minimum)
        return np.repeat(opened, self.pieces)

    def _open_values(self, held: np.ndarray, minimum: int, turn: int) -> np.ndarray:
        """Whether each value's plain row opens: (V,)."""
        opened = np.zeros(int(self.value.max()) + 1, dtype=bool)
        rows = np.flatnonzero(self.family == 0)
        opened[self.value[rows[held[rows] >= minimum]]] = True
        closed = rows[(held[rows] > 0) & (held[rows] < minimum)]
        for group in np.unique(self.group[closed]):
            # A row of nobody takes nothing, and no closed row has enough holders yet.
            own = rows[(self.group[rows] == group) & (held[rows] >= minimum)]
            if len(own):
                smallest = own[held[own] == held[own].min()]
                opened[self.value[smallest[turn % len(smallest)]]] = False
        return opened

    def _open_variants(
        self, rows: np.ndarray, held: np.ndarray, plain: np.ndarray, minimum: int
    ) -> np.ndarray:
        """Whether each of some rows opens, which are of one family of each value, in a row."""
        value, n = self.value[rows], held[rows]
        new = np.r_[True, np.diff(value) != 0]
        first, split = np.flatnonzero(new), np.cumsum(new) - 1  # split: the row's place in `first`
        enough = n >= minimum
        rest = np.maximum(
            plain[value[first]] - np.add.reduceat(np.where(enough, n, 0), first),
            np.maximum.reduceat(np.where(enough, 0, n), first),
        )
        short = (rest > 0) & (rest < minimum)
        smallest = np.minimum.reduceat(np.where(enough, n, np.iinfo(np.int64).max), first)
        also = np.flatnonzero(enough & short[split] & (n == smallest[split]))
        _, one_each = np.unique(split[also], return_index=True)
        enough[also[one_each]] = False
        return enough


def contributed_values(
    owner: np.ndarray, ids: np.ndarray, some: np.ndarray, values: Values
) -> np.ndarray:
    """Which entries belong to a value that their owner contributes to: (E,).

    It has a row of every family, the plain row among them, and not all of them are zeros.
    owner, ids: (E,). some: whether the row has a number that is not 0 (E,).
    """
    if not refined(values) or not len(ids):
        return some
    raw, variant = values.of(ids)
    size = int(raw.max()) + 1
    pairs, entry = np.unique(owner * size + raw, return_inverse=True)
    groups = len(values.groups) + 1
    kinds = np.unique(entry * groups + (variant >> _FAMILY)) // groups
    have = np.bincount(kinds, minlength=len(pairs))
    moved = np.bincount(entry, some, minlength=len(pairs)) > 0
    return np.asarray((have[entry] > families_of(raw, values)) & moved[entry])


def families_of(raw: np.ndarray, values: Values) -> np.ndarray:
    """How many families each value has, given by its plain row: (E,)."""
    count = np.zeros(len(raw), dtype=np.int64)
    for low, _, base, size in values.groups:
        if low != base:
            count += (raw >= base) & (raw < base + size)
    return count


def refined(values: Values) -> bool:
    """Whether some value of a table has more than one row."""
    return any(low != base for low, _, base, _ in values.groups)


def _ranks(values: Values) -> list[int]:
    """Number of a group → 0 for plain rows, 1, 2 … for the families of one group of values."""
    ranks, seen = [0], dict[int, int]()
    for low, _, base, _ in values.groups:
        seen[base] = seen.get(base, 0) + (low != base)
        ranks.append(seen[base] if low != base else 0)
    return ranks
