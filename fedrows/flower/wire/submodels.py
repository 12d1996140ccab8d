"""Submodels as parts of a message: rows that are all zero are left out.

    NAME/TABLE/at     which entries of the index are sent, if not all of them
    NAME/TABLE        their rows
    NAME.DENSE        a dense tensor of every client
    occurred/TABLE    marks: which rows occurred in batches, a bit for every entry of the index

Both sides know the index sets, so ids never travel with rows. Positions in the index do, and only
where rows are left out. What is read is untrusted: every size is known before it is decoded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
import torch
from torch import Tensor

from fedrows.flower.wire.codings import (
    ids_from_bytes,
    ids_to_bytes,
    numbers_from_bytes,
    numbers_size,
    numbers_to_bytes,
)
from fedrows.flower.wire.message import WireError, part_of
from fedrows.rows.index import Index
from fedrows.rows.params import Submodels
from fedrows.rows.schema import Schema
from fedrows.seeds import WIRE, key

_MARKS = "occurred/"


@dataclass(frozen=True)
class SubmodelLayout:
    """What submodels look like: which rows of which tables, and how numbers are coded."""

    index: Mapping[str, Index]
    schema: Schema
    coding: str
    dtype: torch.dtype

    @property
    def clients(self) -> int:
        """How many clients' submodels."""
        return next(iter(self.index.values())).clients

    def shapes(self) -> tuple[dict[str, tuple[int, ...]], dict[str, tuple[int, ...]]]:
        """The shapes of all rows and of all dense tensors."""
        rows: dict[str, tuple[int, ...]] = {
            t: (len(x.ids), self.schema.tables[t].width) for t, x in self.index.items()
        }
        return rows, {name: (self.clients, *shape) for name, shape in self.schema.dense.items()}

    @property
    def most(self) -> int:
        """The most bytes that submodels of this form take, names and lengths included."""
        rows, dense = self.shapes()
        size = 256 * (2 + 2 * len(rows) + len(dense))
        shapes = (*rows.values(), *map(_flat, dense.values()))
        size += sum(numbers_size(shape, self.coding) for shape in shapes)
        return size + sum(5 * shape[0] for shape in rows.values())


def encode_submodels(
    name: str, submodels: Submodels, coding: str, salt: int = 0
) -> dict[str, bytes]:
    """Submodels as parts; `salt` tells one message's rounding from another's."""
    parts = {}
    for number, (table, rows) in enumerate(submodels.rows.items()):
        at = rows.ne(0).any(1).nonzero().view(-1)
        if len(at) < len(rows):
            parts[f"{name}/{table}/at"] = ids_to_bytes(at)
            rows = rows.index_select(0, at)
        parts[f"{name}/{table}"] = numbers_to_bytes(rows, coding, key(salt, WIRE, number))
    for number, (tensor, dense) in enumerate(submodels.dense.items()):
        flat = dense.reshape(_flat(tuple(dense.shape)))
        parts[f"{name}.{tensor}"] = numbers_to_bytes(flat, coding, key(salt, WIRE, -1 - number))
    return parts


def decode_submodels(name: str, parts: Mapping[str, bytes], layout: SubmodelLayout) -> Submodels:
    """Submodels of a known layout, or a WireError; what belongs to no tensor is one, too."""
    shapes, dense_shapes = layout.shapes()
    rows = {}
    for table, (count, width) in shapes.items():
        data = part_of(parts, f"{name}/{table}")
        at = parts.get(f"{name}/{table}/at")
        if at is None:
            rows[table] = numbers_from_bytes(data, (count, width), layout.coding, layout.dtype)
            continue
        positions = ids_from_bytes(at, count, count)
        sent = numbers_from_bytes(data, (len(positions), width), layout.coding, layout.dtype)
        rows[table] = torch.zeros(count, width, dtype=layout.dtype).index_copy_(0, positions, sent)
    dense = {}
    for tensor, shape in dense_shapes.items():
        data = part_of(parts, f"{name}.{tensor}")
        numbers = numbers_from_bytes(data, _flat(shape), layout.coding, layout.dtype)
        dense[tensor] = numbers.view(shape)
    return Submodels(layout.index, rows, dense)


def join_submodels(parts: Sequence[Submodels], layout: SubmodelLayout) -> Submodels:
    """Single clients' submodels of a layout, one after another; there may be none."""
    rows, dense = layout.shapes()
    none = torch.zeros(0, dtype=layout.dtype)
    return Submodels(
        layout.index,
        {
            table: torch.cat([none.view(0, width), *(part.rows[table] for part in parts)])
            for table, (_, width) in rows.items()
        },
        {
            name: torch.cat([none.view(0, *shape[1:]), *(part.dense[name] for part in parts)])
            for name, shape in dense.items()
        },
    )


def _flat(shape: tuple[int, ...]) -> tuple[int, ...]:
    """A dense tensor's shape as rows: a coarse coding has a scale for each of them."""
    return (prod(shape[:-1]), shape[-1]) if len(shape) > 2 else shape


def part_names(name: str, layout: SubmodelLayout) -> set[str]:
    """Every part that submodels of this form may have."""
    names = {f"{name}.{tensor}" for tensor in layout.schema.dense}
    for table in layout.index:
        names |= {f"{name}/{table}", f"{name}/{table}/at"}
    return names


def encode_marks(marks: Mapping[str, Tensor]) -> dict[str, bytes]:
    """Marks (R,) by table as parts; the last byte is filled up with zeros."""
    return {f"{_MARKS}{table}": np.packbits(x.numpy()).tobytes() for table, x in marks.items()}


def decode_marks(parts: Mapping[str, bytes], index: Mapping[str, Index]) -> dict[str, Tensor]:
    """Marks for the entries of an index, or a WireError."""
    marks = {}
    for table, rows in index.items():
        count, data = len(rows.ids), parts.get(f"{_MARKS}{table}", b"")
        if len(data) != (count + 7) // 8:
            raise WireError(
                f"The part {_MARKS + table!r} has {len(data)} bytes, but {count} rows have "
                f"{(count + 7) // 8}."
            )
        bits = np.unpackbits(np.frombuffer(data, dtype=np.uint8), count=count)
        marks[table] = torch.from_numpy(bits.astype(bool))
    return marks


def mark_names(index: Mapping[str, Index]) -> set[str]:
    """Every part that marks may have."""
    return {f"{_MARKS}{table}" for table in index}
