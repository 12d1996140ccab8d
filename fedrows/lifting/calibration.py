"""Layers measure moments over a fixed sample, so that evaluation does not depend on batches."""

from __future__ import annotations

import torch
from torch import nn

from fedrows.data.examples import Examples
from fedrows.nn import step_context

TOGETHER = 2_000  # examples whose moments are taken together


class CalibrationPass(nn.Module):
    """A pass over examples in which layers measure the moments that evaluation uses.

    A module, so that `functional_call` can put copies of the buffers in the layers' reach.
    """

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module
        self.layers = {
            name: layer
            for name, layer in module.named_modules()
            if isinstance(layer, step_context.MeasuresMoments)
        }

    def buffers_of_layers(self) -> list[str]:
        """The names, in the module, of what the layers measure."""
        return [
            f"{path}.{name}" if path else name
            for path, layer in self.layers.items()
            for name, _ in self.module.get_submodule(path).named_buffers()
        ]

    def forward(self, examples: Examples) -> None:
        for layer in self.layers.values():
            layer.begin_measuring()
        everything = torch.arange(len(examples), device=examples.label.device)
        for some in everything.split(TOGETHER):
            weight = torch.ones(len(some), device=some.device, dtype=self._dtype())
            with step_context.step(weight, measuring=True):
                self.module(**examples.fields(some))
        for layer in self.layers.values():
            layer.end_measuring()

    def _dtype(self) -> torch.dtype:
        return next(x.dtype for x in self.module.parameters() if x.is_floating_point())
