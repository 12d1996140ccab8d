"""Logistic regression on one-hot features: a score is a bias plus one weight per feature id.

Written for the whole cohort, with its gradient in closed form, because at this size a step costs
what its few operations cost to launch:

    p = σ(b + Σ_l w[id_l]),   ∂/∂w[id] = (p − y) / B,   ∂/∂b = mean (p − y)
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from fedrows.data.batches import Batch
from fedrows.data.federation import FederatedData
from fedrows.model import Biases, Model
from fedrows.nn import fused
from fedrows.nn.kernels import logistic
from fedrows.rows.params import Params, Submodels
from fedrows.rows.schema import Schema, Table
from fedrows.tables import ConstantRows, InitialRows


class Logistic(Model):
    """Logistic regression over every field of the data."""

    closed_form = True

    def __init__(self, data: FederatedData) -> None:
        self.fields = dict(data.fields)
        self._padded = {name for name, table in data.fields.items() if table in data.padded}
        self.schema = Schema({t: Table(rows, 1) for t, rows in data.tables.items()}, {"bias": ()})
        self.biases = Biases("bias", dict.fromkeys(data.tables, 0))

    def start(self) -> Params:
        tables = {name: torch.zeros(t.rows, t.width) for name, t in self.schema.tables.items()}
        return Params(tables, {"bias": torch.zeros(())})

    def initial_rows(self) -> tuple[Mapping[str, InitialRows], Mapping[str, Tensor]]:
        return dict.fromkeys(self.schema.tables, ConstantRows(0.0, (1,))), {"bias": torch.zeros(())}

    def scores(self, params: Params, ids: Mapping[str, Tensor]) -> Tensor:
        places = {**ids, **{n: torch.where(ids[n] == 0, -1, ids[n]) for n in self._padded}}
        return params.dense["bias"] + self._sum(params.tables, places, dims=1)

    def gradient(self, block: Submodels, batch: Batch) -> Submodels:
        bias = block.dense["bias"]
        if len(self.fields) == 1 and fused.adds_freely(bias):
            ((name, table),) = self.fields.items()
            given = (bias, batch.ids[name], batch.label, batch.weight)
            d_rows, d_bias = logistic.gradient(block.rows[table], *given)
            return Submodels(block.index, {table: d_rows}, {"bias": d_bias})
        scores = self._sum(block.rows, batch.ids, dims=2).add_(bias.unsqueeze(1))  # (K, B)
        wide = scores.double() if scores.is_cpu else scores  # as `model.sigmoid`, but in place
        error = scores.copy_(wide.sigmoid_()).sub_(batch.label)
        if batch.weight is None:
            error.mul_(1 / error.shape[1])
        else:
            whole = batch.weight.sum(1, keepdim=True)
            error.mul_(batch.weight / torch.where(whole > 0, whole, 1))
        rows = {table: torch.zeros_like(x) for table, x in block.rows.items()}
        for name, ids in batch.ids.items():
            shared = error if ids.dim() == 2 else error.unsqueeze(2).expand_as(ids)
            if name in self._padded:
                ids, shared = ids.clamp(min=0), torch.where(ids < 0, 0, shared)
            rows[self.fields[name]].view(-1).index_add_(0, ids.reshape(-1), shared.reshape(-1))
        return Submodels(block.index, rows, {"bias": error.sum(1)})

    def _sum(self, rows: Mapping[str, Tensor], ids: Mapping[str, Tensor], dims: int) -> Tensor:
        """Σ of the weights at each example's ids; an example has `dims` leading dimensions."""
        total: Tensor | None = None
        for name in self.fields:
            column = ids[name]
            places = column.clamp(min=0) if name in self._padded else column
            weights = rows[self.fields[name]].view(-1).index_select(0, places.reshape(-1))
            weights = weights.view(column.shape)
            if name in self._padded:
                weights = torch.where(column < 0, 0, weights)
            part = weights.sum(-1) if column.dim() > dims else weights
            total = part if total is None else total + part
        assert total is not None, "data have at least one field"
        return total


def build(data: FederatedData, seed: int = 0) -> Logistic:
    """Logistic regression for some data; it starts from zero whatever the seed."""
    return Logistic(data)
