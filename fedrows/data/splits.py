"""Which examples are held out: at random, by time, each client's last, or as a column says.

Test examples are taken first, validation examples from what is left: of each client's last n by
time, those before the test examples. Every way marks the same examples whether the data lie in
memory or in files.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, datetime
from typing import Any

import numpy as np

from fedrows.data.column_checks import as_marks, no_nulls
from fedrows.errors import DataError
from fedrows.seeds import SPLIT, VALIDATION, choose


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

    @property
    def takes_nothing(self) -> bool:
        """Whether no example is held out, whatever the data are."""
        return self.kind in ("random", "latest", "last") and self.amount == 0

    @property
    def over_all(self) -> bool:
        """Whether an example's mark depends on the examples of all clients."""
        return self.kind in ("random", "latest") and not self.takes_nothing

    def mark(
        self, owner: np.ndarray, column: np.ndarray | None, seed: int, use: int = SPLIT
    ) -> np.ndarray:
        """Which examples are held out: (n,) bool, from each one's client and the split's column.

        use: the stream of randomness, if the split is a random one.
        """
        if self.kind == "random":
            return split_at_random(len(owner), self.amount, seed, use)
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


def as_split(split: float | str | Split, what: str = "test") -> Split:
    """A split from what people write: a share, the column that marks rows, or a Split.

    what: the name of the argument, for the error message.
    """
    if isinstance(split, Split):
        return split
    return Split.given(split) if isinstance(split, str) else Split("random", _share(split, what))


def split_at_random(count: int, share: float, seed: int, use: int = SPLIT) -> np.ndarray:
    """Marks round(share · count) of the examples, at random: (count,) bool."""
    marked = np.zeros(count, dtype=bool)
    marked[choose(seed, use, 0, count, round(_share(share) * count)).numpy()] = True
    return marked


def mark_validation(
    split: Split, test: np.ndarray, owner: np.ndarray, column: np.ndarray | None, seed: int
) -> np.ndarray:
    """Which of the examples that are no test examples are for validation: (n,) bool."""
    if split.kind == "given":
        assert column is not None
        marked = as_marks(split.column or "", column)
        check_apart(marked, test, f"Column {split.column!r}")
        return marked
    marked = np.zeros(len(test), dtype=bool)
    if not split.takes_nothing:
        left = np.flatnonzero(~test)
        times = None if column is None else column[left]
        marked[left[split.mark(owner[left], times, seed, VALIDATION)]] = True
    return marked


def check_apart(validation: np.ndarray, test: np.ndarray, what: str) -> None:
    """Raises a DataError if an example is marked for validation and for test."""
    both = int((validation & test).sum())
    if both:
        raise DataError(
            f"{what} marks {both} of {len(test)} examples for validation that are test examples: "
            "mark each for one of the two."
        )


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


def _share(share: float, what: str = "test") -> float:
    if not isinstance(share, int | float) or not 0 <= share < 1:
        raise DataError(f"{what} is {share!r}, but must be a share from 0 up to, not including, 1.")
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
