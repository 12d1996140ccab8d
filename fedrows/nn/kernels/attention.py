"""DIN's attention as one kernel forward and one backward: `attention.cu`."""

from __future__ import annotations

import torch
from torch import Tensor

from fedrows.nn.kernels import launch

_THREADS = 512
_SHARED = 227 * 1024  # bytes that a block may have


def fits(length: int, width: int, first: int, second: int) -> bool:
    """Whether an example's list, with both its hidden layers, fits into a block."""
    return _bytes(length, width, first, second) <= _SHARED


def forward(
    q: Tensor, k: Tensor, mask: Tensor, w1: Tensor, b1: Tensor, w2: Tensor, b2: Tensor, w3: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """The attention, the list's sum and every item's share; all inputs contiguous."""
    attention, total = torch.empty_like(q), torch.empty_like(q)
    share = k.new_empty(k.shape[:3])
    tensors = [q, k, mask, w1, b1, w2, b2, w3, attention, total, share]
    _launch("attention_forward", k, w2, tensors)
    return attention, total, share


def backward(
    q: Tensor,
    k: Tensor,
    mask: Tensor,
    w1: Tensor,
    b1: Tensor,
    w2: Tensor,
    b2: Tensor,
    w3: Tensor,
    attention: Tensor,
    share: Tensor,
    d_attention: Tensor,
    d_total: Tensor,
) -> tuple[Tensor, ...]:
    """The gradients of q, k, w1, b1, w2, b2 and w3."""
    d_q, d_k = torch.empty_like(q), torch.empty_like(k)
    weights = (w1, b1, w2, b2, w3)
    counts = [x[0].numel() for x in weights]
    shared = k.new_empty(*k.shape[:2], sum(counts))  # of the weights, by example
    given = [q, k, mask, *weights, attention, share, d_attention, d_total]
    _launch("attention_backward", k, w2, [*given, d_q, d_k, shared])
    gradients = [torch.empty_like(x) for x in weights]
    blocks = -(-sum(counts) // _THREADS)
    grid = [len(k), blocks]
    launch("attention_total", _sizes(k, w2), grid, _THREADS, [shared, *gradients, k.shape[1]])
    return d_q, d_k, *gradients


def _launch(name: str, k: Tensor, w2: Tensor, tensors: list[Tensor]) -> None:
    groups, batch, length, width = k.shape
    shared = _bytes(length, width, w2.shape[2], w2.shape[1])
    launch(name, _sizes(k, w2), [groups * batch], _THREADS, [*tensors, batch], shared)


def _sizes(k: Tensor, w2: Tensor) -> dict[str, int]:
    (length, width), (second, first) = k.shape[2:], w2.shape[1:]
    return {"L": length, "W": width, "A": first, "C": second, "THREADS": _THREADS}


def _bytes(length: int, width: int, first: int, second: int) -> int:
    """What `Room` in attention.cu takes, or a bit more."""
    long, wide = -(-length // 4) * 4, -(-width // 4) * 4
    one, two = -(-first // 8) * 8 + 4, -(-second // 8) * 8 + 4
    products = long * (wide + two) + (max(long, wide) + wide) * one + one * max(two, wide)
    return 4 * (products + 3 * length + 10 * (width + first + second) + 64)
