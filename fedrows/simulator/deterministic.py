"""Sums in a fixed order on a GPU, so that a run comes out the same to the last bit.

Kernels that add to rows let threads add in whatever order they come, which is fast and rounds
another way each time. PyTorch's deterministic mode has slower ones that do not, and within it the
kernels of `nn.fused` that add like this are left out. On a CPU the order is fixed anyway.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils import deterministic as _deterministic

from fedrows.server import RunRound

deterministic: Any = _deterministic  # its setting is no attribute that a type checker sees
_WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"  # without it products differ, and PyTorch says so


class DeterministicRounds:
    """Rounds whose sums have a fixed order; a note names the operations that have none."""

    def __init__(self, run_round: RunRound, notes: list[str]) -> None:
        self._run_round, self._notes = run_round, notes

    def __call__(self) -> None:
        with fixed_order() as unsteady:
            self._run_round()
        if unsteady:
            note = (
                "Last bits may differ when it is repeated: PyTorch has no fixed order for "
                f"{', '.join(unsteady)}."
            )
            if note not in self._notes:
                self._notes.append(note)


@contextmanager
def fixed_order() -> Iterator[list[str]]:
    """PyTorch's deterministic mode; names the operations that it has no order for."""
    unsteady: list[str] = []
    os.environ.setdefault(_WORKSPACE, ":4096:8")
    mode, filling = torch.get_deterministic_debug_mode(), deterministic.fill_uninitialized_memory
    torch.set_deterministic_debug_mode("warn")
    deterministic.fill_uninitialized_memory = False  # it takes time, and nobody reads it
    try:
        with warnings.catch_warnings(record=True) as heard:
            warnings.filterwarnings("always", message=".*deterministic")
            yield unsteady
    finally:
        deterministic.fill_uninitialized_memory = filling
        torch.set_deterministic_debug_mode(mode)
    for warning in heard:
        text = str(warning.message)
        if "deterministic" not in text:
            warnings.warn_explicit(
                warning.message, warning.category, warning.filename, warning.lineno
            )
        elif (operation := text.split()[0]) not in unsteady:
            unsteady.append(operation)
