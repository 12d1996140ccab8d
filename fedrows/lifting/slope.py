"""The gradient of a loss by the scores, which a backward pass through a module begins with."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.func import vmap

from fedrows.model import Loss, logistic_loss, sampled_softmax_loss, sigmoid, square_loss

_SLOPES: dict[Loss, Loss] = {  # the derivative by the score, where it is known
    logistic_loss: lambda scores, label: sigmoid(scores).sub_(label),
    square_loss: torch.sub,
    sampled_softmax_loss: lambda scores, label: scores.softmax(-1).sub_(_is_first(scores)),
}


def slope_of(
    loss: Loss, scores: Tensor, label: Tensor, weight: Tensor | None, one_by_one: bool
) -> Tensor:
    """The gradient of each client's mean loss by its scores: (K, B) or (K, B, C)."""
    if weight is None and loss in _SLOPES:
        return _SLOPES[loss](scores, label).mul_(1 / label.shape[1])
    share = scores.new_full((), 1 / label.shape[1]).expand(label.shape)  # (K, B)
    if weight is not None:
        whole = weight.sum(1, keepdim=True)
        share = weight / torch.where(whole > 0, whole, 1)
    if loss in _SLOPES:
        deep = [1] * (scores.dim() - label.dim())
        return _SLOPES[loss](scores, label).mul_(share.view(*share.shape, *deep))
    with torch.enable_grad():
        free = scores.requires_grad_()
        losses = loss(free[0], label[0])[None] if one_by_one else vmap(loss)(free, label)
        return torch.autograd.grad(losses, free, share)[0]


def _is_first(scores: Tensor) -> Tensor:
    """1 in column 0, the positive among candidates (…, C), and 0 in all others: (C,)."""
    return (torch.arange(scores.shape[-1], device=scores.device) == 0).to(scores.dtype)
