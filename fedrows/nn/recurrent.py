"""LSTM and GRU as PyTorch's, but liftable over a cohort: same arguments, same state dict.

    layer = fedrows.nn.LSTM(25, 100, num_layers=2, batch_first=True)
    output, (h, c) = layer(x)                                  # (B, T, 100), (2, B, 100) each
    torch.nn.LSTM(25, 100, num_layers=2, batch_first=True).load_state_dict(layer.state_dict())

All input projections of a layer are one product before its time loop (see `recurrent_scans`); on
a CPU a layer of an LSTM is one operation (see `lstm_layer`).
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from math import sqrt

import torch
from torch import Tensor, nn
from torch.autograd import Function

from fedrows.errors import ModelError
from fedrows.nn.lstm_layer import LSTMLayer, implementation
from fedrows.nn.recurrent_scans import GRUScan, LSTMScan

HiddenState = tuple[Tensor, ...]  # of one layer and direction: (B, H) each


class _Loops(threading.local):
    """The time loops that a thread uses."""

    lstm: type[Function] = LSTMScan
    gru: type[Function] = GRUScan
    fastest = True  # whether a layer may be one operation


_loops = _Loops()


@contextmanager
def other_loops(lstm: type[Function], gru: type[Function]) -> Iterator[None]:
    """Layers run by other time loops inside, which take and give what the usual ones do."""
    before = _loops.lstm, _loops.gru, _loops.fastest
    _loops.lstm, _loops.gru, _loops.fastest = lstm, gru, False
    try:
        yield
    finally:
        _loops.lstm, _loops.gru, _loops.fastest = before


class _Recurrent(nn.Module, ABC):
    """Layers and directions of a recurrent network, over any cell."""

    gates: int  # how many numbers a cell computes for each of its outputs
    states: int  # how many tensors a cell hands on

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        proj_size: int = 0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        if proj_size:
            raise ModelError(
                f"{type(self).__name__} has proj_size={proj_size}, which it cannot do: put an "
                "nn.Linear behind it."
            )
        self.input_size, self.hidden_size, self.num_layers = input_size, hidden_size, num_layers
        self.bias, self.batch_first, self.bidirectional = bias, batch_first, bidirectional
        self.dropout = dropout
        self.drop = nn.Dropout(dropout)  # between layers
        wide = self.gates * hidden_size
        for layer in range(num_layers):
            size = hidden_size * (1 + bidirectional) if layer else input_size
            for end in self._ends(layer):
                shapes = {"weight_ih": [wide, size], "weight_hh": [wide, hidden_size]}
                if bias:
                    shapes |= {"bias_ih": [wide], "bias_hh": [wide]}
                for name, shape in shapes.items():
                    empty = torch.empty(shape, device=device, dtype=dtype)
                    self.register_parameter(f"{name}_{end}", nn.Parameter(empty))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draws all numbers from U(−1/√H, 1/√H), as PyTorch does."""
        bound = 1 / sqrt(self.hidden_size)
        for x in self.parameters():
            nn.init.uniform_(x, -bound, bound)

    def extra_repr(self) -> str:
        asked = [f"{self.input_size}, {self.hidden_size}"]
        usual = {"num_layers": 1, "bias": True, "batch_first": False, "bidirectional": False}
        asked += [f"{n}={getattr(self, n)}" for n, x in usual.items() if getattr(self, n) != x]
        return ", ".join(asked)

    def _run(self, x: Tensor, first: HiddenState | None) -> tuple[Tensor, HiddenState]:
        """All layers over x; states come and go as (layers · directions, B, H)."""
        if not isinstance(x, Tensor) or x.dim() != 3 or x.shape[-1] != self.input_size:
            got = tuple(x.shape) if isinstance(x, Tensor) else type(x).__name__
            shape = "(B, T, F)" if self.batch_first else "(T, B, F)"
            raise ModelError(
                f"{type(self).__name__} takes a tensor {shape} with F = {self.input_size}, but "
                f"got {got}."
            )
        x = x.transpose(0, 1) if self.batch_first else x  # (T, B, F)
        if first is None:
            count = self.num_layers * (1 + self.bidirectional)
            first = (x.new_zeros(count, x.shape[1], self.hidden_size),) * self.states
        last: list[HiddenState] = []
        for layer in range(self.num_layers):
            x = self.drop(x) if layer and self.dropout else x
            outputs = []
            for end in self._ends(layer):
                backwards = end.endswith("reverse")
                own = tuple(s[len(last)] for s in first)
                output, state = self._scan(end, x.flip(0) if backwards else x, own)
                outputs.append(output.flip(0) if backwards else output)
                last.append(state)
            x = torch.cat(outputs, -1) if self.bidirectional else outputs[0]
        x = x.transpose(0, 1) if self.batch_first else x
        return x, tuple(torch.stack(parts) for parts in zip(*last, strict=True))

    def _ends(self, layer: int) -> list[str]:
        """What the names of a layer's parameters end in, one for each direction."""
        return [f"l{layer}", f"l{layer}_reverse"][: 1 + self.bidirectional]

    def _project(self, end: str, x: Tensor, bias: Tensor | None) -> Tensor:
        """The input's share of all gates of all steps, as one group: (T, 1, B, gates)."""
        flat, weight = x.reshape(-1, x.shape[-1]), getattr(self, f"weight_ih_{end}")
        gates = flat @ weight.mT if bias is None else torch.addmm(bias, flat, weight.mT)
        return gates.view(x.shape[0], 1, x.shape[1], -1)

    def _biases(self, end: str) -> tuple[Tensor, Tensor] | None:
        if not self.bias:
            return None
        return getattr(self, f"bias_ih_{end}"), getattr(self, f"bias_hh_{end}")

    @abstractmethod
    def _scan(self, end: str, x: Tensor, state: HiddenState) -> tuple[Tensor, HiddenState]:
        """One layer in one direction: x (T, B, F) → (T, B, H), and its last state."""


class LSTM(_Recurrent):
    """torch.nn.LSTM, liftable: see there for arguments, results and formulas."""

    gates, states = 4, 2

    def forward(
        self, x: Tensor, state: tuple[Tensor, Tensor] | None = None
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        output, (h, c) = self._run(x, state)
        return output, (h, c)

    def _scan(self, end: str, x: Tensor, state: HiddenState) -> tuple[Tensor, HiddenState]:
        biases = self._biases(end)
        weight = getattr(self, f"weight_hh_{end}")
        h, c = state
        if _loops.fastest and (fastest := implementation(x)):
            of_x, nothing = getattr(self, f"weight_ih_{end}"), weight.new_zeros(len(weight))
            both = (nothing, nothing) if biases is None else biases
            own = (x, of_x, weight, *both, h, c)
            states, last, *_ = LSTMLayer.apply(fastest, *(part[None] for part in own))
            hidden = states.squeeze(0)  # not [0], whose gradient is filled up with zeros and copied
            return hidden, (hidden[-1], last.squeeze(0))
        gates = self._project(end, x, None if biases is None else biases[0] + biases[1])
        hidden, cell, _, _ = _loops.lstm.apply(gates, weight[None], h[None], c[None])
        hidden = hidden.squeeze(1)
        return hidden, (hidden[-1], cell.squeeze(0))


class GRU(_Recurrent):
    """torch.nn.GRU, liftable: see there for arguments, results and formulas."""

    gates, states = 3, 1

    def forward(self, x: Tensor, state: Tensor | None = None) -> tuple[Tensor, Tensor]:
        output, (h,) = self._run(x, None if state is None else (state,))
        return output, h

    def _scan(self, end: str, x: Tensor, state: HiddenState) -> tuple[Tensor, HiddenState]:
        biases = self._biases(end)
        weight = getattr(self, f"weight_hh_{end}")
        bias = weight.new_zeros(len(weight)) if biases is None else biases[1]
        gates = self._project(end, x, None if biases is None else biases[0])
        hidden, _, _ = _loops.gru.apply(gates, weight[None], bias[None], state[0][None])
        hidden = hidden.squeeze(1)
        return hidden, (hidden[-1],)
