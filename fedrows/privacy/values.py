"""Which raw values a row was made of: the unit that privacy against the server is counted in.

A user's one rating of a movie puts three rows into S(i): movie, gender×movie and age×movie. Who
knows one of them knows all. And all F×movie rows of a user tell of one gender. Rows of one value
therefore share a coin, or their ε adds up.

    row             value        crossed with    variant
    movie 7         movie 7      –               plain
    F×movie 7       movie 7      gender F        gender×movie, F
    35×movie 7      movie 7      age 35          age×movie, 35

A group called "a×b" is taken to be made of the values of group b, once for every value of a.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from fedrows.errors import PlanError

_SHIFT = 32  # a variant is (number of the group << 32) + number inside the group


@dataclass(frozen=True)
class Values:
    """Row → (value, variant) of one table, as arithmetic on groups of consecutive rows.

    A row outside of all groups is a value of its own.
    """

    groups: tuple[tuple[int, int, int, int], ...] = ()  # low, high, base's low, base's size
    # Of each group: the first row of the group that it is crossed with, −1 if there is none.
    crossings: tuple[int, ...] = ()

    def of(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The value each row was made of, named by its plain row, and the variant it is: (R,)."""
        values, variants = rows.copy(), np.zeros_like(rows)
        for number, (low, high, base, size) in enumerate(self.groups, start=1):
            inside = (rows >= low) & (rows < high)
            variant, value = np.divmod(rows[inside] - low, size)
            values[inside] = base + value
            variants[inside] = (number << _SHIFT) + variant
        return values, variants

    def crossed(self, rows: np.ndarray) -> np.ndarray:
        """The other value that each row was made of, −1 for a plain row: (R,).

        It is named by its plain row, or by a number below −1 if the table has no row for it.
        """
        others = np.full(len(rows), -1, dtype=np.int64)
        for number, (low, high, base, size) in enumerate(self.groups, start=1):
            if low == base:
                continue
            inside = (rows >= low) & (rows < high)
            variant, start = (rows[inside] - low) // size, self.crossings[number - 1]
            others[inside] = start + variant if start >= 0 else -2 - (number << _SHIFT) - variant
        return others

    def bases(self, rows: np.ndarray) -> np.ndarray:
        """The group of values behind each row, by that group's first row; −1 outside: (R,)."""
        bases = np.full(len(rows), -1)
        for low, high, base, _ in self.groups:
            bases[(rows >= low) & (rows < high)] = base
        return bases

    def size(self, base: int, rows: int) -> int:
        """How many values a group has; outside of all groups every row of the table is one."""
        if base >= 0:
            return next(size for _, _, low, size in self.groups if low == base)
        return rows - sum(high - low for low, high, _, _ in self.groups)


def derived(groups: Mapping[str, tuple[int, int]]) -> Values:
    """The values behind a table's groups, read off their names."""
    parts, crossings = [], []
    for name, (low, high) in groups.items():
        base = name.rpartition("×")[2]
        if base not in groups:
            raise PlanError(f"The group {name} is made of {base}, which is no group of the table.")
        start, stop = groups[base]
        if start == stop or (high - low) % (stop - start):
            raise PlanError(
                f"The group {name} has {high - low} rows, which is no multiple of the "
                f"{stop - start} rows of {base}."
            )
        parts.append((low, high, start, stop - start))
        first, last = groups.get(name.rpartition("×")[0], (0, 0))
        fits = (last - first) * (stop - start) == high - low > 0
        crossings.append(first if fits else -1)
    return Values(tuple(parts), tuple(crossings))


def rows_per_value(values: Values, owner: np.ndarray, rows: np.ndarray) -> int:
    """The most rows of one client that one raw value stands behind.

    owner, rows: entries of an index (R,). A movie stands behind its three rows, a gender behind its
    own row and one for every movie.
    """
    named, others = values.of(rows)[0], values.crossed(rows)
    made = others != -1
    client, value = np.concatenate([owner, owner[made]]), np.concatenate([named, others[made]])
    if not len(value):
        return 1
    order = np.lexsort((value, client))
    client, value = client[order], value[order]
    starts = np.flatnonzero(np.r_[True, (np.diff(client) != 0) | (np.diff(value) != 0)])
    return int(np.diff(np.r_[starts, len(client)]).max())
