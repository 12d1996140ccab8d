"""What a model is worth on its data: one evaluation, the same for every algorithm and seed.

Train loss is taken on a fixed sample of the training examples, as in the paper; loss, accuracy,
AUC and GAUC, or RMSE and MAE, on all validation and on all test examples; the test's loss and AUC
also by the heat of what an example is about. Whoever brings metrics of their own has them too.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedrows.data.examples import Examples
from fedrows.data.federation import FederatedData
from fedrows.errors import DataError, UnknownNameError
from fedrows.measure.metrics import Buckets, by_bucket, grouped_auc, mean_loss, measured
from fedrows.measure.own_metrics import OwnMetrics, checked, measure
from fedrows.measure.per_client import per_client
from fedrows.measure.ranking_evaluation import RankingEvaluation
from fedrows.model import Model
from fedrows.plan import Plan
from fedrows.rows.heat import Heat
from fedrows.rows.params import Params
from fedrows.rows.ragged import Column, Ragged
from fedrows.seeds import SAMPLE, choose
from fedrows.tables import gathered

_EXAMPLES = 2**16  # scored at once, fewer where examples are long:
_IDS = 2**17


class Evaluator:
    """Measures models on one data set; whatever does not depend on the model is worked out once.

    The sample of training examples is drawn with seed 0, not the plan's: it is the same for all
    algorithms and seeds on the same data. `data` are the federated data even where the training
    runs on `data.pooled()`, because heat and the clients of GAUC are those of the federation.
    """

    def __init__(
        self, model: Model, data: FederatedData, plan: Plan, metrics: OwnMetrics | None = None
    ) -> None:
        self.model = model
        self._data = data
        self._own = checked(metrics or {})
        device, dtype = plan.torch_device, plan.torch_dtype
        self._dtype = dtype
        self._bytes = model.schema.size * dtype.itemsize
        count = min(plan.train_sample, len(data.train))
        sample = choose(0, SAMPLE, 0, len(data.train), count)
        chosen = data.train.pick(sample.to(data.train.label.device))
        self.train = chosen.to(device, dtype)
        self.validation = data.validation.to(device, dtype)
        self.test = data.test.to(device, dtype)
        self._owner = self.test.owner  # (n,)
        self._heat = data.heat()
        self._buckets = self._by_heat(data).to(device)
        # How held-out items are ranked, if that is what the data are for.
        self.ranking = None
        if data.labels == "ranking":
            self.ranking = RankingEvaluation(model, data, plan, self._own)

    def __call__(self, params: Params) -> dict[str, Any]:
        """All metrics of a model; those of an empty test set are NaN.

        Without validation examples there is no metric of them.
        """
        self.calibrate(params)
        if self.ranking is not None:
            return self.ranking.metrics(params)
        metrics: dict[str, Any] = {"train_loss": self.train_loss(params)}
        if len(self.validation):
            scores, losses = self._scored(params, self.validation)
            owner = self.validation.owner
            measured = self._measured(scores, losses, self.validation.label, owner)
            metrics |= {f"validation_{name}": value for name, value in measured.items()}
        label = self.test.label
        scores, losses = self._scored(params, self.test)
        measured = self._measured(scores, losses, label, self._owner)
        metrics |= {f"test_{name}": value for name, value in measured.items()}
        if self._data.labels == "binary":
            buckets = by_bucket(scores, label, losses, self._buckets)
        else:
            none = torch.zeros_like(label)  # ranks mean nothing here: every AUC is NaN
            buckets = by_bucket(none, none, losses, self._buckets)
        return metrics | {"buckets": buckets}

    def per_client(self, params: Params, part: str = "test") -> dict[str, np.ndarray]:
        """The metrics of each client's test or validation examples, by column (see `per_client`).

        A DataError for rankings, which have no score of each example.
        """
        parts = {"train": self._data.train, "validation": self.validation, "test": self.test}
        if part not in parts:
            raise UnknownNameError("part of the data", part, parts)
        if self.ranking is not None:
            raise DataError("Rankings are measured over all clients together, not one by one.")
        examples = parts[part].to(self.train.label.device, self._dtype)
        self.calibrate(params)
        scores, losses = self._scored(params, examples)
        return per_client(self._data, examples, scores, losses)

    def _scored(self, params: Params, examples: Examples) -> tuple[Tensor, Tensor]:
        """The score and the loss of every example: (n,) each, or (n, classes) and (n,)."""
        scores = self._scores(params, examples)
        return scores, self.model.loss(scores, examples.label) if len(examples) else scores

    def _measured(
        self, scores: Tensor, losses: Tensor, label: Tensor, owner: Tensor
    ) -> dict[str, float]:
        """The metrics of some examples by name, without saying which examples they are."""
        values = measured(self._data.labels, scores, losses, label, owner)
        return values | measure(self._own, scores, label, owner)

    def calibrate(self, params: Params) -> None:
        """Lets the model measure what evaluation needs to know on the sample."""
        columns = {n: x.values if isinstance(x, Ragged) else x for n, x in self.train.ids.items()}
        few, slots = gathered(params, columns, self._data.fields, self._data.padded)
        ids: dict[str, Column] = {
            name: replace(column, values=slots[name]) if isinstance(column, Ragged) else slots[name]
            for name, column in self.train.ids.items()
        }
        self.model.calibrate(few, replace(self.train, ids=ids))

    def _by_heat(self, data: FederatedData) -> Buckets:
        """The test examples by the heat of what they are about; no buckets if that is not said."""
        if data.target is None:
            return Buckets([], [], [], torch.zeros(len(data.test), dtype=torch.int64))
        return Buckets.of_heat(self._heat[data.fields[data.target[0]]].of(data.targets(data.test)))

    def train_loss(self, params: Params) -> float:
        """The mean loss over the fixed sample of training examples."""
        if self.ranking is not None:
            return self.ranking.train_loss(params)
        return mean_loss(self.model.loss(self._scores(params, self.train), self.train.label))

    def facts(self) -> dict[str, Any]:
        """What the data are like, in plain numbers, lists and dicts."""
        data, test, validation = self._data, self.test, self.validation
        unseen = self._buckets.examples[0] if self._buckets.high[:1] == [0] else 0
        one_class = None
        if data.labels == "binary":
            _, one_class = grouped_auc(torch.zeros_like(test.label), test.label, self._owner)
        groups = {table: {table: (0, rows)} for table, rows in data.tables.items()}
        groups |= {table: dict(spans) for table, spans in data.groups.items() if spans}
        return {
            "clients": data.clients,
            "clients_without_training_data": data.clients_without_training_data,
            "train_examples": len(data.train),
            **({"validation_examples": len(validation)} if len(validation) else {}),
            "test_examples": len(test),
            "examples_per_client": (len(data.train) + len(validation) + len(test)) / data.clients,
            "best_loss": data.best_loss,
            "unseen_target_share": unseen / len(test) if data.target and len(test) else None,
            "one_class_clients": one_class,
            "bytes_full_model": self._bytes,
            "heat": [
                {"table": table, "group": group, **_heat_facts(self._heat[table].between(*span))}
                for table in data.tables
                for group, span in groups[table].items()
            ],
        }

    def _scores(self, params: Params, examples: Examples) -> Tensor:
        """The score of every example, a slice at a time to bound memory: (n,)."""
        first = examples.fields(torch.arange(min(1, len(examples)), device=examples.label.device))
        length = sum(prod(column.shape[1:]) for column in first.values())
        step = max(1, min(_EXAMPLES, _IDS // max(length, 1)))
        parts = []
        with torch.no_grad():
            for start in range(0, len(examples), step):
                stop = min(start + step, len(examples))
                some = torch.arange(start, stop, device=examples.label.device)
                fields = examples.fields(some)
                few = gathered(params, fields, self._data.fields, self._data.padded)
                parts.append(self.model.scores(*few))
        return torch.cat(parts) if parts else examples.label[:0].to(self._dtype)


def _heat_facts(heat: Heat) -> dict[str, Any]:
    """Range, dispersion and histogram of some heat; None where nobody holds a feature."""
    values, features = torch.unique(heat.counts.to(torch.int64), return_counts=True)
    histogram = [list(pair) for pair in zip(values.tolist(), features.tolist(), strict=True)]
    return {
        "features": len(heat.ids),
        "smallest": histogram[0][0] if histogram else None,
        "largest": histogram[-1][0] if histogram else None,
        "dispersion": heat.dispersion if histogram else None,
        "histogram": histogram,
    }
