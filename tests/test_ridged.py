"""A ridge on rows, against autograd on the loss that it is the gradient of."""

from __future__ import annotations

from dataclasses import replace

import pytest
import test_models
import torch
from torch import Tensor

from fedrows.data.federation import FederatedData
from fedrows.lifting.ridged import Ridged
from fedrows.model import logistic_loss
from fedrows.models import mf
from fedrows.rows.params import take


@pytest.fixture
def data() -> FederatedData:
    clicks = test_models.clicks()
    return FederatedData.build(
        client=test_models.CLIENT,
        ids={"user": test_models.CLIENT, "item": clicks.train.ids["item"].numpy() % 3},
        tables={"user": 3, "item": 4},
        label=test_models.LABEL,
        test=torch.zeros(9, dtype=torch.bool).numpy(),
        target=("item", None),
    )


@pytest.mark.parametrize("weighted", [False, True])
def test_it_is_the_gradient_of_the_loss_with_a_penalty(data, weighted):
    model = mf.build(data, 1, factors=2, ridge=0.7)
    params = model.start().map(Tensor.double)
    index, batch = test_models.step_of(data, [0, 1, 2])
    if weighted:
        weight = torch.ones_like(batch.label)
        weight[:, -1], weight[2] = 0.5, 0
        batch = replace(batch, weight=weight)
    block = take(params, index, 3)
    rows = {t: x.clone().requires_grad_() for t, x in block.rows.items()}
    user, item = rows["user"][batch.ids["user"]], rows["item"][batch.ids["item"]]  # (K, B, 3)
    scores = user[..., 0] + item[..., 0] + (user[..., 1:] * item[..., 1:]).sum(-1)
    penalty = (user[..., 1:].square() + item[..., 1:].square()).sum(-1) * 0.35
    each = logistic_loss(scores, batch.label) + penalty
    weight = torch.ones_like(each) if batch.weight is None else batch.weight
    loss = ((weight * each).sum(1) / weight.sum(1).clamp(min=1e-9)).sum()
    wanted = torch.autograd.grad(loss, list(rows.values()))
    found = model.gradient(block, batch)
    for table, x in zip(rows, wanted, strict=True):
        torch.testing.assert_close(found.rows[table], x, rtol=0, atol=1e-12)


def test_without_a_ridge_nothing_is_added(data):
    plain, ridged = (mf.build(data, 1, ridge=ridge) for ridge in (0.0, 0.5))
    assert isinstance(plain, Ridged)
    index, batch = test_models.step_of(data, [0, 1])
    block = take(plain.start().map(Tensor.double), index, 2)
    first, second = plain.gradient(block, batch), ridged.gradient(block, batch)
    assert torch.equal(first.rows["item"][:, 0], second.rows["item"][:, 0])  # a bias has none
    assert not torch.equal(first.rows["item"][:, 1:], second.rows["item"][:, 1:])
    assert torch.equal(first.dense["bias"], second.dense["bias"])
