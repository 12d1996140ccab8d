"""LSTM layers on a CPU by oneDNN, whose kernels PyTorch's own nn.LSTM uses: one group at a time.

A step of few examples is too small for a batched product to pay. What counts on a CPU is that one
group's weights stay in the cache for all its steps, and that the time loop is a single operation:
threads that train other clients can go on beside it. As in `scans`, groups have weights of their
own, and clients that are lifted become groups. It is used for float32; `scans` serves all else.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

enabled = True  # False: `scans` everywhere

_LSTM = 2  # PyTorch's number for this kind of layer
_ops = torch.library.Library("fedrows", "DEF")  # so that a trace has one operation for a layer
_ops.define(
    "lstm(Tensor x, Tensor of_x, Tensor of_h, Tensor bias, Tensor more, Tensor h, Tensor c)"
    " -> (Tensor, Tensor, Tensor[])"
)
_ops.define("lstm_backward(Tensor[] known, Tensor[] room) -> Tensor[]")


def usable(x: Tensor) -> bool:
    """Whether a layer over x may use oneDNN."""
    if not (enabled and x.device.type == "cpu" and x.dtype == torch.float32 and x.numel()):
        return False
    return bool(torch.backends.mkldnn.enabled) and _works()


class LSTMLayer(Function):
    """The hidden states (G, T, B, H) and the last cells (G, B, H) of G layers in one direction.

    x (G, T, B, F), weights (G, 4H, F) and (G, 4H, H), biases (G, 4H) each, h and c (G, B, H)
    """

    @staticmethod
    def forward(*inputs: Tensor) -> tuple[Tensor, ...]:
        hidden, cells, room = torch.ops.fedrows.lstm(*inputs)
        return hidden, cells, *room

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, ...]) -> None:
        ctx.mark_non_differentiable(*output[2:])
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*inputs, *output)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor, ...]:
        known, room = ctx.saved_tensors[:9], ctx.saved_tensors[9:]
        above = (
            torch.zeros_like(like) if grad is None else grad
            for grad, like in zip(grads, known[7:], strict=False)
        )
        return tuple(torch.ops.fedrows.lstm_backward([*known, *above], list(room)))

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *inputs: Tensor) -> Any:
        clients, stacked = info.batch_size, []
        for x, dim in zip(inputs, in_dims, strict=True):
            whole = x.expand(clients, *x.shape) if dim is None else x.movedim(dim, 0)
            stacked.append(whole.flatten(0, 1))
        hidden, cells, *room = LSTMLayer.apply(*stacked)
        found = (x.unflatten(0, (clients, -1)) for x in (hidden, cells))
        return (*found, *room), (0, 0, *[None] * len(room))


def _all(*inputs: Tensor) -> tuple[Tensor, Tensor, list[Tensor]]:
    """All groups forward; oneDNN's notes are large, so they are not stacked."""
    *given, h, c = inputs
    own = _by_group([given[0].contiguous(), *given[1:], h.unsqueeze(1), c.unsqueeze(1)])
    one = torch.ops.aten.mkldnn_rnn_layer.default
    how: tuple[Any, ...] = (False, [], _LSTM, h.shape[-1], 1, True, False, False, True)
    with torch.enable_grad():  # without it oneDNN takes no notes for the way back
        found = [one(*its, *how) for its in own]
    hidden, _, cells, room = zip(*found, strict=True)
    return torch.stack(hidden), torch.cat(cells), list(room)


def _all_back(known: list[Tensor], room: list[Tensor]) -> list[Tensor]:
    """All groups backward: the gradients of their inputs."""
    x, *weights, h, c, hidden, cells, above, dc = known
    nothing = torch.zeros_like(h[:1])  # of the last hidden state, which is in `above` already
    first, last, end = h.unsqueeze(1), hidden[:, -1:], cells.unsqueeze(1)
    own = [x.contiguous(), *weights, first, c.unsqueeze(1), hidden, last, end, above.contiguous()]
    ways = zip(_by_group(own), dc.contiguous().unsqueeze(1).unbind(), room, strict=True)
    one = torch.ops.aten.mkldnn_rnn_layer_backward.default
    how: tuple[Any, ...] = (False, _LSTM, h.shape[-1], 1, True, True, False, [], False)
    found = [one(*its, nothing, its_dc, *how, notes) for its, its_dc, notes in ways]
    *changes, dh, d_cell = zip(*found, strict=True)
    return [*(torch.stack(parts) for parts in changes), torch.cat(dh), torch.cat(d_cell)]


_ops.impl("lstm", _all, "CPU")
_ops.impl("lstm_backward", _all_back, "CPU")


def _by_group(tensors: Sequence[Tensor]) -> zip[tuple[Tensor, ...]]:
    return zip(*(x.unbind() for x in tensors), strict=True)


@cache
def _works() -> bool:
    """Whether this PyTorch and this processor have the two operations."""
    if not torch.backends.mkldnn.is_available():
        return False
    shapes = ((1, 1, 1, 1), (1, 4, 1), (1, 4, 1), (1, 4), (1, 4), (1, 1, 1), (1, 1, 1))
    own = [torch.zeros(shape) for shape in shapes]
    try:
        with torch.enable_grad():
            own[0].requires_grad_()
            hidden, *_ = LSTMLayer.apply(*own)
            torch.autograd.grad(hidden.sum(), own[0])
    except (RuntimeError, TypeError, AttributeError):
        return False
    return True
