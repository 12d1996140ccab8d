"""A list as one vector: the mean of what is in it, weighted by a softmax of scores."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class AttentionPooling(nn.Module):
    """Σ_l p_l · values_l with p = softmax of the scores where the mask holds; nothing gives zeros.

    Padding takes no part: neither its scores nor its values matter, and both get no gradient.
    """

    def forward(self, scores: Tensor, mask: Tensor, values: Tensor) -> Tensor:
        # scores and mask (B, L), values (B, L, w) → (B, w)
        share = self.shares(scores, mask).unsqueeze(-2)  # (B, 1, L)
        return (share @ values).squeeze(-2)

    def shares(self, scores: Tensor, mask: Tensor) -> Tensor:
        """p, 0 where the mask does not hold: (B, L)."""
        lowest = torch.finfo(scores.dtype).min  # not −∞, whose softmax is NaN in an empty list
        share = torch.where(mask, scores, lowest).softmax(-1)
        return torch.where(mask, share, 0)
