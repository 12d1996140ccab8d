"""Numbers that reach the model as (x − center) / spread, in training and in everything after it.

    Scaled(center=20, spread=8)        what the numbers are about, and how far they usually are off
    Scaled.of(frame["price"])          their mean and standard deviation

Both numbers are given, and never computed from a federation behind the user's back: hosts that have
a part of the data each must scale alike.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite
from numbers import Real
from typing import Any

import numpy as np

from fedrows.errors import DataError


@dataclass(frozen=True)
class Scaled:
    """How a column of numbers is scaled: (x − center) / spread."""

    center: float = 0.0
    spread: float = 1.0

    def __post_init__(self) -> None:
        for name, x in (("center", self.center), ("spread", self.spread)):
            if not isinstance(x, Real) or isinstance(x, bool) or not isfinite(x):
                raise DataError(f"The {name} of scaled numbers is {x!r}, but must be a number.")
        if not self.spread > 0:
            raise DataError(
                f"The spread of scaled numbers is {self.spread!r}, but must be above 0: numbers "
                "that are all the same tell nothing."
            )

    @classmethod
    def of(cls, values: Any) -> Scaled:
        """By the mean and the standard deviation of some values; missing ones do not count."""
        try:
            known = np.asarray(values, dtype=np.float64).ravel()
        except (TypeError, ValueError):
            raise DataError("Scaled.of takes numbers: convert the column first.") from None
        known = known[~np.isnan(known)]
        if not len(known):
            raise DataError("Scaled.of has no number to go by: give center and spread.")
        return cls(float(known.mean()), float(known.std()))

    def __call__(self, values: np.ndarray) -> np.ndarray:
        """Scaled numbers, in float64."""
        scaled: np.ndarray = (np.asarray(values, dtype=np.float64) - self.center) / self.spread
        return scaled
