"""A model's test examples client by client: how many there are, and how good its scores for them.

The columns are plain arrays: `pandas.DataFrame(columns)` or `polars.DataFrame(columns)` makes a
frame of them.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from fedrows.data.examples import Examples
from fedrows.data.federation import FederatedData
from fedrows.measure.metrics import group_auc


def per_client(
    data: FederatedData, examples: Examples, scores: Tensor, losses: Tensor
) -> dict[str, np.ndarray]:
    """One row per client with such examples: its name, their number, the mean loss, and a metric.

    The metric is AUC and accuracy for binary labels, accuracy for classes, RMSE and MAE for
    numbers. A client whose labels are all the same has no AUC: NaN.
    """
    owner, label = examples.owner, examples.label
    clients = len(examples.splits) - 1
    count = torch.bincount(owner, minlength=clients)
    has_some = (count > 0).cpu()

    def mean(of: Tensor) -> Tensor:
        total = torch.zeros(clients, dtype=torch.float64, device=of.device)
        return total.index_add_(0, owner, of.to(torch.float64)) / count

    columns = {"examples": count, "loss": mean(losses)}
    if data.labels == "binary":
        columns["accuracy"] = mean((scores > 0) == (label > 0.5))
        columns["auc"] = group_auc(scores, label, owner, clients)
    elif data.labels == "classes":
        columns["accuracy"] = mean(scores.argmax(-1) == label)
    else:
        error = scores.flatten() - label  # (n,), from (n,) or (n, 1)
        columns["rmse"], columns["mae"] = mean(error.square()).sqrt(), mean(error.abs())
    names = np.arange(clients) if data.client_names is None else data.client_names
    return {
        "client": names[has_some.numpy()],
        **{name: x.cpu()[has_some].numpy() for name, x in columns.items()},
    }
