"""LSTM layers on a CPU by a kernel of our own, `kernels/lstm.cpp`: float32 and float64.

PyTorch's layers are made for one model and many examples. Here are many models with a few examples
each: products of five rows, weights that change with every step. The kernel lays a client's weights
out once, keeps them in the cache for all its steps, and writes each gradient where the stacked one
of all clients lies. A C++ compiler is needed; without one `lstm_onednn` takes its place.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedrows.nn.kernels import cpp_library

enabled = True  # False: other ways everywhere

MOST = 64  # examples; PyTorch's layers use all cores and have the better of it with more
_KINDS = {torch.float32: "f32", torch.float64: "f64"}


def usable(x: Tensor) -> bool:
    """Whether the kernel may run a layer over x (…, B, F)."""
    if not (enabled and x.device.type == "cpu" and x.dtype in _KINDS and x.numel()):
        return False
    return x.shape[-2] <= MOST and missing() is None


@cache
def missing() -> str | None:
    """Why there is no kernel on this machine, or None; it is tried out before it is trusted."""
    return cpp_library.why_missing("lstm", _right)


def forward(*inputs: Tensor) -> tuple[Tensor, Tensor, list[Tensor]]:
    """The hidden states, the last cells, and what the way back needs."""
    x, of_x, of_h, bias, more, h, c = (part.contiguous() for part in inputs)
    groups, steps, batch, size = *x.shape[:3], h.shape[-1]
    hidden, cells = (x.new_empty(groups, steps, batch, size) for _ in range(2))
    gates = x.new_empty(groups, steps, batch, 4 * size)
    _call("forward", [x, of_x, of_h, bias, more, h, c, hidden, cells, gates], size)
    return hidden, cells[:, -1].clone(), [cells, gates]


def backward(known: Sequence[Tensor], room: Sequence[Tensor]) -> list[Tensor]:
    """The gradients of the inputs."""
    x, of_x, of_h, bias, _, h, c, hidden, _, above, dc = (part.contiguous() for part in known)
    changes = [torch.empty_like(part) for part in (x, of_x, of_h, bias, h)]
    dc = dc.clone()  # becomes the first cell's in place
    _call("backward", [x, of_x, of_h, h, c, hidden, *room, above, *changes, dc], h.shape[-1])
    *of_weights, d_bias, dh = changes
    return [*of_weights, d_bias, d_bias.clone(), dh, dc]


def _call(way: str, tensors: Sequence[Tensor], size: int) -> None:
    x = tensors[0]
    name, addresses = f"{_KINDS[x.dtype]}_{way}", [part.data_ptr() for part in tensors]
    cpp_library.call("lstm", name, (*x.shape, size), addresses)


def _right() -> bool:
    """Whether a step of a small layer has the formulas' results: a compiler may have a fault.

    In NumPy, since this may be asked for the first time while PyTorch lifts or traces a layer.
    """
    return all(_as_formulas_say(kind) for kind in (np.float32, np.float64))


def _as_formulas_say(kind: type[np.floating[Any]]) -> bool:
    def given(*shape: int) -> np.ndarray:
        return np.linspace(-2, 2, math.prod(shape), dtype=kind).reshape(shape)

    batch, inputs, units = 7, 3, 9  # no multiples of what a vector holds, and two sorts of tiles
    x, h, c = given(batch, inputs), given(batch, units), given(batch, units)[::-1].copy()
    of_x, of_h, bias = given(4 * units, inputs), given(4 * units, units), given(4 * units)
    more, above, dc = bias / 2, given(batch, units), given(batch, units)[:, ::-1].copy()

    def run(way: str, *arrays: np.ndarray) -> None:
        name, addresses = f"f{8 * np.dtype(kind).itemsize}_{way}", [x.ctypes.data for x in arrays]
        cpp_library.call("lstm", name, (1, 1, batch, inputs, units), addresses)

    hidden, cells, gates = np.empty_like(h), np.empty_like(c), given(batch, 4 * units)
    run("forward", x, of_x, of_h, bias, more, h, c, hidden, cells, gates)
    raw = x @ of_x.T + bias + h @ of_h.T + more
    i, f, g, o = np.split(1 / (1 + np.exp(-raw)), 4, 1)
    g = np.tanh(np.split(raw, 4, 1)[2])
    cell = f * c + i * g
    squashed = np.tanh(cell)

    down = dc + above * o * (1 - squashed**2)
    inner = [g * i * (1 - i), c * f * (1 - f), i * (1 - g * g)]
    slope = np.hstack([*(down * part for part in inner), above * squashed * o * (1 - o)])
    dx, d_of_x, d_of_h, d_bias, dh = (np.empty_like(part) for part in (x, of_x, of_h, bias, h))
    results = [hidden, cells, dx, d_of_x, d_of_h, d_bias, dh, dc]
    run("backward", x, of_x, of_h, h, c, hidden, cells, gates, above, *results[2:])
    wanted = [o * squashed, cell, slope @ of_x, slope.T @ x, slope.T @ h, slope.sum(0)]
    wanted += [slope @ of_h, down * f]
    near = 1_000 * np.finfo(kind).eps
    return all(np.abs(a - b).max() <= near for a, b in zip(results, wanted, strict=True))
