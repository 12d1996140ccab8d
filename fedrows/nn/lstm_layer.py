"""An LSTM layer as one operation on a CPU, by the fastest of its `IMPLEMENTATIONS`.

A step of few examples is too small for a batched product to pay. What counts on a CPU is that one
group's weights stay in the cache for all its steps, and that the time loop is a single operation:
threads that train other clients can go on beside it. As in `recurrent_scans`, for all else, groups
have weights of their own, and clients that are lifted become groups.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from fedrows.nn import lstm_compiled, lstm_onednn
from fedrows.nn.fused import as_groups

IMPLEMENTATIONS = {"compiled": lstm_compiled, "onednn": lstm_onednn}  # the faster one first

_ops = torch.library.Library("fedrows", "DEF")  # so that a trace has one operation for a layer
_ops.define(
    "lstm(str by, Tensor x, Tensor of_x, Tensor of_h, Tensor bias, Tensor more,"
    " Tensor h, Tensor c) -> (Tensor, Tensor, Tensor[])"
)
_ops.define("lstm_backward(str by, Tensor[] known, Tensor[] room) -> Tensor[]")
_ops.impl("lstm", lambda by, *inputs: IMPLEMENTATIONS[by].forward(*inputs), "CPU")
_ops.impl("lstm_backward", lambda by, known, room: IMPLEMENTATIONS[by].backward(known, room), "CPU")

_asked = False  # whether any layer has asked for one


def implementation(x: Tensor) -> str | None:
    """The name of the implementation for a layer over x (…, B, F), or None."""
    global _asked
    _asked = _asked or x.device.type == "cpu"
    return next((name for name, each in IMPLEMENTATIONS.items() if each.usable(x)), None)


def notes() -> list[str]:
    """Notes on why layers have run slower than they could have."""
    why = lstm_compiled.missing() if _asked and lstm_compiled.enabled else None
    return [] if why is None else [f"LSTM layers run slower than they could: {why.rstrip('.')}."]


class LSTMLayer(Function):
    """The hidden states (G, T, B, H) and the last cells (G, B, H) of G layers in one direction.

    x (G, T, B, F), weights (G, 4H, F) and (G, 4H, H), biases (G, 4H) each, h and c (G, B, H)
    """

    @staticmethod
    def forward(by: str, *inputs: Tensor) -> tuple[Tensor, ...]:
        hidden, cells, room = torch.ops.fedrows.lstm(by, *inputs)
        return hidden, cells, *room

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.by, *tensors = inputs
        ctx.mark_non_differentiable(*output[2:])
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*tensors, *output)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        known, room = ctx.saved_tensors[:9], ctx.saved_tensors[9:]
        above = (
            torch.zeros_like(like) if grad is None else grad
            for grad, like in zip(grads, known[7:], strict=False)
        )
        return None, *torch.ops.fedrows.lstm_backward(ctx.by, [*known, *above], list(room))

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], by: str, *inputs: Tensor) -> Any:
        stacked = as_groups(info.batch_size, in_dims[1:], inputs)
        hidden, cells, *room = LSTMLayer.apply(by, *stacked)
        results = (x.unflatten(0, (info.batch_size, -1)) for x in (hidden, cells))
        return (*results, *room), (0, 0, *[None] * len(room))
