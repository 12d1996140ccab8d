"""What a row is before anybody touched it: a function of its id, so that nothing need be stored.

The functions give the same numbers for a row whatever it is asked for with, in any order, and the
same as the whole table has when it is made in memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from fedrows.seeds import START, bits, key, normal, uniform


class InitialRows(Protocol):
    """The start values of a table's rows."""

    def __call__(self, ids: Tensor) -> Tensor:
        """The rows of some ids (R,), on the CPU: (R, width), or (R,) of a table of numbers."""


@dataclass(frozen=True)
class ConstantRows:
    """The same number everywhere."""

    value: float
    tail: tuple[int, ...]  # the shape of a row
    dtype: torch.dtype = torch.float32

    def __call__(self, ids: Tensor) -> Tensor:
        return torch.full((len(ids), *self.tail), self.value, dtype=self.dtype)


@dataclass(frozen=True)
class NormalRows:
    """Numbers from N(0, spread²) by (seed, name, row, column), as `nn.start_` draws them."""

    seed: int
    name: str  # of the parameter
    width: int
    spread: float = 1.0
    padding: int | None = None  # the row that is 0
    dtype: torch.dtype = torch.float32

    def __call__(self, ids: Tensor) -> Tensor:
        counters = (ids * self.width)[:, None] + torch.arange(self.width)  # (R, width)
        stream = key(self.seed, START, *self.name.encode())
        rows = (normal(bits(stream, counters)) * self.spread).to(self.dtype)
        if self.padding is not None:
            rows[ids == self.padding] = 0
        return rows


@dataclass(frozen=True)
class UniformRows:
    """Numbers from U(−bound, bound) by (seed, name, row, column), as `start_glorot_` draws them."""

    seed: int
    name: str  # of the parameter
    width: int
    bound: float
    padding: int | None = None  # the row that is 0
    dtype: torch.dtype = torch.float32

    def __call__(self, ids: Tensor) -> Tensor:
        counters = (ids * self.width)[:, None] + torch.arange(self.width)  # (R, width)
        stream = key(self.seed, START, *self.name.encode())
        rows = ((uniform(bits(stream, counters)) * 2 - 1) * self.bound).to(self.dtype)
        if self.padding is not None:
            rows[ids == self.padding] = 0
        return rows


@dataclass(frozen=True, eq=False)
class GivenRows:
    """The rows of a tensor that is in memory anyway, such as a module's own weight."""

    rows: Tensor

    def __call__(self, ids: Tensor) -> Tensor:
        return self.rows.index_select(0, ids.to(self.rows.device)).cpu()


@dataclass(frozen=True, eq=False)
class SameRow:
    """One row that every row starts as, such as the personal parts of every client."""

    row: Tensor  # (width,)

    def __call__(self, ids: Tensor) -> Tensor:
        return self.row.cpu().expand(len(ids), -1).clone()  # (R, width)


@dataclass(frozen=True)
class RowsSideBySide:
    """Several embeddings of one table, side by side."""

    parts: Sequence[InitialRows]

    def __call__(self, ids: Tensor) -> Tensor:
        return torch.cat([part(ids) for part in self.parts], 1)
