"""Dice, moments included, as one kernel forward and one backward: `dice.cu`."""

from __future__ import annotations

import torch
from torch import Tensor

from fedrows.nn.kernels import launch

LARGEST = 32  # examples that a thread holds in registers
_THREADS = 128


def forward(x: Tensor, weight: Tensor, alpha: Tensor, eps: float) -> Tensor:
    """What `Dice` gives in a client's step: x (G, B, C), weight (G, B), alpha (G, C)."""
    result = torch.empty_like(x)
    _launch("dice_forward", x, [x, weight, alpha, result], eps)
    return result


def backward(
    x: Tensor, weight: Tensor, alpha: Tensor, above: Tensor, eps: float
) -> tuple[Tensor, Tensor]:
    """The gradients of x and of alpha."""
    dx, d_alpha = torch.empty_like(x), torch.empty_like(alpha)
    _launch("dice_backward", x, [x, weight, alpha, above, dx, d_alpha], eps)
    return dx, d_alpha


def _launch(name: str, x: Tensor, tensors: list[Tensor], eps: float) -> None:
    groups, batch, size = x.shape
    blocks = -(-groups * size // _THREADS)
    launch(name, {"B": batch}, [blocks], _THREADS, [*tensors, groups, size, eps])
