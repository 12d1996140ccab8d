"""Layers that have CUDA kernels of their own (see `kernels`), as steps of autograd.

They are used for float32 on a GPU. Each computes what the plain operations next to its call
compute, and `benchmarks/gpu.py` holds the two against each other. As in `recurrent_scans`, layers
are written for G groups with weights of their own, and lifted clients become groups.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from fedrows.nn import kernels
from fedrows.nn.kernels import attention, dice, rows

enabled = True  # False: plain operations everywhere


def usable(x: Tensor) -> bool:
    """Whether a tensor's layer may use its kernel."""
    if not (enabled and x.is_cuda and x.dtype == torch.float32):
        return False
    return kernels.missing() is None


def adds_freely(x: Tensor) -> bool:
    """Whether a kernel may run that adds in any order, and rounds another way each time."""
    return usable(x) and not torch.are_deterministic_algorithms_enabled()


def notes() -> list[str]:
    """What to say where a GPU is used without the kernels."""
    why = kernels.missing()
    return [f"Layers run as plain operations, slower, for want of NVRTC: {why}"] if why else []


class DiceStep(Function):
    """`Dice` in a client's step: x (G, B, C), the examples' weights (G, B), alpha (G, C)."""

    @staticmethod
    def forward(x: Tensor, weight: Tensor, alpha: Tensor, eps: float) -> Tensor:
        return dice.forward(x.contiguous(), weight.contiguous(), alpha.contiguous(), eps)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        *tensors, ctx.eps = inputs
        ctx.save_for_backward(*tensors)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, alpha, above = _contiguous(*ctx.saved_tensors, *grads)
        dx, d_alpha = dice.backward(x, weight, alpha, above, ctx.eps)
        return dx, None, d_alpha, None

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *inputs: Any) -> tuple[Tensor, int]:
        *tensors, eps = inputs
        result = DiceStep.apply(*as_groups(info.batch_size, in_dims, tensors), eps)
        return result.unflatten(0, (info.batch_size, -1)), 0


class AttentionStep(Function):
    """DIN's attention over a list, and the list's plain sum: (G, B, w) each.

    The score of item k for target q is w₃ · σ(W₂ σ(W₁ [q, k, q−k, q·k] + b₁) + b₂).
    q (G, B, w), k (G, B, L, w), mask (G, B, L), W₁ (G, A, 4w), b₁ (G, A), W₂ (G, C, A),
    b₂ (G, C), w₃ (G, C)
    """

    @staticmethod
    def forward(*inputs: Tensor) -> tuple[Tensor, ...]:
        given = _contiguous(*inputs)
        if given[0].is_cuda:
            return attention.forward(*given)
        return tuple(torch.ops.fedrows.attention(given))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, ...]) -> None:
        pooled, _, *room = output
        ctx.mark_non_differentiable(*room)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*inputs, pooled, *room)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        q = ctx.saved_tensors[0]
        above = (torch.zeros_like(q) if grad is None else grad for grad in grads[:2])
        known = _contiguous(*ctx.saved_tensors, *above)
        on_cpu = torch.ops.fedrows.attention_backward
        gradients = attention.backward(*known) if q.is_cuda else on_cpu(known)
        return *gradients[:2], None, *gradients[2:]

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[int | None, ...], *inputs: Tensor
    ) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
        results = AttentionStep.apply(*as_groups(info.batch_size, in_dims, inputs))
        apart = tuple(x.unflatten(0, (info.batch_size, -1)) for x in results)
        return apart, (0,) * len(apart)


class RowsStep(Function):
    """The rows at some ids (n,) of a block (R, w); `nothing` has no gradient.

    PyTorch's own gradient sorts all ids first on a GPU, and on a CPU calls a library for each; this
    one adds, and has the same bits on a CPU.
    """

    @staticmethod
    def forward(block: Tensor, ids: Tensor, nothing: int | None) -> Tensor:
        if block.is_cuda:
            return rows.forward(block.contiguous(), ids.contiguous())
        return block.index_select(0, ids)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        block, ids, ctx.nothing = inputs
        ctx.count = len(block)
        ctx.save_for_backward(ids)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (ids,) = ctx.saved_tensors
        if grads[0].is_cuda:
            return rows.backward(grads[0], ids, ctx.count, ctx.nothing), None, None
        gradient = grads[0].new_zeros(ctx.count, grads[0].shape[1])
        gradient.index_add_(0, ids, grads[0])
        if ctx.nothing is not None:
            gradient[ctx.nothing].zero_()
        return gradient, None, None

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *inputs: Any) -> tuple[Tensor, int]:
        block, ids, nothing = inputs
        assert in_dims[0] is None, "all clients' rows are one block"
        assert in_dims[1] is not None
        ids = ids.movedim(in_dims[1], 0)  # (K, n)
        result = RowsStep.apply(block, ids.flatten(), nothing)
        return result.view(*ids.shape, -1), 0


class LinearStep(Function):
    """x (G, n, in) · weightᵀ + bias, with weight (G, out, in) and bias (G, out).

    PyTorch's own, lifted, gives the weight's gradient transposed, and whoever adds it pays for it.
    There is no kernel in it, so it serves a CPU as well.
    """

    @staticmethod
    def forward(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return torch.baddbmm(bias.unsqueeze(1), x, weight.mT)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs[:2])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, ...]:
        x, weight = ctx.saved_tensors
        above = grads[0]
        # Of a layer with one output, such as a score, the product has one term.
        down = above * weight if weight.shape[1] == 1 else above @ weight
        return down, above.mT @ x, above.sum(1)

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[int | None, ...], *inputs: Tensor
    ) -> tuple[Tensor, int]:  # fmt: skip
        result = LinearStep.apply(*as_groups(info.batch_size, in_dims, inputs))
        return result.unflatten(0, (info.batch_size, -1)), 0


def as_groups(clients: int, in_dims: tuple[int | None, ...], inputs: Any) -> list[Tensor]:
    """The tensors of V clients with G groups each, as those of V·G groups."""
    stacked = []
    for x, dim in zip(inputs, in_dims, strict=False):
        by_client = x.expand(clients, *x.shape) if dim is None else x.movedim(dim, 0)
        stacked.append(by_client.flatten(0, 1))
    return stacked


def _contiguous(*tensors: Tensor) -> tuple[Tensor, ...]:
    return tuple(x.contiguous() for x in tensors)
