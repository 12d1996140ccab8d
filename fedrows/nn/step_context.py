"""What a layer may know about the step it is used in, beside its input.

While a client trains, its examples have weights (0: only there to fill the batch) and its own
randomness has a key. Normalisation and dropout read both here, because a plain `forward` has no
place for them. Outside of training there is no step, and layers behave as in evaluation, except in
a `measuring` pass, in which normalisation records the moments that evaluation then uses.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from torch import Tensor


@dataclass
class Step:
    """One client's step; under vmap its tensors are one client's view of the cohort's."""

    weight: Tensor  # (B,)
    key: Tensor | None = None  # (), int64
    calls: int = 0  # of layers that drew randomness so far: each has a stream of its own
    measuring: bool = False


@runtime_checkable
class MeasuresMoments(Protocol):
    """A layer that records, in a measuring pass, the moments that it evaluates with."""

    def begin_measuring(self) -> None:
        """Forgets what was measured before."""

    def end_measuring(self) -> None:
        """Stores what was measured in the layer's buffers."""


_here = threading.local()  # chunks of a cohort may be computed side by side


def current() -> Step | None:
    """The step that is being computed, if any."""
    return getattr(_here, "step", None)


@contextmanager
def step(weight: Tensor, key: Tensor | None = None, measuring: bool = False) -> Iterator[Step]:
    """Everything inside belongs to one client's step, or to a pass that measures moments."""
    before, _here.step = current(), Step(weight, key, measuring=measuring)
    try:
        yield _here.step
    finally:
        _here.step = before
