"""A cohort's gradient is each client's own: lifted, one by one, or worked out by hand."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest
import torch
from nets import Around, Branching, Dropping, Net, Recurrent, federation, positive, trained
from torch import Tensor, nn

from fedrows.data.batches import Batch, batches, local_data
from fedrows.data.federation import FederatedData
from fedrows.lifting.lifted import Lifted
from fedrows.model import logistic_loss
from fedrows.models.logistic import Logistic, build
from fedrows.plan import Plan
from fedrows.rows.params import Params, take
from fedrows.rows.ragged import ragged


def cohort_batch(data: FederatedData, weight: Tensor | None = None) -> tuple[dict, Batch]:
    """Clients 1 and 0 with two examples each, in places of the cohort's block."""
    who = torch.tensor([1, 0])
    index = {table: whole.select(who) for table, whole in data.index.items()}
    example = torch.tensor([[2, 3], [0, 1]])
    ids = {
        name: slots[example] + index[name].splits[:-1].view(-1, *[1] * slots.dim())
        for name, slots in data.slots.items()
    }
    return index, Batch(ids, data.train.label[example], weight)


def by_hand(model, params: Params, ids: Mapping[str, Tensor], label: Tensor) -> Params:
    """One client's gradient of its mean loss, on the whole model."""
    leaves = params.map(lambda x: x.clone().requires_grad_())
    tables, dense = list(leaves.tables.values()), list(leaves.dense.values())
    if isinstance(model, Logistic):
        scores = model.scores(leaves, ids)
    else:
        numbers = {f"{t}.weight": x for t, x in leaves.tables.items()} | leaves.dense
        scores = torch.func.functional_call(model.module, numbers, (), dict(ids))
    found = torch.autograd.grad(logistic_loss(scores, label).mean(), tables + dense)
    split = len(tables)
    return Params(
        dict(zip(leaves.tables, found[:split], strict=True)),
        dict(zip(leaves.dense, found[split:], strict=True)),
    )


MODELS = {
    "logistic": build,
    "lifted": lambda data: Lifted(Net(), data),
    "one by one": lambda data: Lifted(Net(), data, one_by_one=True),
    "nn.LSTM one by one": lambda data: Lifted(Recurrent(), data, one_by_one=True),
}


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("masked", [False, True])
def test_a_cohorts_gradient_is_each_clients_own(kind, masked):
    torch.manual_seed(0)
    data = federation()
    model = MODELS[kind](data)
    params = model.start().map(torch.randn_like)
    weight = torch.tensor([[1.0, 1], [1, 0]]) if masked else None
    index, batch = cohort_batch(data, weight)
    block = take(params, index, 2)
    before = block.map(torch.clone)
    found = model.gradient(block, batch)
    for k, examples in enumerate(([2, 3], [0] if masked else [0, 1])):
        ids = {name: column[examples] for name, column in data.train.ids.items()}
        expected = by_hand(model, params, ids, data.train.label[examples])
        own = found.slice(k, k + 1)
        for table, rows in own.rows.items():
            torch.testing.assert_close(rows, expected.tables[table][own.index[table].ids])
        for name, dense in own.dense.items():
            torch.testing.assert_close(dense[0], expected.dense[name])
    assert all(torch.equal(rows, before.rows[table]) for table, rows in block.rows.items())


@pytest.mark.parametrize("kind", ["logistic", "lifted"])
def test_a_client_without_an_example_has_no_gradient(kind):
    data = federation()
    model = Logistic(data) if kind == "logistic" else Lifted(Net(), data)
    index, batch = cohort_batch(data, torch.tensor([[0.0, 0], [1, 1]]))
    found = model.gradient(take(model.start(), index, 2), batch)
    norms = found.norms()
    assert norms[0] == 0
    assert norms[1] > 0


def test_logistic_scores_by_hand():
    """Bias 1 plus the weights of every id, the same id twice counting twice."""
    data = federation()
    model = Logistic(data)
    items, kinds = torch.tensor([[1.0], [2], [4], [8], [16]]), torch.tensor([[0.0], [100]])
    params = Params({"item": items, "kind": kinds}, {"bias": torch.tensor(1.0)})
    assert model.scores(params, data.train.ids).tolist() == [4, 107, 9, 110, 119]
    assert all((x == 0).all() for x in model.start().tables.values())
    assert model.schema.size == 5 + 2 + 1


@pytest.mark.parametrize("module", [Recurrent(), Around(positive), Branching()])
def test_what_cannot_be_lifted_trains_one_by_one(module):
    data = federation()
    model = Lifted(module, data, one_by_one=True)
    assert type(module).__name__ in model.note
    assert "one client after another" in model.note
    params = trained(data, model, rounds=1)
    assert not torch.equal(params.tables["item"], module.item.weight)


@pytest.mark.parametrize("module", [Net(), Dropping()])
def test_one_by_one_gives_the_same_numbers(module):
    data = federation()
    found = []
    for one_by_one in (False, True):
        model = Lifted(module, data, one_by_one=one_by_one)
        assert (model.note is not None) == one_by_one
        plan = {"dtype": "float64", "batches": "epoch", "epochs": 2, "batch_size": 1}
        found.append(trained(data, model, **plan))
    for table, rows in found[0].tables.items():
        torch.testing.assert_close(rows, found[1].tables[table], rtol=0, atol=1e-12)
    for name, dense in found[0].dense.items():
        torch.testing.assert_close(dense, found[1].dense[name], rtol=0, atol=1e-12)


class Padded(nn.Module):
    """Row 0 means nothing, whatever numbers the module has there."""

    def __init__(self) -> None:
        super().__init__()
        self.item = nn.Embedding(4, 2, padding_idx=0)
        nn.init.normal_(self.item.weight)  # row 0 too

    def forward(self, history):
        return self.item(history).prod(1).sum(1)


def test_training_reads_row_0_as_scoring_does():
    torch.manual_seed(0)
    module = Padded()
    data = FederatedData.build(
        client=np.array([0, 1]),
        ids={"history": ragged([[1, 2], [3]])},
        label=np.array([1, 0]),
        test=np.zeros(2, dtype=bool),
        tables={"item": 4},
        fields={"history": "item"},
    )
    model = Lifted(module, data)
    index = {"item": data.index["item"].select(torch.tensor([1]))}
    batch = Batch({"history": torch.tensor([[[0, -1]]])}, torch.tensor([[0.0]]))
    found = model.gradient(take(model.start(), index, 1), batch).rows["item"]
    score = module(torch.tensor([[3, 0]]))
    logistic_loss(score, torch.zeros(1)).sum().backward()
    torch.testing.assert_close(found, module.item.weight.grad[3:])


def test_two_biases_of_one_sum_are_clipped_once_each():
    class Biases(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.user, self.item = nn.Embedding(4, 2), nn.Embedding(6, 2)
            self.one, self.other = (nn.Parameter(torch.zeros(2)) for _ in range(2))

        def forward(self, user: Tensor, item: Tensor) -> Tensor:
            return (self.user(user) * self.item(item) + (self.one + self.other)).sum(1)

    data = FederatedData.build(
        client=np.arange(4).repeat(3),
        ids={"user": np.arange(4).repeat(3), "item": np.arange(12) % 6},
        tables={"user": 4, "item": 6},
        label=np.arange(12) % 2,
        test=np.zeros(12, dtype=bool),
    )
    model = Lifted(Biases(), data)
    index = {table: its.select(torch.arange(4)) for table, its in data.index.items()}
    plan = Plan(batch_size=3, device="cpu")
    batch = next(iter(batches(local_data(data, torch.arange(4)), index, plan, 1)))
    found = model.gradient(take(model.start(), index, 4), batch)
    before = {name: x.clone() for name, x in found.dense.items()}
    found.scale_(torch.full((4,), 0.5))
    assert before["one"].abs().max() > 0
    for name, x in found.dense.items():
        torch.testing.assert_close(x, before[name] / 2)
