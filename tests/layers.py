"""Forms of recurrent layers and numbers for them: what the tests of fedrows.nn share."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

FORMS: dict[str, dict[str, Any]] = {
    "one layer": {},
    "two layers": {"num_layers": 2},
    "batch first": {"num_layers": 2, "batch_first": True},
    "both directions": {"num_layers": 2, "bidirectional": True},
    "no bias": {"bias": False},
}


def made(*shape: int, seed: int = 0) -> Tensor:
    """Normal numbers, the same for a seed."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, dtype=torch.float64, generator=generator)
