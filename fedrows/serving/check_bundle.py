"""What a bundle says of itself is checked before anything is made of it.

Whoever writes a bundle also writes its digest, so its parts can be anything. Each check raises a
ValueError that says what is wrong. No table may have more rows than the weights in the file, and no
column more than `WIDEST` places, so that a small file cannot ask for a large memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain
from typing import Any

from torch import Tensor

from fedrows.data.encoder import GIVEN, HASHES, Encoder
from fedrows.data.encoder import WORDS as VOCABULARY
from fedrows.data.values import NUMBER, TEXT, TIME
from fedrows.model import LOSSES

WIDEST = 2**20  # values of a column in one example


def check_facts(facts: Mapping[str, Any]) -> None:
    """Checks what bundle.json says of the model and its tables."""
    about, model, schema = (_object(facts, name) for name in ("about", "model", "schema"))
    metrics = facts["metrics"]
    _check(metrics is None or isinstance(metrics, dict), "its metrics are no object")
    _check(isinstance(about.get("data"), str), "its data have no name")
    for name in ("name", "reference"):
        _check(_is_text(model[name], may_miss=True), f"the {name} of its model is no text")
    _check(isinstance(model["class"], str), "the class of its model is no text")
    _check(type(model["own_loss"]) is bool, "own_loss is neither true nor false")
    _check(isinstance(model.get("options", {}), dict), "the options of its model are no object")
    for name in ("personal", "dense"):
        _check(_are_texts(model.get(name, [])), f"{name} is no list of names")
    embeddings = model.get("embeddings", {})
    tables = isinstance(embeddings, dict) and all(map(_are_texts, embeddings.values()))
    _check(tables, "embeddings are no lists of names")
    for name, size in _object(schema, "tables").items():
        shape = isinstance(size, list) and len(size) == 2 and all(_is_count(x) for x in size)
        _check(shape, f"table {name!r} has no size")


def check_encoder(encoder: Encoder, weights: Mapping[str, Tensor]) -> None:
    """Checks how new rows are to be encoded."""
    names = [encoder.client, encoder.label, *encoder.features, *encoder.numbers]
    _check(_are_texts(names), "a column has no name")
    _check(_is_text(encoder.weight, may_miss=True), "the weight is no column")
    _check(encoder.labels in LOSSES, "its labels are of no known kind")
    _check(bool(encoder.features) and bool(encoder.tables), "it has no column or no table")
    most = max((len(x) for x in weights.values() if x.dim()), default=0)
    for name, table in encoder.tables.items():
        _check(_is_count(table.rows, most), f"table {name!r} has not the rows of any weights")
        _check(table.how in (GIVEN, HASHES, VOCABULARY), f"table {name!r} chooses rows in no way")
        unknown = table.unknown
        right = unknown is None or (type(unknown) is int and 0 <= unknown < table.rows)
        _check(right, f"table {name!r} has no row of unknown values")
    for name, column in encoder.features.items():
        _check(_is_text(column.table) and column.table in encoder.tables, f"{name!r} has no table")
        _check(column.kind in (NUMBER, TEXT, TIME), f"column {name!r} is of no kind")
        for size in (column.width, column.length, column.most):
            _check(size is None or _is_count(size, WIDEST), f"column {name!r} has no right width")
    for name, width in encoder.numbers.items():
        _check(width is None or _is_count(width, WIDEST), f"column {name!r} has no right width")
    _check(encoder.scaled.keys() <= encoder.numbers.keys(), "it scales a column that it has not")
    for own in (encoder.padded, encoder.local):
        _check(own <= encoder.tables.keys(), "it speaks of a table that it has not")
    if encoder.target is not None:
        target, position = encoder.target
        _check(_is_text(target) and target in encoder.features, "its target is no column")
        _check(position is None or type(position) is int, "its target has no place")


def check_vocabulary(encoder: Encoder, texts: Any) -> None:
    """Checks that there is a list of texts for every table that needs one, and none too long."""
    _check(isinstance(texts, dict), "its vocabularies are no object")
    for name in chain(texts, (x for x, y in encoder.tables.items() if y.how == VOCABULARY)):
        table = encoder.tables.get(name)
        _check(table is not None and _are_texts(texts.get(name)), f"{name!r} has no vocabulary")
        assert table is not None
        rows = table.rows - (name in encoder.padded)
        _check(len(texts[name]) <= rows, f"the vocabulary of {name!r} has too many values")


def _check(right: bool, wrong: str) -> None:
    if not right:
        raise ValueError(wrong)


def _object(facts: Mapping[str, Any], name: str) -> dict[str, Any]:
    value = facts[name]
    _check(isinstance(value, dict), f"{name} is no object")
    return dict(value)


def _is_text(value: Any, may_miss: bool = False) -> bool:
    return isinstance(value, str) or (may_miss and value is None)


def _are_texts(values: Any) -> bool:
    return isinstance(values, list) and all(isinstance(value, str) for value in values)


def _is_count(value: Any, most: int | None = None) -> bool:
    """Whether it is a number of things, of which there is one at least."""
    return type(value) is int and value > 0 and (most is None or value <= most)
