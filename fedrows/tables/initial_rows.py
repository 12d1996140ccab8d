"""What a row is before anybody touched it: a function of its id, so that nothing need be stored.

The functions give the same numbers for a row whatever it is asked for with, in any order, and the
same as the whole table has when it is made in memory.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
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
class DrawnRows(ABC):
    """Numbers that are drawn by (seed, name, row, column)."""

    seed: int
    name: str  # of the parameter
    width: int
    spread: float = 1.0
    padding: int | None = None  # the row that is 0
    dtype: torch.dtype = torch.float32

    def __call__(self, ids: Tensor) -> Tensor:
        counters = (ids * self.width)[:, None] + torch.arange(self.width)  # (R, width)
        stream = key(self.seed, START, *self.name.encode())
        rows = (self._numbers(bits(stream, counters)) * self.spread).to(self.dtype)
        if self.padding is not None:
            rows[ids == self.padding] = 0
        return rows

    @abstractmethod
    def _numbers(self, random: Tensor) -> Tensor:
        """The numbers behind random bits, of spread 1."""


class NormalRows(DrawnRows):
    """Numbers from N(0, spread²), as `nn.start_` draws them."""

    def _numbers(self, random: Tensor) -> Tensor:
        return normal(random)


class UniformRows(DrawnRows):
    """Numbers from U(−spread, spread), as `start_glorot_` draws them."""

    def _numbers(self, random: Tensor) -> Tensor:
        return uniform(random) * 2 - 1


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
