"""Outputs that score drawn candidates only: for rankings, and for language models of many words.

A softmax over all rows of a table would need all of them on every client. A sampled softmax needs
those of the right answer and of a few that were drawn:

    score(c) = ⟨h, v_c⟩ + b_c − log E[c]        loss = log Σ_c exp(score(c)) − score(right answer)

The output is tied to the input: v_c is the row that the candidate also has as an input, so a client
holds one copy of it. E[c] is how often c is expected among the drawn. It corrects for a draw that
is not even (Bengio and Senécal 2008; Jean et al. 2015), and for an even one it is left out.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


class TiedOutput(nn.Module):
    """Scores of candidates by their own input rows.

    hidden (…, w) and rows (…, C, w) give (…, C). Leading dimensions of size 1 are those of all
    examples: rows (1, C, w) are scored by one matrix product.
    """

    def forward(
        self,
        hidden: Tensor,
        rows: Tensor,
        bias: Tensor | None = None,
        log_expected: Tensor | None = None,
    ) -> Tensor:
        # hidden (…, w), rows (…, C, w), bias and log_expected (…, C) → (…, C)
        scores = torch.einsum("...w,...cw->...c", hidden, rows)
        if bias is not None:
            scores = scores + bias
        return scores if log_expected is None else scores - log_expected
