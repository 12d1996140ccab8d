"""The model that trains on an `Objective`: logistic regression with λ/2·|x_S(i)|², no bias."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from fedrows.data.batches import Batch
from fedrows.data.federation import FederatedData
from fedrows.model import Model
from fedrows.models.logistic import Logistic
from fedrows.rows.params import Params, Submodels


class Ridge(Model):
    """Logistic regression whose bias stays at zero; a client's gradient gets λ·x on its rows."""

    closed_form = True

    def __init__(self, data: FederatedData, ridge: float) -> None:
        self._inner, self._ridge = Logistic(data), ridge
        self.schema = self._inner.schema

    def start(self) -> Params:
        return self._inner.start()

    def scores(self, params: Params, fields: Mapping[str, Tensor]) -> Tensor:
        return self._inner.scores(params, fields)

    def gradient(self, block: Submodels, batch: Batch) -> Submodels:
        gradient = self._inner.gradient(block, batch)
        for table, rows in gradient.rows.items():
            rows.add_(block.rows[table], alpha=self._ridge)
        gradient.dense["bias"].zero_()
        return gradient
