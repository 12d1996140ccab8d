"""What the columns of somebody's data mean: the client, the label, the features of which table.

The same for a frame, for pieces by client, and for files.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedrows.data.column_checks import LABELS
from fedrows.data.scaled import Scaled
from fedrows.data.splits import Split, as_split
from fedrows.data.vocabulary import USUAL, Hashed, TableRows, Vocabulary
from fedrows.errors import DataError


@dataclass(frozen=True)
class Layout:
    """A checked description of columns; see `FederatedData.from_frame` for what each means."""

    client: str
    label: str
    fields: Mapping[str, str]  # column → table
    tables: Mapping[str, TableRows]
    numbers: tuple[str, ...]
    scaled: Mapping[str, Scaled]  # of some of the numbers
    weight: str | None
    max_length: int | Mapping[str, int] | None
    split: Split  # the test examples
    validation: Split  # of what is left
    labels: str
    local: frozenset[str]
    target: tuple[str, int | None] | None
    seed: int
    name: str

    @property
    def columns(self) -> list[str]:
        """Every column that is read, once."""
        others = (self.weight, self.split.column, self.validation.column)
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
        return self.tables.get(table, USUAL)

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


def layout(
    *,
    client: str,
    label: str,
    features: Sequence[str] | Mapping[str, str],
    tables: Mapping[str, TableRows] | None = None,
    numbers: Sequence[str] | Mapping[str, Scaled | None] = (),
    weight: str | None = None,
    max_length: int | Mapping[str, int] | None = None,
    test: float | str | Split = 0.2,
    validation: float | str | Split = 0.0,
    labels: str = "binary",
    local: Collection[str] = (),
    target: tuple[str, int | None] | None = None,
    seed: int = 0,
    name: str = "data",
) -> Layout:
    """A Layout from what people write, or a DataError."""
    for argument, named in (("client", client), ("label", label)):
        if not isinstance(named, str) or not named:
            raise DataError(f"{argument} is {named!r}, but must be the name of a column.")
    if isinstance(features, str) or not isinstance(features, Sequence | Mapping) or not features:
        raise DataError(
            f"features is {features!r}, but must list columns, or map columns to tables."
        )
    if isinstance(numbers, str) or not isinstance(numbers, Sequence | Mapping):
        raise DataError(
            f"numbers is {numbers!r}, but must list columns, or map columns to Scaled or None."
        )
    pairs = numbers.items() if isinstance(numbers, Mapping) else ()
    scaled = {column: how for column, how in pairs if how is not None}
    for column, scale in scaled.items():
        if not isinstance(scale, Scaled):
            raise DataError(
                f"Column {column!r} is to be scaled by {scale!r}: give Scaled(center, spread), or "
                "None."
            )
    if labels not in LABELS:
        raise DataError(f"labels is {labels!r}, but must be one of {', '.join(LABELS)}.")
    fields = dict(features) if isinstance(features, Mapping) else {f: f for f in features}
    if len(fields) < len(features):
        twice = next(f for f in features if list(features).count(f) > 1)
        raise DataError(f"features lists {twice!r} twice: name it once.")
    for column, table in fields.items():
        if not isinstance(column, str) or not isinstance(table, str):
            raise DataError(f"features has {column!r}: name columns, and tables, by text.")
    if tables is not None and not isinstance(tables, Mapping):
        raise DataError(f"tables is {tables!r}, but must map tables to their rows.")
    for column in numbers:
        if column in fields:
            raise DataError(f"Column {column!r} is both an id and a number: name it in one place.")
    if label in (*fields, *numbers):
        raise DataError(
            f"Column {label!r} is the label, and a feature too: a model that reads what it is to "
            "predict learns nothing, so leave it out of the features."
        )
    for table, how in (tables or {}).items():
        if table not in fields.values():
            raise DataError(f"No field reads table {table!r}: leave it out.")
        if isinstance(how, bool) or not isinstance(how, int | Vocabulary | Hashed):
            raise DataError(
                f"Table {table!r} has {how!r} rows: give a whole number above 0, a Vocabulary, "
                "or Hashed."
            )
    limits = max_length if isinstance(max_length, Mapping) else dict.fromkeys(fields, max_length)
    for column, most in limits.items():
        if column not in fields:
            raise DataError(f"max_length names {column!r}, which is not among the features.")
        if most is not None and (not isinstance(most, int) or most < 1):
            raise DataError(
                f"max_length of column {column!r} is {most!r}: give a whole number above 0."
            )
    if isinstance(local, str):
        raise DataError(f"local is {local!r}, but must list tables.")
    if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
        raise DataError(f"seed is {seed!r}, but must be a whole number of at least 0.")
    return Layout(
        client=client,
        label=label,
        fields=fields,
        tables=dict(tables or {}),
        numbers=tuple(numbers),
        scaled=scaled,
        weight=weight,
        max_length=max_length,
        split=as_split(test),
        validation=as_split(validation, "validation"),
        labels=labels,
        local=frozenset(local),
        target=target,
        seed=seed,
        name=name,
    )


def as_facts(columns: Layout) -> dict[str, Any]:
    """A layout in what JSON knows; equal exactly if the layouts are."""
    facts = {
        "client": columns.client,
        "label": columns.label,
        "fields": list(map(list, columns.fields.items())),
        "tables": [[table, repr(how)] for table, how in sorted(columns.tables.items())],
        "numbers": list(columns.numbers),
        "weight": columns.weight,
        "max_length": [[column, columns.longest(column)] for column in columns.fields],
        "split": repr(columns.split),
        "labels": columns.labels,
        "local": sorted(columns.local),
        "target": None if columns.target is None else list(columns.target),
        "seed": columns.seed,
        "name": columns.name,
    }
    if columns.scaled:
        facts["scaled"] = [[column, repr(how)] for column, how in sorted(columns.scaled.items())]
    if not columns.validation.takes_nothing:  # otherwise as before there was any validation
        facts["validation"] = repr(columns.validation)
    return facts
