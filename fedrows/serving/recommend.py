"""The best items for a client: every item, or the candidates given, scored in one example each.

An item is a value of the target, the feature that an example is about. All other columns that the
model reads are the same for every item: the history, the client, and what `context` says. What a
served model answers with is here, too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from fedrows.data.encode_rows import EncodedRows, KnownValues, rows_of
from fedrows.data.encoder import GIVEN, HASHES, Encoder
from fedrows.data.frame_sources import columns_in, is_frame
from fedrows.data.frames import as_objects
from fedrows.data.values import text_of, texts
from fedrows.errors import DataError, ModelError
from fedrows.serving.bundle import Bundle


@dataclass(frozen=True, eq=False)
class Predictions:
    """The scores of some rows, in their order."""

    scores: np.ndarray  # (n,): logits of binary labels, else numbers; (n, C): logits of classes
    probabilities: np.ndarray | None  # in the same shape; None where labels are numbers
    notes: tuple[str, ...] = ()  # what is worth knowing, such as how many values were unknown


@dataclass(frozen=True, eq=False)
class Recommendations:
    """Items, best first."""

    items: list[Any]
    scores: np.ndarray  # (k,)
    probabilities: np.ndarray | None  # (k,); None where labels are numbers
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class AdaptedTo:
    """The one client that a model was adapted to."""

    client: Any  # its name; None if its examples had none
    values: Mapping[str, frozenset[str]]  # column → the texts that its local tables were fitted to


def predictions(scores: Tensor, labels: str, notes: tuple[str, ...]) -> Predictions:
    """Scores with their probabilities, which numbers have none of."""
    chances = None
    if labels == "binary":
        chances = scores.sigmoid().numpy()
    elif labels == "classes":
        chances = scores.softmax(-1).numpy()
    return Predictions(scores.numpy(), chances, notes)


class ItemModel(Protocol):
    """A model that scores rows."""

    @property
    def bundle(self) -> Bundle:
        """What it was loaded from."""

    @property
    def known(self) -> KnownValues:
        """The values that have rows."""

    @property
    def adapted(self) -> AdaptedTo | None:
        """The client that it was adapted to."""

    def encode(self, frame: Any) -> EncodedRows:
        """Rows as the model takes them."""

    def scores(self, encoded: EncodedRows) -> Tensor:
        """The score of every encoded row."""

    def notes(self, encoded: EncodedRows) -> tuple[str, ...]:
        """What is worth knowing about the scores."""


def recommend(
    served: ItemModel,
    history: Sequence[Any] | None,
    k: int,
    client: Any,
    context: Mapping[str, Any] | None,
    candidates: Any,
    exclude: Sequence[Any] | None,
) -> Recommendations:
    """The k items with the highest scores; items of equal score are in the order of their rows.

    history: items of the client, for the column of lists that reads the items' table; they are not
    recommended again. client: for the columns that name the client. context: any other column, by
    name. candidates: the items to choose from, or a frame with a row for each; by default all.
    exclude: items of all to leave out instead of the history.
    """
    target, encoder = _target(served), served.bundle.encoder
    if not isinstance(k, int | np.integer) or isinstance(k, bool) or k < 1:
        raise DataError(f"k is {k!r}, but must be a whole number above 0.")
    for name, given in (("history", history), ("exclude", exclude)):
        _check_items(name, given)
    if candidates is not None and exclude is not None:
        raise DataError("exclude is for all items: take those items out of the candidates instead.")
    columns = _context(served, target, history, client, context)
    kind = encoder.features[target].kind
    if is_frame(candidates):
        rows = columns_in(candidates)
        if target not in rows:
            raise DataError(f"The candidates have no column {target!r}, the items: add it.")
        items = rows[target].tolist()
        filled = {name: [value] * len(items) for name, value in columns.items()}
        filled |= {name: list(values) for name, values in rows.items()}
        _require(served, filled)
        encoded = served.encode(filled)
    else:
        _require(served, {**columns, target: None})
        _check_items("candidates", candidates)
        items = _all_items(served, target) if candidates is None else list(candidates)
        if candidates is None:
            left = history if exclude is None else exclude
            out = set(texts(target, as_objects(left), kind)[0]) if left is not None else set()
            items = [item for item in items if text_of(item, kind) not in out]
        if not items:
            raise DataError("There is no candidate to recommend: give at least one.")
        encoded = _one_row_each(served, target, items, columns)
    scores = encoded.in_order(served.scores(encoded))
    best = torch.sort(scores, descending=True, stable=True)[1][: int(k)]
    chosen = predictions(scores[best], encoder.labels, served.notes(encoded))
    best_items = [items[i] for i in best.tolist()]
    return Recommendations(best_items, chosen.scores, chosen.probabilities, chosen.notes)


def _target(served: ItemModel) -> str:
    """The column of the items; a ModelError if examples are not about one."""
    encoder = served.bundle.encoder
    if encoder.target is None or encoder.target[1] is not None:
        raise ModelError(
            "The model's examples are not about one item in a column of its own, so it cannot "
            "recommend: say which column with target= when the data are made, or use predict."
        )
    if encoder.labels == "classes":
        raise ModelError("The model scores classes, not items: use predict.")
    return encoder.target[0]


def _check_items(name: str, given: Any) -> None:
    """Raises a DataError if an argument is one item, or text, where a list of items is wanted."""
    if isinstance(given, str | bytes) or not (given is None or hasattr(given, "__len__")):
        raise DataError(f"{name} is {given!r}, but must be a list of items: [{given!r}].")
    lists = [] if given is None else [x for x in given if isinstance(x, list | tuple | np.ndarray)]
    if lists:
        raise DataError(f"{name} has the list {lists[0]!r}, but must be a list of items.")


def _context(
    served: ItemModel,
    target: str,
    history: Sequence[Any] | None,
    client: Any,
    context: Mapping[str, Any] | None,
) -> dict[str, Any]:
    """The value of every column but the target's."""
    if not isinstance(context, Mapping | None):
        raise DataError(f"context is {context!r}, but must map columns to values.")
    encoder, columns = served.bundle.encoder, dict(context or {})
    for name in columns:
        if name == target or (name not in encoder.features and name not in encoder.numbers):
            raise DataError(f"context names {name!r}, which is no column beside the items'.")
    if history is not None:
        table = encoder.features[target].table
        lists = [c for c, x in encoder.features.items() if x.table == table and x.length]
        if not lists:
            raise DataError(
                "The model reads no list of items, so a history has no column: leave it out."
            )
        if len(lists) > 1:
            raise DataError(
                f"{len(lists)} columns of the model are lists of items, so a history cannot be "
                "placed: give the columns in context=."
            )
        if not len(history):
            raise DataError(
                f"The history is empty: give at least one item, or context={{{lists[0]!r}: []}} "
                "for a client without any."
            )
        columns[lists[0]] = list(history)
    if client is None and served.adapted is not None:
        for column, own in served.adapted.values.items():
            columns.setdefault(column, next(iter(own)))
    if client is not None:
        own_columns = _client_columns(encoder)
        if not own_columns:
            raise DataError(
                "The model reads no column for the client: its items are ranked alike for all. "
                "Leave client= out."
            )
        columns |= dict.fromkeys(own_columns, client)
    return columns


def _client_columns(encoder: Encoder) -> list[str]:
    """The columns whose value is the client."""
    return [
        column
        for column, feature in encoder.features.items()
        if column == encoder.client or feature.table in encoder.local
    ]


def _require(served: ItemModel, columns: Mapping[str, Any]) -> None:
    encoder = served.bundle.encoder
    for name in (*encoder.features, *encoder.numbers):
        if name not in columns:
            if name in _client_columns(encoder):
                raise DataError(f"The model reads column {name!r}, the client: name it in client=.")
            raise DataError(
                f"The model reads column {name!r}: give it in context=, or for each item in a "
                "frame of candidates."
            )


def _all_items(served: ItemModel, target: str) -> list[Any]:
    """Every item that has a row of its own."""
    encoder = served.bundle.encoder
    name = encoder.features[target].table
    table = encoder.tables[name]
    if table.how == HASHES:
        raise DataError(
            f"The items of table {name!r} are hashed, so the model does not know which there are: "
            "give candidates."
        )
    if table.how == GIVEN:
        return list(range(int(name in encoder.padded), table.rows))
    return served.bundle.vocabulary[name].tolist()


def _one_row_each(
    served: ItemModel, target: str, items: list[Any], columns: Mapping[str, Any]
) -> EncodedRows:
    """An example for every item; the columns they share are encoded once."""
    encoder = served.bundle.encoder
    first = served.encode({**{name: [value] for name, value in columns.items()}, target: items[:1]})
    rows, strange = rows_of(target, as_objects(items), encoder, served.known)
    everywhere = torch.zeros(len(items), dtype=torch.int64)
    examples = first.examples.pick(everywhere)
    ids = {**examples.ids, target: torch.from_numpy(rows)}
    unknown = {name: count for name, count in first.unknown.items() if name != target}
    return replace(
        first,
        examples=replace(examples, ids=ids),
        row=torch.arange(len(items)),
        unknown={**unknown, target: strange} if strange else unknown,
    )
