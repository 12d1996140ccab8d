"""Logistic regression's gradient over one field, as one kernel: `logistic.cu`."""

from __future__ import annotations

import torch
from torch import Tensor

from fedrows.nn.kernels import launch


def gradient(
    rows: Tensor, bias: Tensor, ids: Tensor, label: Tensor, weight: Tensor | None
) -> tuple[Tensor, Tensor]:
    """The gradients of rows (R, 1) and of bias (K,)."""
    clients, batch = label.shape
    d_rows, d_bias = torch.zeros_like(rows), torch.empty_like(bias)
    own = [x.contiguous() for x in (ids, label, label if weight is None else weight)]
    length = ids.shape[2] if ids.dim() == 3 else 1
    threads = 32 * min(batch, 8)
    sizes = [batch, length, int(weight is not None)]
    launch("logistic_gradient", {}, [clients], threads, [rows, bias, *own, d_rows, d_bias, *sizes])
    return d_rows, d_bias
