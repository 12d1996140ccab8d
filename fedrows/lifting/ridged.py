"""A lifted module with a ridge on its rows, which acts on the rows that an example reads.

    loss of an example + (ridge / 2) · Σ |row|²       over the rows that the example reads

A row that a client reads often is held back often: the client's own row in every example, the row
of an item in the examples about it. The weight decay of a plan pulls at all rows that the client
holds in every step, so it holds items back a hundred times more than the client's own row, in units
of what each learns from. Columns before `first` are left alone: biases need no ridge.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from fedrows.data.federation import FederatedData
from fedrows.lifting.lifted import Lifted


class Ridged(Lifted):
    """A lifted module whose gradients have a ridge; `first` says from which column on, by table."""

    def __init__(
        self,
        module: nn.Module,
        data: FederatedData,
        embeddings: Mapping[str, str | Sequence[str]],
        ridge: float,
        first: Mapping[str, int],
        **more: Any,
    ) -> None:
        self.ridge, self.first = ridge, dict(first)
        self._read_by = {t: [f for f, x in data.fields.items() if x == t] for t in first}
        super().__init__(module, data, embeddings, **more)

    def gradients(self, given: Mapping[str, Tensor]) -> Sequence[Tensor]:
        gradients = list(super().gradients(given))
        if not self.ridge:
            return gradients
        weight, label = given.get("weight"), given["label"]
        if weight is None:
            share = torch.full_like(label, 1 / label.shape[1])  # (K, B)
        else:
            whole = weight.sum(1, keepdim=True)  # (K, 1)
            share = weight / torch.where(whole > 0, whole, 1)
        tables = [name.removeprefix("rows/") for name in given if name.startswith("rows/")]
        for gradient, table in zip(gradients, tables, strict=False):
            if table in self.first:
                self._hold_back_(gradient, table, given, share)
        return gradients

    def _hold_back_(
        self, gradient: Tensor, table: str, given: Mapping[str, Tensor], share: Tensor
    ) -> None:
        """Adds ridge · row to a table's gradient (R, width), as often as examples read the row."""
        rows, first = given[f"rows/{table}"], self.first[table]
        often = rows.new_zeros(rows.shape[0])
        for name in self._read_by[table]:
            ids = given[f"ids/{name}"]  # (K, B), or (K, B, C) for candidates
            each = share if ids.dim() == 2 else share.unsqueeze(2).expand_as(ids)
            real = torch.where(ids < 0, 0, each)
            often.index_add_(0, ids.clamp(min=0).flatten(), real.flatten())
        scaled = rows[:, first:] * (self.ridge * often).unsqueeze(1)  # (R, width − first)
        gradient.narrow(1, first, scaled.shape[1]).add_(scaled)
