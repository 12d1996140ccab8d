"""Data sets of Hugging Face as a federation: one, its splits, or the parts of a partitioner.

A partitioner is whatever has `num_partitions` and `load_partition(number)`, as those of
flwr-datasets do: each part is a client. Neither package is imported here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from fedrows.data.frame_sources import columns_in
from fedrows.errors import DataError

TEST, VALIDATION = "is a test example", "is a validation example"  # columns that are added


def is_partitioner(source: Any) -> bool:
    """Whether it divides a data set among clients."""
    return hasattr(source, "load_partition") and hasattr(source, "num_partitions")


def parts_of(partitioner: Any) -> Iterator[tuple[int, Any]]:
    """The parts by number, each the piece of a client."""
    for number in range(int(partitioner.num_partitions)):
        yield number, columns_in(partitioner.load_partition(number))


def joined(source: Any, options: dict[str, Any]) -> tuple[Mapping[str, Any], dict[str, Any]]:
    """One frame of a data set or of its splits, and the options with how it is split.

    The splits may be train, validation and test. What they are called decides what is held out.
    """
    if not isinstance(source, Mapping):
        if type(source).__name__.startswith("Iterable"):
            raise DataError("The data set is streamed, but all of it is needed: load it whole.")
        return columns_in(source), options
    splits = {str(name): columns_in(part) for name, part in source.items()}
    unknown = [name for name in splits if name not in ("train", "validation", "test")]
    if unknown or "train" not in splits:
        raise DataError(
            f"The data set has the splits {', '.join(splits)}: give one of them, or rename them to "
            "train, validation and test."
        )
    marks = {"test": TEST, "validation": VALIDATION}
    for name in marks.keys() & splits.keys():
        if name in options:
            raise DataError(
                f"{name} is {options[name]!r}, but the data set has a split {name!r} already: "
                "leave one of them out."
            )
    first = splits["train"]
    for name, part in splits.items():
        if missing := sorted(set(first) ^ set(part)):
            raise DataError(
                f"The splits train and {name} differ in column {missing[0]!r}: give both the same."
            )
    columns = {
        column: np.concatenate([part[column] for part in splits.values()]) for column in first
    }
    sizes = {name: len(part[next(iter(part))]) for name, part in splits.items()}
    held = dict(options)
    for name in marks.keys() & splits.keys():
        columns[marks[name]] = np.concatenate([np.full(n, s == name) for s, n in sizes.items()])
        held[name] = marks[name]
    return columns, held
