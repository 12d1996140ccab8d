"""Normalisation by the moments of a batch, in which examples of weight 0 do not count.

training     by the moments of the client's own batch; nothing is kept from step to step, so a
             step depends on nothing but its numbers and its examples
measuring    the same, a slice of a fixed sample at a time, adding up the whole sample's moments
evaluation   by those: an example's score does not depend on the others it is scored with
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from fedrows.nn import fused, step_context
from fedrows.nn.kernels import dice


class BatchNorm(nn.Module):
    """weight · (x − mean) / √(var + ε) + bias for x (B, C) or (B, …, C), moments over all but C.

    As nn.BatchNorm1d without running averages: `running_mean` and `running_var` are those of the
    sample that was measured last, (0, 1) before; state dicts go both ways. `mask` (B, …) leaves
    positions out, such as the padding of a list. Outside of a client's step, all examples weigh 1
    and `train()` or `eval()` decides.
    """

    running_mean: Tensor
    running_var: Tensor

    def __init__(self, num_features: int, eps: float = 1e-5, affine: bool = True) -> None:
        super().__init__()
        self.num_features, self.eps, self.affine = num_features, eps, affine
        self.weight = nn.Parameter(torch.ones(num_features)) if affine else None
        self.bias = nn.Parameter(torch.zeros(num_features)) if affine else None
        self.register_buffer("running_mean", torch.zeros(num_features))
        self.register_buffer("running_var", torch.ones(num_features))
        self._moments: tuple[Tensor, Tensor, Tensor] | None = None  # weight, mean, Σ of squares

    def extra_repr(self) -> str:
        return f"{self.num_features}, eps={self.eps}, affine={self.affine}"

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        step = step_context.current()
        if step is None and not self.training:
            mean, var = self.running_mean, self.running_var
        else:
            example = x.new_ones(x.shape[0]) if step is None else step.weight.to(x.dtype)
            weight = example.view(-1, *[1] * (x.dim() - 2)).expand(x.shape[:-1])  # (B, …)
            weight = (weight if mask is None else weight * mask).reshape(-1)
            mean, var = self._take(x.reshape(-1, x.shape[-1]), weight)
            if step is not None and step.measuring:
                self._add(weight.double().sum(), mean.double(), var.double())
        scale = torch.rsqrt(var + self.eps)
        result = (x - mean) * (scale if self.weight is None else scale * self.weight)
        return result if self.bias is None else result + self.bias

    def begin_measuring(self) -> None:
        """Forgets what was measured; every pass from here on adds to the moments."""
        self._moments = None

    def end_measuring(self) -> None:
        """Stores the moments of all that was measured, for evaluation."""
        if self._moments is None:
            return  # the layer was not used
        weight, mean, squares = self._moments
        self._moments = None
        with torch.no_grad():
            self.running_mean.copy_(mean)
            self.running_var.copy_(squares / torch.where(weight > 0, weight, 1))

    @staticmethod
    def _take(x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and variance of x (n, C) under weights (n,): (C,) each."""
        whole = weight.sum()
        share = weight / torch.where(whole > 0, whole, 1)
        mean = share @ x
        return mean, share @ (x - mean).square()

    def _add(self, weight: Tensor, mean: Tensor, var: Tensor) -> None:
        """Adds a slice's moments to those so far (Chan, Golub, LeVeque 1979), in float64."""
        if self._moments is None:
            self._moments = weight, mean, weight * var
            return
        before, old, squares = self._moments
        whole = before + weight
        part = weight / torch.where(whole > 0, whole, 1)
        gap = mean - old
        self._moments = (
            whole,
            old + part * gap,
            squares + weight * var + before * part * gap.square(),
        )

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *more: Any) -> None:
        state_dict.pop(f"{prefix}num_batches_tracked", None)  # of PyTorch's own
        super()._load_from_state_dict(state_dict, prefix, *more)


class Dice(nn.Module):
    """p·x + (1−p)·α·x with p = σ of the normalised x, α per feature: DIN's activation.

    Zhou et al. 2018 (KDD), section 5.3; α starts from 0. Masks and weights as in BatchNorm. Their
    ε of 1e−8 is for batches of thousands: a client's few examples, drawn with replacement, may all
    be one and the same, and 1/√ε then turns rounding into noise.
    """

    def __init__(self, num_features: int, eps: float = 1e-3) -> None:
        super().__init__()
        self.norm = BatchNorm(num_features, eps, affine=False)
        self.alpha = nn.Parameter(torch.zeros(num_features))

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        step = step_context.current()
        in_step = step is not None and not step.measuring and mask is None and x.dim() == 2
        if in_step and fused.usable(x) and len(x) <= dice.LARGEST:
            assert step is not None
            own = (x, step.weight.to(x.dtype), self.alpha)
            return fused.DiceStep.apply(*(part[None] for part in own), self.norm.eps).squeeze(0)
        p = torch.sigmoid(self.norm(x, mask))
        return x * (p + (1 - p) * self.alpha)
