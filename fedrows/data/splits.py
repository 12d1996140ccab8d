"""Which examples are held out: at random, by time, each client's last, or as a column says.

Every way marks the same examples whether the data lie in memory or in files.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, datetime
from typing import Any

import numpy as np

from fedrows.data.column_checks import as_marks, no_nulls
from fedrows.errors import DataError
from fedrows.seeds import SPLIT, choose


@dataclass(frozen=True)
class Split:
    """A way to hold examples out; made by one of the functions below."""

    kind: str
    amount: Any = None  # the share, the number, or the moment
    column: str | None = None  # the column that it goes by

    @staticmethod
    def random(share: float) -> Split:
        """A share of all examples, drawn at random."""
        return Split("random", _share(share))

    @staticmethod
    def after(moment: Any, time: str) -> Split:
        """All examples later than a moment."""
        return Split("after", moment, time)

    @staticmethod
    def latest(share: float, time: str) -> Split:
        """The latest share of all examples; of those at the same moment, the later rows."""
        return Split("latest", _share(share), time)

    @staticmethod
    def last(amount: int | float, time: str | None = None) -> Split:
        """Each client's last so many examples, or its last share, rounded down.

        By time, and otherwise in the order of the rows.
        """
        whole = isinstance(amount, int) and not isinstance(amount, bool)
        if not (whole and amount >= 0) and not (isinstance(amount, float) and 0 <= amount < 1):
            raise DataError(
                f"The last {amount!r} of a client cannot be held out: give a whole number, "
                "or a share below 1."
            )
        return Split("last", amount, time)

    @staticmethod
    def given(column: str) -> Split:
        """The examples that a column marks by true or 1."""
        return Split("given", None, column)

    @property
    def by_client(self) -> bool:
        """Whether an example's mark depends on its client's other examples, and on no more."""
        return self.kind == "last"

    def mark(self, owner: np.ndarray, column: np.ndarray | None, seed: int) -> np.ndarray:
        """Which examples are held out: (n,) bool, from each one's client and the split's column."""
        if self.kind == "random":
            return split_at_random(len(owner), self.amount, seed)
        if self.column is not None:
            assert column is not None
            if self.kind == "given":
                return as_marks(self.column, column)
            column = as_times(self.column, column)
        if self.kind == "after":
            assert column is not None
            return column > _moment(self.column or "", self.amount, column)
        marked = np.zeros(len(owner), dtype=bool)
        if self.kind == "latest":
            assert column is not None
            held = round(self.amount * len(column))
            marked[np.argsort(column, kind="stable")[len(column) - held :]] = True
            return marked
        by = (owner,) if column is None else (column, owner)
        order = np.lexsort(by)  # by client, then time, then row
        sizes = np.bincount(owner)
        held = np.minimum(sizes, self.amount if isinstance(self.amount, int) else
                          np.floor(sizes * self.amount + 1e-9).astype(np.int64))  # fmt: skip
        rank = np.arange(len(owner)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        marked[order] = rank >= np.repeat(sizes - held, sizes)
        return marked


def as_split(test: float | str | Split) -> Split:
    """A split from what people write: a share, the column that marks test rows, or a Split."""
    if isinstance(test, Split):
        return test
    return Split.given(test) if isinstance(test, str) else Split.random(test)


def split_at_random(count: int, share: float, seed: int) -> np.ndarray:
    """Marks round(share · count) of the examples, at random, as test examples: (count,) bool."""
    marked = np.zeros(count, dtype=bool)
    marked[choose(seed, SPLIT, 0, count, round(_share(share) * count)).numpy()] = True
    return marked


def as_times(column: str, values: np.ndarray) -> np.ndarray:
    """A time column as numbers or datetime64: (n,)."""
    values = np.asarray(values)
    no_nulls(column, values)
    if values.dtype.kind in "iufM":
        return values
    moments = values.tolist()
    if values.dtype.kind == "O" and all(isinstance(value, date) for value in moments):
        return np.array([_naive(value) for value in moments], dtype="datetime64[us]")
    if values.dtype.kind == "O" and all(isinstance(value, int | float) for value in moments):
        return values.astype(np.float64)
    kind = "text" if any(isinstance(value, str) for value in moments[:1]) else "no moments"
    raise DataError(
        f"Column {column!r} holds {kind}, but a time is a number or a date: convert it first."
    )


def _share(share: float) -> float:
    if not isinstance(share, int | float) or not 0 <= share < 1:
        raise DataError(f"test is {share!r}, but must be a share from 0 up to, not including, 1.")
    return share


def _moment(column: str, value: Any, times: np.ndarray) -> Any:
    """A moment in the kind of a time column."""
    try:
        if times.dtype.kind == "M":
            if isinstance(value, int | float):
                raise TypeError
            return np.datetime64(_naive(value) if isinstance(value, date) else value)
        return times.dtype.type(0) + float(value) if isinstance(value, str) else value + 0
    except (TypeError, ValueError):
        raise DataError(
            f"Test examples come after {value!r}, but column {column!r} holds {times.dtype} "
            "values: give a moment of that kind."
        ) from None


def _naive(moment: date) -> date:
    """The same moment without a time zone, in UTC."""
    if isinstance(moment, datetime) and moment.tzinfo is not None:
        from datetime import UTC

        return moment.astimezone(UTC).replace(tzinfo=None)
    return moment
