"""The time loops of LSTM and GRU, which a graph has as one operation each."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def recorded_as_one() -> Iterator[None]:
    yield
