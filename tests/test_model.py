"""Plain modules lifted over a cohort, and logistic regression; what cannot be lifted is refused."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedrows import Simulation
from fedrows.algorithms.fedsubavg import FedSubAvg
from fedrows.batches import Batch
from fedrows.data import FederatedData
from fedrows.errors import ModelError
from fedrows.lifted import Lifted
from fedrows.model import logistic_loss
from fedrows.models.logistic import Logistic, build
from fedrows.params import Params, take
from fedrows.plan import Plan

PLAN = Plan(rounds=3, clients_per_round=2, lr=0.5, device="cpu")


def federation(kinds: int = 2) -> FederatedData:
    return FederatedData.build(
        client=np.array([0, 0, 1, 1, 2]),
        ids={
            "item": np.array([[0, 1], [1, 2], [2, 2], [3, 0], [4, 1]]),
            "kind": np.array([0, 1, 0, 1, 1]),
        },
        label=np.array([0, 1, 1, 0, 1]),
        test=np.array([False, False, False, False, False]),
        tables={"item": 5, "kind": kinds},
    )


class Net(nn.Module):
    """An ordinary module: two embeddings and a dense layer."""

    def __init__(self, rows: int = 5, **embedding) -> None:
        super().__init__()
        self.item = nn.Embedding(rows, 3, **embedding)
        self.kind = nn.Embedding(2, 2)
        self.layer = nn.Linear(5, 1)

    def features(self, item: Tensor, kind: Tensor) -> Tensor:
        return torch.cat([self.item(item).mean(1), self.kind(kind)], 1)  # (B, 5)

    def forward(self, item: Tensor, kind: Tensor) -> Tensor:
        return self.layer(self.features(item, kind))[:, 0]


class Renamed(nn.Module):
    """The tables' embeddings under other names, one of them inside another module."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Net()
        self.kinds = nn.Embedding(2, 1)
        del self.inner.kind, self.inner.layer

    def forward(self, item: Tensor, kind: Tensor) -> Tensor:
        return self.inner.item(item).sum((1, 2)) + self.kinds(kind)[:, 0]


class Stray(Net):
    def __init__(self, kind: type = nn.Embedding) -> None:
        super().__init__()
        self.extra = kind(4, 2)


class Column(Net):
    def forward(self, item, kind):
        return self.layer(self.features(item, kind))  # (B, 1)


class Pair(Net):
    def forward(self, item, kind):
        return super().forward(item, kind), item


class Dropping(Net):
    def __init__(self) -> None:
        super().__init__()
        self.drop = nn.Dropout(0.5)

    def forward(self, item, kind):
        return self.layer(self.drop(self.features(item, kind)))[:, 0]


class Recurrent(Net):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(3, 3, batch_first=True)

    def forward(self, item, kind):
        last = self.lstm(self.item(item))[0][:, -1]
        return self.layer(torch.cat([last, self.kind(kind)], 1))[:, 0]


class Normed(Net):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(5)

    def forward(self, item, kind):
        return self.layer(self.norm(self.features(item, kind)))[:, 0]


class Deaf(Net):
    def forward(self, kind):
        return self.kind(kind)[:, 0]


class Detached(Net):
    def forward(self, item, kind):
        return super().forward(item, kind).detach()


class Tied(Net):
    """The item table is the weight of a dense layer too, which no client holds whole."""

    def __init__(self) -> None:
        super().__init__()
        self.output = nn.Linear(3, 5, bias=False)
        self.output.weight = self.item.weight

    def forward(self, item, kind):
        return self.output(self.item(item).mean(1)).sum(1) + self.kind(kind)[:, 0]


class Branching(Net):
    def forward(self, item, kind):
        return super().forward(item, kind) * (2 if item.sum() > 3 else 1)


REFUSED = {
    "wrong number of rows": (Net(6), {}, ["'item'", "6 rows", "has 5"]),
    "missing embedding": (nn.Linear(2, 2), {}, ["'item'", "none", "`embeddings`"]),
    "missing where mapped": (Renamed(), {"kind": "kinds"}, ["'item'", "inner.item, kinds"]),
    "not an embedding": (Net(), {"item": "layer"}, ["'layer'", "Linear", "nn.Embedding"]),
    "mapping of no table": (Net(), {"itme": "item"}, ["'itme'", "item, kind"]),
    "frozen embedding": (Net().requires_grad_(False), {}, ["'item'", "frozen"]),
    "stray embedding": (Stray(), {}, ["'extra'", "item, kind"]),
    "stray bag": (Stray(nn.EmbeddingBag), {}, ["'extra'"]),
    "padding": (Net(padding_idx=0), {}, ["'item'", "padding_idx"]),
    "largest norm": (Net(max_norm=1.0), {}, ["'item'", "max_norm"]),
    "sparse gradients": (Net(sparse=True), {}, ["'item'", "sparse"]),
    "scores in a column": (Column(), {}, ["Column", "shape (2, 1)", "shape (2,)"]),
    "two results": (Pair(), {}, ["Pair", "tuple"]),
    "dropout": (Dropping(), {}, ["Dropping", "randomness"]),
    "nn.LSTM": (Recurrent(), {}, ["Recurrent", "lstm", "vmap"]),
    "batch norm": (Normed(), {}, ["Normed"]),
    "a field that forward lacks": (Deaf(), {}, ["Deaf", "item, kind by name"]),
    "no gradient": (Detached(), {}, ["Detached", "grad"]),
    "tied weights": (Tied(), {}, ["'item'", "output.weight"]),
    "a branch on the data": (Branching(), {}, ["Branching"]),
}


@pytest.mark.parametrize(("module", "embeddings", "names"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_lifted_is_refused_in_one_sentence(module, embeddings, names):
    with pytest.raises(ModelError) as caught:
        Lifted(module, federation(), embeddings)
    said = str(caught.value)
    assert "\n" not in said
    assert said.endswith(".")
    assert all(name in said for name in names), said


def test_two_tables_in_one_embedding_are_refused():
    module = Net()
    del module.kind
    with pytest.raises(ModelError, match=r"'item' .*both|both .*'item'"):
        Lifted(module, federation(kinds=5), {"kind": "item"})


def test_a_loss_that_is_not_per_example_is_refused():
    with pytest.raises(ModelError, match="loss"):
        Lifted(Net(), federation(), loss=lambda scores, label: (scores - label).square().mean())


def test_tables_and_dense_tensors_are_found():
    model = Lifted(Net(), federation())
    assert {t: (x.rows, x.width) for t, x in model.schema.tables.items()} == {
        "item": (5, 3),
        "kind": (2, 2),
    }
    assert model.schema.dense == {"layer.weight": (1, 5), "layer.bias": (1,)}
    assert model.schema.dense_size == 6
    assert model.schema.size == 15 + 4 + 6


def test_embeddings_may_have_other_names():
    module, data = Renamed(), federation()
    model = Lifted(module, data, {"item": "inner.item", "kind": "kinds"})
    assert model.schema.tables["kind"].width == 1
    ids = data.train.ids
    assert torch.equal(model.scores(model.start(), ids), module(**ids))
    assert model.export(model.start()).keys() == module.state_dict().keys()


def test_training_leaves_the_module_alone():
    torch.manual_seed(0)
    module, data = Net(), federation()
    before = {name: x.clone() for name, x in module.state_dict().items()}
    simulation = Simulation(data, Lifted(module, data), FedSubAvg(), PLAN)
    for _ in simulation:
        simulation.evaluate()
    assert all(torch.equal(x, before[name]) for name, x in module.state_dict().items())
    assert all(x.grad is None and x.requires_grad for x in module.parameters())
    assert not torch.equal(simulation.progress.params.tables["item"], before["item.weight"])


def test_trained_numbers_load_back_into_the_module():
    torch.manual_seed(0)
    module, data = Net(), federation()
    model = Lifted(module, data)
    simulation = Simulation(data, model, FedSubAvg(), PLAN)
    for _ in simulation:
        pass
    params, ids = simulation.progress.whole(), data.train.ids
    scores = model.scores(params, ids)
    assert not torch.equal(scores, module(**ids))
    fresh = Net()
    fresh.load_state_dict(model.export(params))
    assert torch.equal(fresh(**ids), scores)


def test_buffers_are_exported_as_they_are():
    module = Net()
    module.register_buffer("scale", torch.tensor(3.0))
    model = Lifted(module, federation())
    fresh = Net()
    fresh.register_buffer("scale", torch.tensor(0.0))
    fresh.load_state_dict(model.export(model.start()))
    assert fresh.scale == 3


def test_buffers_and_frozen_parameters_follow_the_dtype_of_the_run():
    module, data = Net(), federation()
    module.register_buffer("turn", torch.eye(5).flip(0))
    module.layer.weight.requires_grad_(False)
    module.features = lambda item, kind: Net.features(module, item, kind) @ module.turn
    plan = replace(PLAN, dtype="float64")
    simulation = Simulation(data, Lifted(module, data), FedSubAvg(), plan)
    for _ in simulation:
        pass
    assert simulation.progress.params.tables["item"].dtype == torch.float64


def test_dense_layers_may_share_a_weight():
    class Twice(Net):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(5, 5), nn.Linear(5, 5)
            self.second.weight = self.first.weight

        def forward(self, item, kind):
            return self.second(self.first(self.features(item, kind))).sum(1)

    torch.manual_seed(0)
    data, module = federation(), Twice()
    model = Lifted(module, data)
    simulation = Simulation(data, model, FedSubAvg(), PLAN)
    for _ in simulation:
        pass
    params = simulation.progress.whole()
    fresh = Twice()
    fresh.load_state_dict(model.export(params))
    assert torch.equal(fresh(**data.train.ids), model.scores(params, data.train.ids))
    assert not torch.equal(fresh.first.weight, module.first.weight)


def test_frozen_parameters_do_not_move():
    torch.manual_seed(0)
    module, data = Net(), federation()
    module.layer.weight.requires_grad_(False)
    before = module.layer.weight.clone()
    model = Lifted(module, data)
    simulation = Simulation(data, model, FedSubAvg(), PLAN)
    for _ in simulation:
        pass
    exported = model.export(simulation.progress.whole())
    assert torch.equal(exported["layer.weight"], before)
    assert not torch.equal(exported["layer.bias"], module.layer.bias)


@pytest.mark.parametrize("training", [True, False])
def test_scoring_is_evaluation_and_restores_the_modes(training):
    """Also of a part that its owner has put into another mode than the whole."""
    data, module = federation(), Dropping()
    module.eval()  # dropout is off, so the module can be lifted
    model = Lifted(module, data)
    module.train(training)
    module.layer.train(not training)
    first, second = (model.scores(model.start(), data.train.ids) for _ in range(2))
    assert torch.equal(first, second)
    assert not first.requires_grad
    assert module.training is module.drop.training is training
    assert module.layer.training is not training


def test_the_modes_are_restored_after_an_error():
    data, module = federation(), Net()
    model = Lifted(module, data)
    with pytest.raises(IndexError):
        model.scores(model.start(), data.train.ids | {"kind": torch.tensor([9] * 5)})
    assert module.training


def test_lifting_copies_no_table():
    """A table may be most of the memory: only `start` may copy it."""
    module = Net()
    model = Lifted(module, federation())
    assert model.start().tables["item"].data_ptr() != module.item.weight.data_ptr()
    copies = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Lifted, "start", lambda self: copies.append(self) or 1 / 0)
        Lifted(Net(), federation())
    assert copies == []


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


@pytest.mark.parametrize("kind", ["logistic", "lifted"])
@pytest.mark.parametrize("masked", [False, True])
def test_a_cohorts_gradient_is_each_clients_own(kind, masked):
    torch.manual_seed(0)
    data = federation()
    model = build(data) if kind == "logistic" else Lifted(Net(), data)
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
