"""Operations that a device's step computes another way, for ONNX lacks their gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from fedrows.lifting.replaced_operations import ReplacedOperations


class DeviceOperations(ReplacedOperations):
    """The replacements of training but for embeddings, and a convolution as a matrix product."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: Sequence[Any] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if func in (torch.conv1d, F.conv1d):
            result = _conv1d(*args, **(kwargs or {}))
            if result is not NotImplemented:
                return result
        if func is F.embedding:
            return func(*args, **(kwargs or {}))
        return super().__torch_function__(func, types, args, kwargs)


def _conv1d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Tensor:
    """`F.conv1d` of x (B, C, L) by windows (B, C, k, places): one product."""
    step, gap = (x if isinstance(x, int) else x[0] for x in (stride, dilation))
    size = weight.shape[-1]
    if groups != 1 or input.dim() != 3:
        return NotImplemented
    if padding == "same":
        beside = gap * (size - 1) // 2, gap * (size - 1) - gap * (size - 1) // 2
    else:
        each = 0 if padding == "valid" else padding if isinstance(padding, int) else padding[0]
        beside = each, each
    x = F.pad(input, beside) if any(beside) else input
    places = (x.shape[-1] - gap * (size - 1) - 1) // step + 1
    windows = torch.stack(
        [x[..., i * gap : i * gap + step * (places - 1) + 1 : step] for i in range(size)], 2
    )
    result = weight.flatten(1) @ windows.flatten(1, 2)  # (O, C·k) @ (B, C·k, places)
    return result if bias is None else result + bias.unsqueeze(-1)
