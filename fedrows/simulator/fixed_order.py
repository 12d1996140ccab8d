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

deterministic: Any = _deterministic  # its setting is no attribute that a type checker sees
_WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"  # without it products differ, and PyTorch says so


@contextmanager
def fixed_order(wanted: bool) -> Iterator[list[str]]:
    """PyTorch's deterministic mode, if wanted; names the operations that it has no order for."""
    unsteady: list[str] = []
    if not wanted:
        yield unsteady
        return
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
