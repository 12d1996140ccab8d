"""Columns of lists: the list of example i is values[offsets[i] … offsets[i+1]−1], without padding.

A batch needs rectangles, so a list is filled up to the longest one when it is looked up. Id 0 of a
table that lists read stands for "nothing here": no client holds it, and it never moves.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Ragged:
    """n lists of whole numbers, one after another."""

    values: Tensor  # (T,)
    offsets: Tensor  # (n+1,)
    length: int  # of the longest list, or of what lists were cut to

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def sizes(self) -> Tensor:
        """How long each list is: (n,)."""
        return self.offsets.diff()

    def fill(self, positions: Tensor, nothing: int) -> Tensor:
        """The lists at some positions (…), filled up with `nothing`: (…, length)."""
        start = self.offsets[positions]
        size = self.offsets[positions + 1] - start
        position = torch.arange(self.length, device=self.values.device)
        inside = position < size[..., None]  # (…, length)
        if not len(self.values):
            return torch.full_like(inside, nothing, dtype=self.values.dtype)
        filled = self.values[torch.where(inside, start[..., None] + position, 0)]
        return torch.where(inside, filled, nothing)

    def pick(self, positions: Tensor) -> Ragged:
        """The lists at some positions (m,), in that order."""
        sizes = self.sizes[positions]
        offsets = torch.cat([sizes.new_zeros(1), torch.cumsum(sizes, 0)])
        owner = torch.repeat_interleave(sizes)
        shift = (self.offsets[positions] - offsets[:-1])[owner]
        entries = torch.arange(len(owner), device=owner.device) + shift
        return Ragged(self.values[entries], offsets, self.length)

    def last(self, most: int) -> Ragged:
        """The same lists, each cut to its last `most` values."""
        sizes = self.sizes
        position = torch.arange(len(self.values)) - torch.repeat_interleave(
            self.offsets[:-1], sizes
        )
        chosen = position >= torch.repeat_interleave(sizes - most, sizes)
        return lists_of(self.values[chosen], sizes.clamp(max=most))

    def to(self, device: torch.device) -> Ragged:
        """The same lists on another device."""
        return Ragged(self.values.to(device), self.offsets.to(device), self.length)


Column = Tensor | Ragged  # ids of a field: (n,), (n, L), or n lists


def lists_of(values: Tensor | np.ndarray, sizes: Tensor | np.ndarray) -> Ragged:
    """Lists of the given sizes (n,), cut out of values (T,) one after another."""
    values, sizes = torch.as_tensor(values), torch.as_tensor(sizes)
    offsets = torch.cat([sizes.new_zeros(1), torch.cumsum(sizes, 0)])
    return Ragged(values, offsets, int(sizes.max()) if len(sizes) and sizes.any() else 1)


def ragged(lists: Sequence[Sequence[int] | np.ndarray], most: int | None = None) -> Ragged:
    """Lists as a column; of a list longer than `most` the last so many are kept."""
    cut = [np.asarray(each, dtype=np.int64)[-most if most else None :] for each in lists]
    sizes = np.array([len(each) for each in cut], dtype=np.int64)
    column = lists_of(np.concatenate(cut) if cut else np.empty(0, dtype=np.int64), sizes)
    return replace(column, length=most) if most else column


def histories(values: np.ndarray, stop: np.ndarray, size: np.ndarray, most: int) -> Ragged:
    """For every example the last `most` of values[stop − size] … values[stop − 1]."""
    size = np.minimum(size, most)
    offsets = np.concatenate([[0], np.cumsum(size)])
    entries = np.arange(offsets[-1]) + np.repeat(stop - offsets[1:], size)
    length = max(int(size.max(initial=0)), 1)  # a batch is filled up to it: no longer than needed
    return Ragged(torch.from_numpy(values[entries]), torch.from_numpy(offsets), length)


def pick(column: Column, positions: Tensor) -> Column:
    """What a column has at some positions (m,), as a column."""
    return column.pick(positions) if isinstance(column, Ragged) else column[positions]


def look_up(column: Column, positions: Tensor, nothing: int = 0) -> Tensor:
    """What a column has at some positions (…): (…) or (…, L)."""
    if isinstance(column, Ragged):
        return column.fill(positions, nothing)
    values = column.index_select(0, positions.reshape(-1))
    return values.view(*positions.shape, *column.shape[1:])
