"""A device's own examples, and the order in which it sees them: the same batches as elsewhere.

A client's batches depend on (seed, round, number of the client) alone. `Examples` has the rows that
the examples read (`index`), and every id as a slot: its position among those rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fedrows_device.counters import BATCH, SHUFFLE, STEP, below, bits, client_key, one


class ExamplesError(ValueError):
    """Examples that do not fit their program."""


@dataclass(frozen=True, eq=False)
class Examples:
    """The training examples of one client."""

    index: Mapping[str, np.ndarray]  # table → the rows it reads, ascending
    slots: Mapping[str, np.ndarray]  # field → (n,), (n, L); −1: nothing there
    label: np.ndarray  # (n,)
    numbers: Mapping[str, np.ndarray] = field(default_factory=dict)  # field → (n,), (n, D)
    weight: np.ndarray | None = None  # (n,)

    def __len__(self) -> int:
        return len(self.label)

    @classmethod
    def build(
        cls,
        manifest: Mapping[str, Any],
        ids: Mapping[str, Any],
        label: Any,
        numbers: Mapping[str, Any] | None = None,
        weight: Any = None,
    ) -> Examples:
        """The examples of a client; ids are rows of their tables, or lists of rows, by field."""
        numbers = numbers or {}
        for what, own, known in (
            ("fields", ids, manifest["fields"]),
            ("numbers", numbers, manifest["numbers"]),
        ):
            if set(own) != set(known):
                raise ExamplesError(
                    f"The {what} of the program are {', '.join(known) or 'none'}, but the examples "
                    f"have {', '.join(own) or 'none'}."
                )
        whole = manifest["labels"] == "classes"
        labels = _whole("The labels", label) if whole else _numbers("The labels", label)
        if labels.ndim != 1:
            raise ExamplesError(f"The labels have shape {labels.shape}: give one for each example.")
        columns = {name: _column(manifest, name, ids[name], len(labels)) for name in ids}
        index = {table: _held(manifest, table, columns) for table in manifest["tables"]}
        slots = {}
        for name, column in columns.items():
            table = manifest["fields"][name]["table"]
            at = np.searchsorted(index[table], column)
            slots[name] = np.where(column == 0, -1, at) if _padded(manifest, table) else at
        found = {n: _numbers(f"Field {n!r}", x) for n, x in numbers.items()}
        for name, x in found.items():
            if x.shape != (len(labels), *manifest["numbers"][name]):
                raise ExamplesError(f"Field {name!r} has shape {x.shape}, which does not fit.")
        weights = None if weight is None else _numbers("The weights", weight)
        if weights is not None and weights.shape != labels.shape:
            raise ExamplesError(f"The weights have shape {weights.shape}, not {labels.shape}.")
        return cls(index, slots, labels, found, weights)


def _padded(manifest: Mapping[str, Any], table: str) -> bool:
    return bool(manifest["tables"][table]["padded"])


def _column(manifest: Mapping[str, Any], name: str, given: Any, count: int) -> np.ndarray:
    """A field's ids as (n,) or (n, L); lists keep their last entries and are filled up with 0."""
    facts = manifest["fields"][name]
    if facts["kind"] == "list":
        lists = [_whole(f"Field {name!r}", x)[-facts["length"] :] for x in given]
        column = np.zeros((len(lists), facts["length"]), dtype=np.int64)
        for row, entries in zip(column, lists, strict=True):
            row[: len(entries)] = entries
    else:
        column = _whole(f"Field {name!r}", given)
    deep = {"one": (), "several": (facts.get("width"),), "list": (facts.get("length"),)}
    if column.shape != (count, *deep[facts["kind"]]):
        raise ExamplesError(f"Field {name!r} has shape {column.shape}, which does not fit.")
    rows = manifest["tables"][facts["table"]]["rows"]
    if column.size and not (column.min() >= 0 and column.max() < rows):
        raise ExamplesError(
            f"Field {name!r} has an id outside of 0 … {rows - 1}, its table's rows."
        )
    return column


def _whole(what: str, given: Any) -> np.ndarray:
    """Whole numbers; an ExamplesError if there are others."""
    try:
        found = np.asarray(given)
    except (ValueError, OverflowError):  # lists of several lengths, or numbers beyond 64 bits
        found = np.empty(1)
    if found.size and found.dtype.kind not in "iu":
        raise ExamplesError(f"{what} must be whole numbers, as many for each example.")
    return found.astype(np.int64)


def _numbers(what: str, given: Any) -> np.ndarray:
    """Numbers, all of them finite; an ExamplesError if there are others."""
    try:
        found = np.asarray(given, dtype=np.float32)
    except (ValueError, TypeError, OverflowError):
        found = np.full(1, np.nan, np.float32)
    if not np.isfinite(found).all():
        raise ExamplesError(f"{what} must be finite numbers, as many for each example.")
    return found


def _held(manifest: Mapping[str, Any], table: str, columns: Mapping[str, np.ndarray]) -> np.ndarray:
    """The rows of a table that the examples read; id 0 of a padded table is no row."""
    own = [x.reshape(-1) for f, x in columns.items() if manifest["fields"][f]["table"] == table]
    ids = np.unique(np.concatenate([np.empty(0, dtype=np.int64), *own]))
    return ids[ids != 0] if _padded(manifest, table) else ids


def steps_of(plan: Mapping[str, Any], examples: int) -> int:
    """How many steps a client takes in a round."""
    if plan["batches"] == "draw":
        return int(plan["local_steps"])
    return -(-examples // int(plan["batch_size"])) * int(plan["epochs"])


def positions(
    plan: Mapping[str, Any], examples: int, round_: int, number: int
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Of each step the examples (B,), and 1 where they are real, 0 where they fill the batch."""
    size = int(plan["batch_size"])
    within = np.arange(size)
    if plan["batches"] == "draw":
        stream = client_key(int(plan["seed"]), BATCH, round_, number)
        for step in range(plan["local_steps"]):
            yield below(bits(stream, (step << 32) + within), examples), np.ones(size, np.float32)
        return
    stream = client_key(int(plan["seed"]), SHUFFLE, round_, number)
    per_epoch = -(-examples // size)
    for epoch in range(plan["epochs"]):
        random = bits(stream, (epoch << 32) + np.arange(examples)).view(np.int64)
        order = np.argsort(random, kind="stable")
        for step in range(per_epoch):
            rank = step * size + within
            real = rank < examples
            yield order[np.where(real, rank, 0)], real.astype(np.float32)


def batches(
    manifest: Mapping[str, Any], examples: Examples, round_: int, number: int
) -> Iterator[dict[str, np.ndarray]]:
    """The inputs of every step that depend on the examples, by their names in the program."""
    plan = manifest["plan"]
    stream = client_key(int(plan["seed"]), STEP, round_, number)
    for step, (at, real) in enumerate(positions(plan, len(examples), round_, number)):
        batch = {f"ids/{name}": x[at] for name, x in examples.slots.items()}
        batch |= {f"numbers/{name}": x[at] for name, x in examples.numbers.items()}
        batch["label"] = examples.label[at]
        batch["weight"] = real if examples.weight is None else real * examples.weight[at]
        if manifest["random"]:
            batch["key"] = np.array(one(stream, step), dtype=np.int64)
        yield batch


def occurred(
    manifest: Mapping[str, Any], examples: Examples, drawn: Sequence[Mapping[str, np.ndarray]]
) -> dict[str, np.ndarray]:
    """Whether each row occurred in the batches of a round, by shared table: (R,) bool."""
    shared = [name for name, facts in manifest["tables"].items() if not facts["local"]]
    marks = {table: np.zeros(len(examples.index[table]) + 1, dtype=bool) for table in shared}
    for batch in drawn:
        for name in examples.slots:
            table = manifest["fields"][name]["table"]
            if table in marks:
                places = batch[f"ids/{name}"]
                real = (batch["weight"] > 0).reshape(-1, *[1] * (places.ndim - 1))
                marks[table][np.where(real, places, -1)] = True
    return {table: x[:-1] for table, x in marks.items()}
