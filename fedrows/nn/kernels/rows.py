"""Looking rows up as one kernel forward and one backward: `rows.cu`."""

from __future__ import annotations

from torch import Tensor

from fedrows.nn.kernels import launch

_THREADS = 256


def forward(block: Tensor, ids: Tensor) -> Tensor:
    """The rows at ids (n,) of a block (R, width)."""
    width = block.shape[1]
    rows = block.new_empty(len(ids), width)
    numbers = rows.numel()
    if numbers:
        given: list[Tensor | int] = [block, ids, rows, numbers, width]
        launch("rows_forward", {}, [-(-numbers // _THREADS)], _THREADS, given)
    return rows


def backward(grad: Tensor, ids: Tensor, count: int, nothing: int | None) -> Tensor:
    """The gradient of (count, width) rows, of which ids (n,) were read."""
    width = grad.shape[1]
    gradient = grad.new_zeros(count, width)
    numbers = grad.numel()
    if numbers:
        given: list[Tensor | int] = [grad.contiguous(), ids.contiguous(), gradient, numbers, width]
        nobody = -1 if nothing is None else nothing
        launch("rows_backward", {}, [-(-numbers // _THREADS)], _THREADS, [*given, nobody])
    return gradient
