"""The time loop of an LSTM as one kernel, forward and backward: `lstm.cu`.

Results lie group after group, (G, T, B, …), and are handed out as (T, G, B, …) views, so that the
weight's gradient needs no copy.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fedrows.nn.kernels import launch

LARGEST = 128  # units; up to 100 or so, a thread's weights fit into its registers
_EXAMPLES = 8  # at most, of a block


def forward(gates: Tensor, weight: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, ...]:
    """What `LSTMScan.forward` gives."""
    steps, groups, batch, _ = gates.shape
    size = h.shape[-1]
    gates = gates if gates.stride()[2:] == (4 * size, 1) else gates.contiguous()
    hidden = h.new_empty(groups, steps, batch, size)
    cells, active = torch.empty_like(hidden), h.new_empty(groups, steps, batch, 4 * size)
    given: list[Tensor | int] = [
        gates,
        *gates.stride()[:2],
        weight.contiguous(),
        h.contiguous(),
        c.contiguous(),
    ]
    _launch("lstm_forward", h, [*given, hidden, cells, active, steps, batch])
    hidden, cells, active = (x.transpose(0, 1) for x in (hidden, cells, active))
    return hidden, cells[-1].clone(), cells, active


def backward(
    weight: Tensor, c: Tensor, cells: Tensor, active: Tensor, above: Tensor, dc: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of the gates, of the first hidden state and of the first cell."""
    steps, groups, batch, size = cells.shape
    above = above if above.stride()[2:] == (size, 1) else above.contiguous()
    slope = c.new_empty(groups, steps, batch, 4 * size)
    first, cell = (c.new_empty(c.shape) for _ in range(2))
    active, cells = (x.transpose(0, 1).contiguous() for x in (active, cells))  # no copies
    given: list[Tensor | int] = [
        active,
        weight.contiguous(),
        c.contiguous(),
        cells,
        above,
        *above.stride()[:2],
    ]
    _launch("lstm_backward", c, [*given, dc.contiguous(), slope, first, cell, steps, batch])
    return slope.transpose(0, 1), first, cell


def _launch(name: str, like: Tensor, arguments: list[Tensor | int]) -> None:
    """Runs a kernel for groups of examples (G, B, H) on as many blocks as the GPU has room for."""
    groups, batch, size = like.shape
    processors = torch.cuda.get_device_properties(like.device).multi_processor_count
    blocks = max(1, min(processors // groups, batch), -(-batch // _EXAMPLES))
    examples = -(-batch // blocks)
    threads = -(-4 * size // 32) * 32
    sizes = {"H": size, "BT": examples, "THREADS": threads}
    launch(name, sizes, [groups, -(-batch // examples)], threads, arguments)
