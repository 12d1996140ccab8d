"""What the columns of somebody's data mean: the client, the label, the features of which table.

The same for a frame, for pieces by client, and for files.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from fedrows.data.column_checks import LABELS
from fedrows.data.scaled import Scaled
from fedrows.data.splits import Split, as_split
from fedrows.data.vocabulary import USUAL, Hashed, TableRows, Vocabulary
from fedrows.errors import DataError


@dataclass(frozen=True, kw_only=True)
class Layout:
    """Columns as people describe them, checked; `FederatedData.from_frame` says what each means."""

    client: str
    label: str
    features: Sequence[str] | Mapping[str, str]
    tables: Mapping[str, TableRows] | None = None
    numbers: Sequence[str] | Mapping[str, Scaled | None] = ()
    weight: str | None = None
    max_length: int | Mapping[str, int] | None = None
    test: float | str | Split = 0.2
    validation: float | str | Split = 0.0
    labels: str = "binary"
    local: Collection[str] = ()
    target: tuple[str, int | None] | None = None
    seed: int = 0
    name: str = "data"

    def __post_init__(self) -> None:
        for argument, column in (("client", self.client), ("label", self.label)):
            if not isinstance(column, str) or not column:
                raise DataError(f"{argument} is {column!r}, but must be the name of a column.")
        self._check_columns()
        self._check_tables()
        if isinstance(self.seed, bool) or not isinstance(self.seed, int) or self.seed < 0:
            raise DataError(f"seed is {self.seed!r}, but must be a whole number of at least 0.")
        as_split(self.test)
        as_split(self.validation, "validation")

    @cached_property
    def fields(self) -> dict[str, str]:
        """The table that each feature reads."""
        features = self.features
        return dict(features) if isinstance(features, Mapping) else {f: f for f in features}

    @cached_property
    def scaled(self) -> dict[str, Scaled]:
        """How some of the numbers are scaled."""
        pairs = self.numbers.items() if isinstance(self.numbers, Mapping) else ()
        return {column: how for column, how in pairs if how is not None}

    @property
    def test_split(self) -> Split:
        """Which are the test examples."""
        return as_split(self.test)

    @property
    def validation_split(self) -> Split:
        """Which of the others are for validation."""
        return as_split(self.validation, "validation")

    @property
    def columns(self) -> list[str]:
        """Every column that is read, once."""
        others = (self.weight, self.test_split.column, self.validation_split.column)
        more = [c for c in others if c is not None]
        return list(
            dict.fromkeys([self.client, self.label, *self.fields, *self.numbers, *more])
        )  # fmt: skip

    @property
    def table_names(self) -> list[str]:
        """Every table that a feature reads, once."""
        return list(dict.fromkeys(self.fields.values()))

    def columns_of(self, table: str) -> list[str]:
        """The features that read a table."""
        return [column for column, name in self.fields.items() if name == table]

    def rows(self, table: str) -> TableRows:
        """A table's given size, or how its values choose their rows."""
        return (self.tables or {}).get(table, USUAL)

    def longest(self, column: str) -> int | None:
        """How many entries of a list are kept; None: all."""
        if isinstance(self.max_length, Mapping):
            return self.max_length.get(column)
        return self.max_length

    def require(self, known: Iterable[str], where: str = "The frame") -> None:
        """Raises a DataError if a column is missing."""
        known = list(map(str, known))
        for column in self.columns:
            if column not in known:
                raise DataError(f"{where} has no column {column!r}; it has {', '.join(known)}.")

    def as_facts(self) -> dict[str, Any]:
        """The layout in what JSON knows; equal exactly if the layouts are."""
        facts = {
            "client": self.client,
            "label": self.label,
            "fields": list(map(list, self.fields.items())),
            "tables": [[table, repr(how)] for table, how in sorted((self.tables or {}).items())],
            "numbers": list(self.numbers),
            "weight": self.weight,
            "max_length": [[column, self.longest(column)] for column in self.fields],
            "split": repr(self.test_split),
            "labels": self.labels,
            "local": sorted(self.local),
            "target": None if self.target is None else list(self.target),
            "seed": self.seed,
            "name": self.name,
        }
        if self.scaled:
            facts["scaled"] = [[column, repr(how)] for column, how in sorted(self.scaled.items())]
        if not self.validation_split.takes_nothing:  # otherwise as before there was any validation
            facts["validation"] = repr(self.validation_split)
        return facts

    def _check_columns(self) -> None:
        """Raises a DataError if features, numbers or labels are not described as they must be."""
        features, numbers = self.features, self.numbers
        if not _is_listing(features) or not features:
            raise DataError(
                f"features is {features!r}, but must list columns, or map columns to tables."
            )
        if not _is_listing(numbers):
            raise DataError(
                f"numbers is {numbers!r}, but must list columns, or map columns to Scaled or None."
            )
        for column, scale in self.scaled.items():
            if not isinstance(scale, Scaled):
                raise DataError(
                    f"Column {column!r} is to be scaled by {scale!r}: give Scaled(center, spread), "
                    "or None."
                )
        if self.labels not in LABELS:
            raise DataError(f"labels is {self.labels!r}, but must be one of {', '.join(LABELS)}.")
        if len(self.fields) < len(features):
            twice = next(f for f in features if list(features).count(f) > 1)
            raise DataError(f"features lists {twice!r} twice: name it once.")
        for column, table in self.fields.items():
            if not isinstance(column, str) or not isinstance(table, str):
                raise DataError(f"features has {column!r}: name columns, and tables, by text.")
        for column in numbers:
            if column in self.fields:
                raise DataError(
                    f"Column {column!r} is both an id and a number: name it in one place."
                )
        if self.label in (*self.fields, *numbers):
            raise DataError(
                f"Column {self.label!r} is the label, and a feature too: a model that reads what "
                "it is to predict learns nothing, so leave it out of the features."
            )

    def _check_tables(self) -> None:
        """Raises a DataError if tables, lengths of lists or local tables make no sense."""
        tables, most = self.tables, self.max_length
        if tables is not None and not isinstance(tables, Mapping):
            raise DataError(f"tables is {tables!r}, but must map tables to their rows.")
        for table, how in (tables or {}).items():
            if table not in self.fields.values():
                raise DataError(f"No field reads table {table!r}: leave it out.")
            if isinstance(how, bool) or not isinstance(how, int | Vocabulary | Hashed):
                raise DataError(
                    f"Table {table!r} has {how!r} rows: give a whole number above 0, a Vocabulary, "
                    "or Hashed."
                )
        limits = most if isinstance(most, Mapping) else dict.fromkeys(self.fields, most)
        for column, limit in limits.items():
            if column not in self.fields:
                raise DataError(f"max_length names {column!r}, which is not among the features.")
            if limit is not None and (not isinstance(limit, int) or limit < 1):
                raise DataError(
                    f"max_length of column {column!r} is {limit!r}: give a whole number above 0."
                )
        if isinstance(self.local, str):
            raise DataError(f"local is {self.local!r}, but must list tables.")


def _is_listing(value: object) -> bool:
    return isinstance(value, Sequence | Mapping) and not isinstance(value, str)
