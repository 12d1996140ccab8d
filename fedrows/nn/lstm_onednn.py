"""LSTM layers on a CPU by oneDNN, whose kernels PyTorch's own nn.LSTM uses: one group at a time.

It is used for float32, where there is no kernel of our own (see `lstm_compiled`) or many examples.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor

enabled = True  # False: other ways everywhere

_LSTM = 2  # PyTorch's number for this kind of layer


def usable(x: Tensor) -> bool:
    """Whether a layer over x may use oneDNN."""
    if not (enabled and x.device.type == "cpu" and x.dtype == torch.float32 and x.numel()):
        return False
    return bool(torch.backends.mkldnn.enabled) and _works()


def forward(*inputs: Tensor) -> tuple[Tensor, Tensor, list[Tensor]]:
    """All groups forward; oneDNN's notes are large, so they are not stacked."""
    x, *weights, h, c = inputs
    own = _by_group([x.contiguous(), *weights, h.unsqueeze(1), c.unsqueeze(1)])
    layer = torch.ops.aten.mkldnn_rnn_layer.default
    how: tuple[Any, ...] = (False, [], _LSTM, h.shape[-1], 1, True, False, False, True)
    with torch.enable_grad():  # without it oneDNN takes no notes for the way back
        results = [layer(*tensors, *how) for tensors in own]
    hidden, _, cells, room = zip(*results, strict=True)
    return torch.stack(hidden), torch.cat(cells), list(room)


def backward(known: Sequence[Tensor], room: Sequence[Tensor]) -> list[Tensor]:
    """All groups backward: the gradients of their inputs."""
    x, *weights, h, c, hidden, cells, above, dc = known
    nothing = torch.zeros_like(h[:1])  # of the last hidden state, which is in `above` already
    first, last, end = h.unsqueeze(1), hidden[:, -1:], cells.unsqueeze(1)
    own = [x.contiguous(), *weights, first, c.unsqueeze(1), hidden, last, end, above.contiguous()]
    ways = zip(_by_group(own), dc.contiguous().unsqueeze(1).unbind(), room, strict=True)
    layer = torch.ops.aten.mkldnn_rnn_layer_backward.default
    how: tuple[Any, ...] = (False, _LSTM, h.shape[-1], 1, True, True, False, [], False)
    results = [layer(*tensors, nothing, cell, *how, notes) for tensors, cell, notes in ways]
    *changes, dh, d_cell = zip(*results, strict=True)
    return [*(torch.stack(parts) for parts in changes), torch.cat(dh), torch.cat(d_cell)]


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
        hidden, cells, room = forward(*own)
        backward([*own, hidden, cells, hidden, cells], room)
    except (RuntimeError, TypeError, AttributeError):
        return False
    return True
