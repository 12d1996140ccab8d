"""How data were encoded, so that new rows can be encoded in the same way.

An `Encoder` remembers the columns, what each held, and how each table chooses rows. The values of
the vocabularies are beside it, in `FederatedData.vocabulary`. Numbers go to the model as they are,
or scaled as the data were. Lists keep their last entries and are filled up with 0 behind them.

`as_facts` and `from_facts` carry it through JSON, in stores and bundles.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from fedrows.data.column_layout import Layout
from fedrows.data.scaled import Scaled
from fedrows.data.values import NUMBER, TEXT, kind_of
from fedrows.data.vocabulary import Hashed, Vocabulary
from fedrows.rows.ragged import Ragged

UNKNOWN = "<unknown>"  # in a vocabulary, what stands for every other value
GIVEN, WORDS, HASHES = "given", "vocabulary", "hashed"  # how a table chooses rows


@dataclass(frozen=True)
class EncodedColumn:
    """What a feature column holds: a value, `width` values, or a list of values."""

    table: str
    kind: str  # number, text or time
    width: int | None = None  # of columns with several values an example
    length: int | None = None  # of lists: the places that a batch has for them
    most: int | None = None  # of lists: how many entries are kept, the last; as many as in training


@dataclass(frozen=True)
class EncodedTable:
    """How the values of a table choose rows."""

    rows: int
    how: str  # given, vocabulary or hashed
    unknown: int | None = None  # the row of values that are not in the vocabulary; None: an error


@dataclass(frozen=True)
class Encoder:
    """Everything that encoding needs beside the vocabularies."""

    client: str
    label: str
    labels: str
    features: Mapping[str, EncodedColumn]
    tables: Mapping[str, EncodedTable]
    padded: frozenset[str] = frozenset()
    local: frozenset[str] = frozenset()
    numbers: Mapping[str, int | None] = field(default_factory=dict)  # column → width
    scaled: Mapping[str, Scaled] = field(default_factory=dict)  # of some of the numbers
    weight: str | None = None
    target: tuple[str, int | None] | None = None

    @property
    def fields(self) -> dict[str, str]:
        """The table that each feature reads."""
        return {name: column.table for name, column in self.features.items()}

    def as_facts(self) -> dict[str, Any]:
        """The same in what JSON knows."""
        facts = asdict(self)
        facts["padded"], facts["local"] = sorted(self.padded), sorted(self.local)
        return {**facts, "padding": "after", "kept": "last"}

    @classmethod
    def from_facts(cls, facts: Mapping[str, Any]) -> Encoder:
        """The encoder that gave these facts; a KeyError, TypeError or ValueError if none did."""
        target = facts["target"]
        return cls(
            facts["client"],
            facts["label"],
            facts["labels"],
            {name: EncodedColumn(**column) for name, column in facts["features"].items()},
            {name: EncodedTable(**table) for name, table in facts["tables"].items()},
            frozenset(facts["padded"]),
            frozenset(facts["local"]),
            dict(facts["numbers"]),
            {name: Scaled(**scaled) for name, scaled in facts["scaled"].items()},
            facts["weight"],
            None if target is None else (target[0], target[1]),
        )


def encoder_of(
    layout: Layout,
    sizes: Mapping[str, int],
    padded: Collection[str],
    kinds: Mapping[str, str],
    shapes: Mapping[str, tuple[int, ...]],
    lengths: Mapping[str, int],
    widths: Mapping[str, int | None],
    target: tuple[str, int | None] | None,
) -> Encoder:
    """The encoder of columns with a layout.

    kinds: what each table's values are. shapes: of the features that are no lists. lengths: of the
    lists. widths: of the numbers.
    """
    tables = {}
    for table, rows in sizes.items():
        how = layout.rows(table)
        if isinstance(how, Vocabulary):
            tables[table] = EncodedTable(rows, WORDS, rows - 1 if how.oov else None)
        else:
            tables[table] = EncodedTable(rows, HASHES if isinstance(how, Hashed) else GIVEN)
    features = {
        column: EncodedColumn(
            table,
            kinds[table],
            None if len(shapes.get(column, ())) < 2 else int(shapes[column][1]),
            lengths.get(column),
            (layout.longest(column) or lengths[column]) if column in lengths else None,
        )
        for column, table in layout.fields.items()
    }
    return Encoder(
        layout.client, layout.label, layout.labels, features, tables, frozenset(padded),
        frozenset(layout.local), dict(widths), layout.scaled, layout.weight, target,
    )  # fmt: skip


def encoder_of_rows(
    ids: Mapping[str, np.ndarray | Ragged],
    fields: Mapping[str, str],
    sizes: Mapping[str, int],
    padded: Collection[str],
    local: Collection[str],
    numbers: Mapping[str, np.ndarray],
    labels: str,
    target: tuple[str, int | None] | None,
    vocabulary: Mapping[str, np.ndarray],
) -> Encoder:
    """The encoder of data whose ids are rows already: columns are called like the fields.

    Where there is a vocabulary, columns hold its values. One called <unknown> has the row of all
    others; else that is the last row, if it has no value of its own.
    """
    features = {}
    kinds = {table: kind_of(words) for table, words in vocabulary.items()}
    for name, table in fields.items():
        kind = kinds.get(table, NUMBER)
        column = ids[name]
        if isinstance(column, Ragged):
            features[name] = EncodedColumn(table, kind, length=column.length, most=column.length)
        else:
            width = None if column.ndim < 2 else int(column.shape[1])
            features[name] = EncodedColumn(table, kind, width)
    tables = {table: EncodedTable(int(rows), GIVEN) for table, rows in sizes.items()}
    for table, words in vocabulary.items():
        first, rows = int(table in padded), int(sizes[table])
        unknown = rows - 1 if rows > first + len(words) else None
        if kinds[table] == TEXT and (words == UNKNOWN).any():
            unknown = first + int(np.argmax(words == UNKNOWN))
        tables[table] = EncodedTable(rows, WORDS, unknown)
    widths = {n: None if x.ndim < 2 else int(x.shape[1]) for n, x in numbers.items()}
    return Encoder(
        "client", "label", labels, features, tables, frozenset(padded), frozenset(local), widths,
        target=target,
    )  # fmt: skip


def kind_of_table(values: Collection[np.ndarray]) -> str:
    """What the columns of a table hold: numbers only if all of them do."""
    kinds = {kind_of(column) for column in values if column.size}
    return kinds.pop() if len(kinds) == 1 else TEXT
