"""DIN's attention on a CPU by a kernel of our own, `kernels/attention.cpp`: float32.

As plain operations the lists of a cohort pass through memory a dozen times in every step, and
padding costs as much as items. The kernel takes one example's list through all its layers while it
is in the cache, and leaves padding out. A C++ compiler is needed; without one plain operations do.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache

import numpy as np
import torch
from torch import Tensor

from fedrows.nn.kernels import cpp_library

enabled = True  # False: plain operations everywhere

MOST = 64  # examples of a group; plain operations use all cores and have the better of it with more
_VECTOR = 16  # a multiple of what a vector holds

_ops = torch.library.Library("fedrows", "FRAGMENT")  # so that a trace has one operation for it
_ops.define("attention(Tensor[] given) -> Tensor[]")
_ops.define("attention_backward(Tensor[] known) -> Tensor[]")


class _Here(threading.local):
    recorded = False  # whether this thread records a graph of PyTorch's own operations


_here = _Here()
_lacked: str | None = None  # why a layer that asked for the kernel did not get it


@contextmanager
def plain_operations() -> Iterator[None]:
    """Attention runs as PyTorch's own operations inside."""
    before, _here.recorded = _here.recorded, True
    try:
        yield
    finally:
        _here.recorded = before


def usable(k: Tensor) -> bool:
    """Whether the kernel may run over lists k (B, L, w)."""
    global _lacked
    if not (enabled and k.device.type == "cpu" and k.dtype == torch.float32 and k.numel()):
        return False
    if _here.recorded or k.shape[-3] > MOST:
        return False
    why = missing()
    _lacked = why or _lacked
    return why is None


@cache
def missing() -> str | None:
    """Why there is no kernel on this machine, or None; it is tried out before it is trusted."""
    return cpp_library.why_missing("attention", _right)


def notes() -> list[str]:
    """Notes on why attention has run slower than it could have."""
    if _lacked is None:
        return []
    return [f"DIN's attention runs slower than it could: {_lacked.rstrip('.')}."]


def forward(given: Sequence[Tensor]) -> list[Tensor]:
    """The attention and the sums of lists, and what the way back needs: see `AttentionStep`."""
    q, k, w2 = given[0], given[1], given[5]
    lists, (second, first) = k.shape[:3], w2.shape[1:]
    room = [k.new_empty(*lists, _whole(units)) for units in (first, second)]
    results = [torch.empty_like(q), torch.empty_like(q), k.new_empty(lists), *room]
    _call("forward", k, w2, [*given, *results])
    return results


def backward(known: Sequence[Tensor]) -> list[Tensor]:
    """The gradients of q, k, w1, b1, w2, b2 and w3."""
    q, k, mask, w1, b1, w2, b2, w3, _, share, h1, h2, d_attention, d_total = known
    gradients = [torch.empty_like(x) for x in (q, k, w1, b1, w2, b2, w3)]
    above = [share, h1, h2, d_attention, d_total]
    _call("backward", k, w2, [q, k, mask, w1, w2, w3, *above, *gradients])
    return gradients


_ops.impl("attention", forward, "CPU")
_ops.impl("attention_backward", backward, "CPU")


def _whole(units: int) -> int:
    return -(-units // _VECTOR) * _VECTOR


def _call(way: str, k: Tensor, w2: Tensor, tensors: Sequence[Tensor]) -> None:
    sizes = (*k.shape, w2.shape[2], w2.shape[1], torch.get_num_threads())
    cpp_library.call("attention", f"f32_{way}", sizes, [x.data_ptr() for x in tensors])


def _right() -> bool:
    """Whether a short list has the formulas' results: a compiler may have a fault.

    In NumPy, since this may be asked for the first time while PyTorch lifts or traces a layer.
    """

    def given(*shape: int) -> np.ndarray:
        return np.linspace(-1, 1.3, math.prod(shape), dtype=np.float32).reshape(shape)

    length, width, first, second = 5, 3, 18, 7  # no multiples of what a vector holds
    q, k, mask = given(width), given(length, width), np.array([1, 0, 1, 1, 0], bool)
    w1, b1, w2 = given(first, 4 * width), given(first), given(second, first)
    b2, w3, d_attention, d_total = given(second), given(second), given(width), given(width)[::-1]
    d_total = d_total.copy()
    share, h1 = np.empty(length, np.float32), np.empty((length, _whole(first)), np.float32)
    results = [np.empty_like(q), np.empty_like(q)]
    room = [share, h1, np.empty((length, _whole(second)), np.float32)]
    weights = [w1, b1, w2, b2, w3]
    gradients = [np.empty_like(x) for x in (q, k, *weights)]
    for way, arrays in (
        ("f32_forward", [q, k, mask, *weights, *results, *room]),
        ("f32_backward", [q, k, mask, w1, w2, w3, *room, d_attention, d_total, *gradients]),
    ):
        sizes = (1, 1, length, width, first, second, 1)
        cpp_library.call("attention", way, sizes, [x.ctypes.data for x in arrays])

    real = k[mask]
    wide = np.tile(q, (len(real), 1))
    x = np.hstack([wide, real, wide - real, wide * real])
    y = 1 / (1 + np.exp(-x @ w1.T - b1))
    z = 1 / (1 + np.exp(-y @ w2.T - b2))
    part = np.exp(z @ w3)
    part /= part.sum()
    slope = real @ d_attention
    slope = part * (slope - part @ slope)
    dz = slope[:, None] * w3 * z * (1 - z)
    dy = dz @ w2 * y * (1 - y)
    dx = np.split(dy @ w1, 4, 1)
    dk = np.zeros_like(k)
    dk[mask] = dx[1] - dx[2] + dx[3] * q + part[:, None] * d_attention + d_total
    wanted = [part @ real, real.sum(0), (dx[0] + dx[2] + dx[3] * real).sum(0), dk]
    wanted += [dy.T @ x, dy.sum(0), dz.T @ y, dz.sum(0), slope @ z]
    pairs = zip([*results, *gradients], wanted, strict=True)
    return all(np.abs(a - b).max() <= 1e-5 * max(1, np.abs(b).max()) for a, b in pairs)
