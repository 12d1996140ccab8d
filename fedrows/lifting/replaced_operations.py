"""Replacements for PyTorch's operations that do not work, or are slow, while clients train.

    dropout, rand_like, …           torch's global generator → draws by counters
    embedding_bag                   no batching rule → embedding, then a masked sum, mean or maximum
    scaled_dot_product_attention    both → the product written out
    linear, embedding               slow gradients → those of `fused`

A draw is a function of (the client's key in this step, the call's number in the step, position), so
a client has the same masks alone on a device as in a cohort of thousands. A position is one number
per axis, so that longer padding moves nobody's mask.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from math import sqrt
from types import FunctionType
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from fedrows.errors import ModelError
from fedrows.nn import fused, step_context
from fedrows.seeds import bits, key, mix, normal, uniform


class ReplacedOperations(TorchFunctionMode):
    """Replaces the operations while it is entered; `used` says whether one had to be replaced."""

    def __init__(self) -> None:
        super().__init__()
        self.used = False

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: Sequence[Any] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if func in _BODIES:
            with self:  # PyTorch has left the mode while this method runs
                return _BODIES[func](*args, **kwargs)
        if func in _REPLACEMENTS:
            result = _REPLACEMENTS[func](*args, **kwargs)
            if result is not NotImplemented:
                self.used = self.used or func not in _FASTER
                return result
        return func(*args, **kwargs)


def draw(shape: Sequence[int], device: torch.device) -> Tensor:
    """64 random bits of the client's own for every position of the step's next call."""
    step = step_context.current()
    if step is None or step.key is None:
        raise ModelError("The model draws randomness, but the batch has no key for it.")
    stream = mix(step.key + (key(step.calls) - 2**63))
    step.calls += 1
    position = torch.zeros((), dtype=torch.int64, device=device)
    for axis, size in enumerate(shape):
        along = torch.arange(size, device=device) * (key(axis, 0) - 2**63)
        position = position + along.view(-1, *[1] * (len(shape) - axis - 1))
    return bits(stream, position)


def embedding(
    input: Tensor, weight: Tensor, padding_idx: int | None = None, *options: Any, **more: Any
) -> Tensor:
    """`F.embedding` of rows that all clients have in one block."""
    on_cpu = weight.device.type == "cpu"
    batched = torch._C._functorch.is_batchedtensor(weight)
    if batched or not (on_cpu or fused.adds_freely(weight)):
        return NotImplemented
    rows = fused.RowsStep.apply(weight, input.reshape(-1), padding_idx)
    return rows.view(*input.shape, -1)


def linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`F.linear` of clients that each have weights of their own."""
    batched = torch._C._functorch.is_batchedtensor(weight)
    if bias is None or not batched or (weight.is_cuda and not fused.usable(weight)):
        return NotImplemented
    flat = input.reshape(1, -1, input.shape[-1])
    result = fused.LinearStep.apply(flat, weight.unsqueeze(0), bias.unsqueeze(0))
    return result.view(*input.shape[:-1], -1)


def embedding_bag(
    input: Tensor,
    weight: Tensor,
    offsets: Tensor | None = None,
    max_norm: float | None = None,
    norm_type: float = 2,
    scale_grad_by_freq: bool = False,
    mode: str = "mean",
    sparse: bool = False,
    per_sample_weights: Tensor | None = None,
    include_last_offset: bool = False,
    padding_idx: int | None = None,
) -> Tensor:
    """`F.embedding_bag` of bags of one length (B, L), in which padding does not count."""
    if offsets is not None or input.dim() != 2:
        raise ModelError(
            "Bags given by offsets differ in shape from client to client: give an EmbeddingBag "
            "its ids as (B, L), filled up with padding_idx=0."
        )
    if max_norm is not None or scale_grad_by_freq or sparse:
        raise ModelError(
            "A cohort cannot honour max_norm, scale_grad_by_freq or sparse of an embedding_bag: "
            "leave them out."
        )
    if per_sample_weights is not None and mode != "sum":
        raise ModelError(f"per_sample_weights go with mode 'sum', not {mode!r}.")
    rows = F.embedding(input, weight, padding_idx)  # (B, L, width)
    counts = None if padding_idx is None else (input != padding_idx)[..., None]  # (B, L, 1)
    if mode == "max":
        if counts is None:
            return rows.max(1).values
        highest = torch.where(counts, rows, -torch.inf).max(1).values
        return torch.where(counts.any(1), highest, 0)
    if per_sample_weights is not None:
        rows = rows * per_sample_weights[..., None]
    if counts is None:
        return rows.sum(1) if mode == "sum" else rows.mean(1)
    total = torch.where(counts, rows, 0).sum(1)
    return total if mode == "sum" else total / counts.sum(1).clamp(min=1)


def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """softmax(query · keyᵀ · scale + mask) · value; a query that may look nowhere gives zeros."""
    if enable_gqa:
        key = key.repeat_interleave(query.shape[-3] // key.shape[-3], -3)
        value = value.repeat_interleave(query.shape[-3] // value.shape[-3], -3)
    scores = query @ key.transpose(-2, -1) * (scale or 1 / sqrt(query.shape[-1]))  # (…, L, S)
    if is_causal:
        seen = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
        scores = torch.where(seen, scores, -torch.inf)
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        scores = torch.where(attn_mask, scores, -torch.inf)
    elif attn_mask is not None:
        scores = scores + attn_mask
    if attn_mask is not None:
        nowhere = (scores == -torch.inf).all(-1, keepdim=True)
        scores = torch.where(nowhere, 0, scores).softmax(-1)  # their softmax would be NaN
        scores = torch.where(nowhere, 0, scores)
    else:
        scores = scores.softmax(-1)
    if dropout_p > 0:
        scores = scores * _keep_mask(scores, scores.dim(), dropout_p) / (1 - dropout_p)
    return scores @ value


def _keep_mask(input: Tensor, axes: int, p: float) -> Tensor:
    """1 with probability 1 − p, 0 else, for every position along the first axes."""
    shape = [size if axis < axes else 1 for axis, size in enumerate(input.shape)]
    random = draw(shape, input.device)
    if p == 1:
        return torch.zeros_like(random, dtype=input.dtype)
    return (random >= int(p * 2.0**64) - 2**63).to(input.dtype)


def _dropout(axes: int | None = None, alpha: float | None = None) -> Callable[..., Tensor]:
    """Dropout of single numbers, or of everything at the same position in the first axes.

    With `alpha` it leaves mean and variance of what comes out of a SELU as they are.
    """

    def replacement(input: Tensor, p: float, train: bool) -> Tensor:
        if not train or p == 0:
            return NotImplemented
        mask = _keep_mask(input, axes or input.dim(), p)
        if p == 1:
            return input * mask
        if alpha is None:
            return input * (mask / (1 - p))
        spread = 1 / sqrt((alpha * alpha * p + 1) * (1 - p))
        return (input * mask + (mask - 1 + p) * alpha) * spread

    return replacement


def _inplace(replacement: Callable[[Tensor, float, bool], Tensor]) -> Callable[..., Tensor]:
    def changed(input: Tensor, p: float, train: bool) -> Tensor:
        result = replacement(input, p, train)
        return result if result is NotImplemented else input.copy_(result)

    return changed


def _random(make: Callable[[Tensor], Tensor], like: bool) -> Callable[..., Tensor]:
    """`rand` and its kin: numbers made of random bits, of a given shape or like a tensor."""

    def replacement(*size: Any, dtype: torch.dtype | None = None, **how: Any) -> Tensor:
        first = size[0] if size else how["input" if like else "size"]
        if like:
            return make(draw(first.shape, first.device)).to(dtype or first.dtype)
        shape = first if isinstance(first, Sequence) else size
        device = torch.device(how.get("device") or torch.get_default_device())
        return make(draw(shape, device)).to(dtype or torch.get_default_dtype())

    return replacement


_FASTER = (F.embedding, F.linear)  # which would do, if slower
_SELU = 1.7580993408473766  # scale · α of a SELU

_REPLACEMENTS: dict[Callable[..., Any], Callable[..., Any]] = {
    F.embedding: embedding,
    F.linear: linear,
    F.embedding_bag: embedding_bag,
    F.scaled_dot_product_attention: scaled_dot_product_attention,
    torch.dropout: _dropout(),
    torch.dropout_: _inplace(_dropout()),
    torch.feature_dropout: _dropout(axes=2),
    torch.feature_dropout_: _inplace(_dropout(axes=2)),
    torch.alpha_dropout: _dropout(alpha=_SELU),
    torch.alpha_dropout_: _inplace(_dropout(alpha=_SELU)),
    torch.feature_alpha_dropout: _dropout(axes=2, alpha=_SELU),
    torch.feature_alpha_dropout_: _inplace(_dropout(axes=2, alpha=_SELU)),
    torch.rand: _random(uniform, like=False),
    torch.randn: _random(normal, like=False),
    torch.rand_like: _random(uniform, like=True),
    torch.randn_like: _random(normal, like=True),
}


def _body(function: Any) -> FunctionType:
    """A copy of a Python function of `torch.nn.functional` that does not dispatch to a mode.

    Such a function asks `has_torch_function` first, hands itself to the mode as a whole if there is
    one, and calls its operations with the mode switched off. The mode would then never see the
    dropout inside `multi_head_attention_forward`. In the copy the question is always answered "no",
    so its body can run with the mode on. PyTorch has no public way to say that.
    """
    names = ("has_torch_function", "has_torch_function_unary", "has_torch_function_variadic")
    around = function.__globals__ | dict.fromkeys(names, lambda *tensors: False)
    body = FunctionType(function.__code__, around, function.__name__, function.__defaults__)
    body.__kwdefaults__ = function.__kwdefaults__
    return body


_BODIES: dict[Callable[..., Any], FunctionType] = {
    function: _body(function)
    for function in (
        F.dropout,
        F.dropout1d,
        F.dropout2d,
        F.dropout3d,
        F.alpha_dropout,
        F.feature_alpha_dropout,
        F.multi_head_attention_forward,
    )
}
