"""The time loops of LSTM and GRU for G groups of sequences, each group with weights of its own.

Everything is time-first: step t of all groups lies together, so a step is one batched product and
a few pointwise operations. What does not wait for the step before is left out of the loops:

    forward    the input's share of the gates comes in ready for all steps
    backward   every factor that the chain rule needs is worked out for all steps beforehand, and
               the recurrent weight's gradient is one product over all steps and examples after it

PyTorch's own have no rule for `vmap`. These have: clients become groups, so K clients with K
different weights take the same operations as one. They are differentiable once.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from fedrows.nn import fused
from fedrows.nn.kernels import lstm


class LSTMScan(Function):
    """The hidden states and the last cell of LSTMs; gates are in PyTorch's order i, f, g, o.

    i, f, o = σ(·),  g = tanh(·),  c = f·c' + i·g,  h = o·tanh(c),  · = gates + W h'
    """

    @staticmethod
    def forward(gates: Tensor, weight: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, ...]:
        # gates (T, G, B, 4H), weight (G, 4H, H), h and c (G, B, H)
        steps, size = len(gates), h.shape[-1]
        if size <= lstm.LARGEST and fused.usable(gates):
            return lstm.forward(gates, weight, h, c)
        active = gates.clone(memory_format=torch.contiguous_format)
        hidden = h.new_empty(steps, *h.shape)
        cells = h.new_empty(steps, *h.shape)
        recurrent = weight.mT  # (G, H, 4H)
        for t in range(steps):
            now = active[t].baddbmm_(h, recurrent)
            now[..., : 2 * size].sigmoid_()
            now[..., 2 * size : 3 * size].tanh_()
            now[..., 3 * size :].sigmoid_()
            i, f, g, o = now.chunk(4, -1)
            c = torch.mul(f, c, out=cells[t]).addcmul_(i, g)
            h = torch.tanh(c, out=hidden[t]).mul_(o)
        return hidden, c.clone(), cells, active

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, ...]) -> None:
        _, weight, h, c = inputs
        hidden, _, cells, active = output
        ctx.mark_non_differentiable(cells, active)
        ctx.set_materialize_grads(False)  # those two would get zeros, and they are large
        ctx.save_for_backward(weight, h, c, hidden, cells, active)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor, ...]:
        weight, h, c, hidden, cells, active = ctx.saved_tensors
        size = h.shape[-1]
        above, dc = _zeros_for_none(grads, hidden, c)  # (T, G, B, H), (G, B, H)
        if size <= lstm.LARGEST and fused.usable(active):
            slope, dh, dc = lstm.backward(weight, c, cells, active, above, dc)
            return slope, _weight_gradient(slope, h, hidden), dh, dc
        i, f, g, o = active.chunk(4, -1)
        before = torch.cat([c[None], cells[:-1]])
        tanh = cells.tanh()
        # ∂c/∂(i, f, g) and ∂h/∂o before their σ and tanh, to become the gates' gradient in place
        slope = torch.cat(
            [g * i * (1 - i), before * f * (1 - f), i * (1 - g * g), tanh * o * (1 - o)], -1
        )
        to_cell = o * (1 - tanh * tanh)  # ∂h/∂c
        dh = above[-1]
        for t in reversed(range(len(active))):
            now = slope[t]
            dc = torch.addcmul(dc, dh, to_cell[t])
            now[..., : 3 * size].unflatten(-1, (3, size)).mul_(dc.unsqueeze(-2))
            now[..., 3 * size :].mul_(dh)
            dc = dc * f[t]
            dh = torch.baddbmm(above[t - 1], now, weight) if t else torch.bmm(now, weight)
        return slope, _weight_gradient(slope, h, hidden), dh, dc

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *inputs: Tensor) -> Any:
        return _as_groups(LSTMScan, info.batch_size, in_dims, inputs, cell=True)


class GRUScan(Function):
    """The hidden states of GRUs; gates are in PyTorch's order r, z, n.

    r, z = σ(gates + W h' + b),  n = tanh(gate + r·(W h' + b)),  h = (1−z)·n + z·h'
    """

    @staticmethod
    def forward(gates: Tensor, weight: Tensor, bias: Tensor, h: Tensor) -> tuple[Tensor, ...]:
        # gates (T, G, B, 3H), weight (G, 3H, H), bias (G, 3H), h (G, B, H)
        steps, size = len(gates), h.shape[-1]
        active = gates.clone(memory_format=torch.contiguous_format)
        hidden = h.new_empty(steps, *h.shape)
        inner = h.new_empty(steps, *h.shape)  # W h' + b of gate n
        recurrent, bias = weight.mT, bias.unsqueeze(1)  # (G, H, 3H), (G, 1, 3H)
        for t in range(steps):
            now, own = active[t], torch.baddbmm(bias, h, recurrent)
            inner[t] = own[..., 2 * size :]
            now[..., : 2 * size].add_(own[..., : 2 * size]).sigmoid_()
            r, z, n = now.chunk(3, -1)
            n.addcmul_(r, inner[t]).tanh_()
            h = torch.lerp(n, h, z, out=hidden[t])
        return hidden, inner, active

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, ...]) -> None:
        _, weight, _, h = inputs
        hidden, inner, active = output
        ctx.mark_non_differentiable(inner, active)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(weight, h, hidden, inner, active)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor, ...]:
        weight, h, hidden, inner, active = ctx.saved_tensors
        (above,), size = _zeros_for_none(grads, hidden), h.shape[-1]
        r, z, n = active.chunk(3, -1)
        before = torch.cat([h[None], hidden[:-1]])
        to_n = (1 - z) * (1 - n * n)  # ∂h/∂n before its tanh
        slope = torch.cat(
            [to_n * inner * r * (1 - r), (before - n) * z * (1 - z), to_n * r, to_n], -1
        )  # ∂h/∂(r, z, the recurrent share of n, the input's share of n)
        dh = above[-1]
        for t in reversed(range(len(active))):
            now = slope[t]
            now.unflatten(-1, (4, size)).mul_(dh.unsqueeze(-2))
            kept = dh * z[t] if t == 0 else torch.addcmul(above[t - 1], dh, z[t])
            dh = torch.baddbmm(kept, now[..., : 3 * size], weight)
        own = slope[..., : 3 * size]
        gates = torch.cat([slope[..., : 2 * size], slope[..., 3 * size :]], -1)
        return gates, _weight_gradient(own, h, hidden), own.sum((0, 2)), dh

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *inputs: Tensor) -> Any:
        return _as_groups(GRUScan, info.batch_size, in_dims, inputs, cell=False)


def _zeros_for_none(grads: tuple[Tensor | None, ...], *like: Tensor) -> list[Tensor]:
    """The first gradients, or zeros where nobody has asked for one."""
    pairs = zip(grads, like, strict=False)
    return [torch.zeros_like(x) if grad is None else grad for grad, x in pairs]


def _weight_gradient(gates: Tensor, first: Tensor, hidden: Tensor) -> Tensor:
    """Σ over steps and examples of gate ⊗ the hidden state before it: (G, gates, H)."""
    before = torch.cat([first[None], hidden[:-1]])  # (T, G, B, H)
    left, right = (x.transpose(0, 1).flatten(1, 2) for x in (gates, before))  # (G, T·B, …)
    return left.mT @ right


def _as_groups(
    scan: type[Function],
    clients: int,
    in_dims: tuple[int | None, ...],
    inputs: tuple[Tensor, ...],
    cell: bool,
) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
    """The scan of V clients with G groups each, as one of V·G groups."""

    def place(position: int) -> int:  # of G: gates and results have time in front of it
        return 1 if position == 0 else 0

    stacked = []
    for position, (x, dim) in enumerate(zip(inputs, in_dims, strict=True)):
        at = place(position)
        if dim is None:
            x = x.unsqueeze(at)
            x = x.expand(*x.shape[:at], clients, *x.shape[at + 1 :])
        else:
            x = x.movedim(dim, at)
        stacked.append(x.flatten(at, at + 1))
    stacked_results = scan.apply(*stacked)
    axes = tuple(0 if cell and position == 1 else 1 for position in range(len(stacked_results)))
    results = tuple(
        x.unflatten(at, (clients, -1)) for x, at in zip(stacked_results, axes, strict=True)
    )
    return results, axes
