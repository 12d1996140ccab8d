"""The time loops of LSTM and GRU for one client, which a graph has as one operation each.

They compute what `fedrows.nn.recurrent_scans` computes. A loop that is recorded step by step would
be made for lists of one length. ONNX has these as Scan: see `onnx_loops`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from fedrows.nn import attention_compiled, recurrent

_ops = torch.library.Library("fedrows_device", "DEF")
_ops.define(
    "lstm(Tensor gates, Tensor weight, Tensor h, Tensor c) -> (Tensor, Tensor, Tensor, Tensor)"
)
_ops.define(
    "lstm_backward(Tensor slope, Tensor to_cell, Tensor f, Tensor above, Tensor weight, Tensor dc)"
    " -> (Tensor, Tensor, Tensor)"
)
_ops.define(
    "gru(Tensor gates, Tensor weight, Tensor bias, Tensor h) -> (Tensor, Tensor, Tensor, Tensor)"
)
_ops.define("gru_backward(Tensor slope, Tensor z, Tensor above, Tensor weight) -> (Tensor, Tensor)")


def _lstm(gates: Tensor, weight: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, ...]:
    """The states, the last cell, all cells and the gates' values; gates (T, B, 4H)."""
    hidden, cells, active = [], [], []
    for now in gates:
        i, f, g, o = (now + h @ weight.mT).chunk(4, -1)
        i, f, g, o = i.sigmoid(), f.sigmoid(), g.tanh(), o.sigmoid()
        c = f * c + i * g
        h = o * c.tanh()
        hidden.append(h)
        cells.append(c)
        active.append(torch.cat([i, f, g, o], -1))
    return torch.stack(hidden), c.clone(), torch.stack(cells), torch.stack(active)


def _lstm_backward(
    slope: Tensor, to_cell: Tensor, f: Tensor, above: Tensor, weight: Tensor, dc: Tensor
) -> tuple[Tensor, ...]:
    """The gates' gradient (T, B, 4H), and that of the first state and cell."""
    slopes, carried = [], torch.zeros_like(dc)
    for t in reversed(range(len(slope))):
        dh = above[t] + carried
        dc = dc + dh * to_cell[t]
        now = slope[t] * torch.cat([dc, dc, dc, dh], -1)
        dc = dc * f[t]
        carried = now @ weight
        slopes.append(now)
    return torch.stack(slopes[::-1]), carried, dc


def _gru(gates: Tensor, weight: Tensor, bias: Tensor, h: Tensor) -> tuple[Tensor, ...]:
    """The states, the last one, W h + b of gate n, and the gates' values; gates (T, B, 3H)."""
    hidden, inner, active = [], [], []
    for now in gates:
        r, z, n = now.chunk(3, -1)
        own_r, own_z, own_n = (h @ weight.mT + bias).chunk(3, -1)
        r, z = (r + own_r).sigmoid(), (z + own_z).sigmoid()
        n = (n + r * own_n).tanh()
        h = n + z * (h - n)
        hidden.append(h)
        inner.append(own_n)
        active.append(torch.cat([r, z, n], -1))
    return torch.stack(hidden), h.clone(), torch.stack(inner), torch.stack(active)


def _gru_backward(
    slope: Tensor, z: Tensor, above: Tensor, weight: Tensor
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """∂h/∂(r, z, recurrent n, n) times what comes from above, and the first state's gradient."""
    slopes, carried = [], torch.zeros_like(above[0])
    for t in reversed(range(len(slope))):
        dh = above[t] + carried
        now = slope[t] * torch.cat([dh, dh, dh, dh], -1)
        carried = dh * z[t] + now[..., : 3 * dh.shape[-1]] @ weight
        slopes.append(now)
    return torch.stack(slopes[::-1]), carried


for _name, _loop in {
    "lstm": _lstm,
    "lstm_backward": _lstm_backward,
    "gru": _gru,
    "gru_backward": _gru_backward,
}.items():
    _ops.impl(_name, _loop, "CPU")


def _like_lstm(gates: Tensor, weight: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, ...]:
    all_steps = gates.new_empty(gates.shape[0], *h.shape)
    return all_steps, torch.empty_like(c), torch.empty_like(all_steps), torch.empty_like(gates)


def _like_gru(gates: Tensor, weight: Tensor, bias: Tensor, h: Tensor) -> tuple[Tensor, ...]:
    all_steps = gates.new_empty(gates.shape[0], *h.shape)
    return all_steps, torch.empty_like(h), torch.empty_like(all_steps), torch.empty_like(gates)


torch.library.register_fake("fedrows_device::lstm", _like_lstm)
torch.library.register_fake(
    "fedrows_device::lstm_backward",
    lambda slope, to_cell, f, above, weight, dc: (
        torch.empty_like(slope),
        torch.empty_like(dc),
        torch.empty_like(dc),
    ),
)
torch.library.register_fake("fedrows_device::gru", _like_gru)
torch.library.register_fake(
    "fedrows_device::gru_backward",
    lambda slope, z, above, weight: (torch.empty_like(slope), torch.empty_like(above[0])),
)


class LSTMLoop(Function):
    """As `LSTMScan`, for one group."""

    @staticmethod
    def forward(ctx: Any, gates: Tensor, weight: Tensor, h: Tensor, c: Tensor) -> Any:
        gates, weight, h, c = gates.squeeze(1), weight.squeeze(0), h.squeeze(0), c.squeeze(0)
        hidden, cell, cells, active = torch.ops.fedrows_device.lstm(gates, weight, h, c)
        ctx.save_for_backward(weight, h, c, hidden, cells, active)
        ctx.set_materialize_grads(True)
        return hidden.unsqueeze(1), cell.unsqueeze(0), None, None

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor, ...]:
        weight, h, c, hidden, cells, active = ctx.saved_tensors
        above, dc = grads[0].squeeze(1), grads[1].squeeze(0)
        i, f, g, o = active.chunk(4, -1)
        before = torch.cat([c[None], cells[:-1]])
        tanh = cells.tanh()
        slope = torch.cat(
            [g * i * (1 - i), before * f * (1 - f), i * (1 - g * g), tanh * o * (1 - o)], -1
        )
        to_cell = o * (1 - tanh * tanh)
        loop = torch.ops.fedrows_device.lstm_backward
        gates, dh, dc = loop(slope, to_cell, f.contiguous(), above, weight, dc)
        of_weight = _weight_gradient(gates, h, hidden)
        return gates.unsqueeze(1), of_weight[None], dh.unsqueeze(0), dc.unsqueeze(0)


class GRULoop(Function):
    """As `GRUScan`, for one group."""

    @staticmethod
    def forward(ctx: Any, gates: Tensor, weight: Tensor, bias: Tensor, h: Tensor) -> Any:
        gates, weight, bias, h = gates.squeeze(1), weight.squeeze(0), bias.squeeze(0), h.squeeze(0)
        hidden, _, inner, active = torch.ops.fedrows_device.gru(gates, weight, bias, h)
        ctx.save_for_backward(weight, h, hidden, inner, active)
        return hidden.unsqueeze(1), None, None

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor, ...]:
        weight, h, hidden, inner, active = ctx.saved_tensors
        r, z, n = active.chunk(3, -1)
        before = torch.cat([h[None], hidden[:-1]])
        to_n = (1 - z) * (1 - n * n)
        slope = torch.cat(
            [to_n * inner * r * (1 - r), (before - n) * z * (1 - z), to_n * r, to_n], -1
        )
        loop = torch.ops.fedrows_device.gru_backward
        slopes, dh = loop(slope, z.contiguous(), grads[0].squeeze(1), weight)
        size = h.shape[-1]
        own = slopes[..., : 3 * size]
        gates = torch.cat([slopes[..., : 2 * size], slopes[..., 3 * size :]], -1)
        of_weight = _weight_gradient(own, h, hidden)
        return gates.unsqueeze(1), of_weight[None], own.sum((0, 1))[None], dh.unsqueeze(0)


def _weight_gradient(gates: Tensor, first: Tensor, hidden: Tensor) -> Tensor:
    """Σ over steps and examples of gate ⊗ the hidden state before it: (gates, H)."""
    before = torch.cat([first[None], hidden[:-1]])  # (T, B, H)
    return gates.flatten(0, 1).mT @ before.flatten(0, 1)


@contextmanager
def recorded_as_one() -> Iterator[None]:
    """LSTM and GRU run by these loops inside, and DIN's attention by plain operations."""
    with recurrent.other_loops(LSTMLoop, GRULoop), attention_compiled.plain_operations():
        yield
