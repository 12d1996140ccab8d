"""The gradient of looking rows up, as one kernel: `rows.cu`."""

from __future__ import annotations

from torch import Tensor

from fedrows.nn.kernels import launch

_THREADS = 256


def backward(grad: Tensor, ids: Tensor, count: int, nothing: int | None) -> Tensor:
    """The gradient of (count, width) rows, of which ids (n,) were read."""
    width = grad.shape[1]
    found = grad.new_zeros(count, width)
    numbers = grad.numel()
    if numbers:
        given: list[Tensor | int] = [grad.contiguous(), ids.contiguous(), found, numbers, width]
        nobody = -1 if nothing is None else nothing
        launch("rows_backward", {}, [-(-numbers // _THREADS)], _THREADS, [*given, nobody])
    return found
