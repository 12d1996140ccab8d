"""EmbeddingBag as PyTorch's, but liftable over a cohort: same arguments, same state dict."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

from fedrows.errors import ModelError


class EmbeddingBag(nn.EmbeddingBag):
    """torch.nn.EmbeddingBag for bags (B, L), in mode sum or mean; `padding_idx` does not count."""

    def forward(
        self,
        input: Tensor,
        offsets: Tensor | None = None,
        per_sample_weights: Tensor | None = None,
    ) -> Tensor:
        self._check(input, offsets, per_sample_weights)
        rows = F.embedding(input, self.weight, self.padding_idx)  # (B, L, width)
        if self.padding_idx is None:
            share = rows.new_ones(input.shape)
        else:
            share = (input != self.padding_idx).to(rows.dtype)  # (B, L)
        if self.mode == "mean":
            share = share / share.sum(-1, keepdim=True).clamp(min=1)
        elif per_sample_weights is not None:
            share = share * per_sample_weights
        return (share.unsqueeze(-2) @ rows).squeeze(-2)  # (B, 1, L) @ (B, L, width)

    def _check(self, input: Tensor, offsets: Tensor | None, weights: Tensor | None) -> None:
        """Raises a ModelError for what PyTorch's can do and this cannot."""
        if offsets is not None or input.dim() != 2:
            raise ModelError(
                f"EmbeddingBag got ids of shape {tuple(input.shape)}"
                f"{' and offsets' if offsets is not None else ''}: give it bags (B, L), filled up "
                "with padding_idx."
            )
        if self.mode not in ("sum", "mean"):
            raise ModelError(f"EmbeddingBag has mode {self.mode!r}, but must have sum or mean.")
        if weights is not None and self.mode != "sum":
            raise ModelError(f"per_sample_weights go with mode 'sum', not {self.mode!r}.")
        if self.max_norm is not None or self.scale_grad_by_freq or self.sparse:
            raise ModelError(
                "EmbeddingBag cannot do max_norm, scale_grad_by_freq or sparse: leave them out."
            )
