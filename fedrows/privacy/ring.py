"""Fixed point in a ring: real numbers as words whose sum is exact, or refused before the start.

    word = floor(x · 2^f + u) mod 2^bits,   u uniform in [0, 1): right on average

The sum of `clients` such words is off by less than clients · 2^−f. What becomes of it is divided by
`divisor` and multiplied by a correction of at most `correction`, so f is the smallest with

    clients · 2^−f · correction / divisor ≤ precision.

The word is the smallest in which no sum of values in ±range can wrap around.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from fedrows.errors import FedrowsError
from fedrows.privacy.keys import MaskWords, random_words

WORDS = (32, 64)  # bits


class RangeError(FedrowsError, ValueError):
    """Values that a ring cannot hold."""


@dataclass(frozen=True)
class Coding:
    """How the numbers of one sum are written as words."""

    range: float  # no value is further from 0
    clients: int  # that the sum has at most
    correction: float = 1.0  # the largest factor that the sum is multiplied by afterwards
    precision: float = 1e-6  # of the result, at worst
    divisor: float = 1.0  # what the sum is divided by afterwards

    def __post_init__(self) -> None:
        for name in ("range", "clients", "correction", "precision", "divisor"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value > 0):
                raise RangeError(f"{name} is {value!r}, but must be a number above 0.")
        if self._needed > WORDS[-1]:
            raise RangeError(
                f"A sum of {self.clients} values in ±{self.range:g}, precise to "
                f"{self.precision:g} after a correction of up to {self.correction:g}, needs words "
                f"of {self._needed} bits, but there are at most {WORDS[-1]}: lower the range or "
                "cap the correction."
            )

    @cached_property
    def fraction(self) -> int:
        """f: the bits after the point."""
        steps = self.clients * self.correction / (self.precision * self.divisor)
        return max(0, math.ceil(math.log2(steps)))

    @cached_property
    def bits(self) -> int:
        """The bits of a word."""
        return next(bits for bits in WORDS if self._needed <= bits)

    @cached_property
    def dtype(self) -> np.dtype[np.unsignedinteger]:
        """The type of a word."""
        return np.dtype(f"<u{self.bits // 8}")

    @property
    def error(self) -> float:
        """What the result is off by at worst."""
        return self.clients * 2.0**-self.fraction * self.correction / self.divisor

    @property
    def _needed(self) -> int:
        """Bits for the largest sum, in exact arithmetic, and its sign."""
        most = math.ceil(Fraction(self.range) * 2**self.fraction) + 1
        return (self.clients * most).bit_length() + 1

    def encode(self, values: NDArray[np.floating], client: int | None = None) -> MaskWords:
        """Values of any shape as flat words; a RangeError if one is outside of the range."""
        flat = np.asarray(values, dtype=np.float64).reshape(-1)
        if flat.size and not np.abs(flat).max() <= self.range:  # NaN is outside too
            first = flat[~(np.abs(flat) <= self.range)][0]
            whose = "" if client is None else f" of client {client}"
            raise RangeError(
                f"A value{whose} is {first:g}, outside of the agreed range ±{self.range:g}: "
                "clip it, or agree on a wider range."
            )
        scaled = flat * 2.0**self.fraction  # exact: a power of two
        floors = np.floor(scaled)
        coin = (random_words(len(flat), np.uint64) >> np.uint64(11)) * 2.0**-53
        numbers = floors.astype(np.int64)
        numbers += coin < scaled - floors
        return numbers.view(np.uint64).astype(self.dtype)

    def decode(self, words: MaskWords) -> NDArray[np.float64]:
        """What a sum of words stands for."""
        signed = words.view(np.dtype(f"<i{self.bits // 8}"))
        return signed.astype(np.float64) * 2.0**-self.fraction
