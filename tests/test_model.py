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
from fedrows.batches import Batch, batches, local_data
from fedrows.data import FederatedData
from fedrows.errors import ModelError
from fedrows.lifted import Lifted
from fedrows.model import logistic_loss
from fedrows.models.logistic import Logistic, build
from fedrows.nn import BatchNorm
from fedrows.params import Params, take
from fedrows.plan import Plan
from fedrows.ragged import ragged

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


class Inner(nn.Module):
    """Does something to what goes through it."""

    def __init__(self, change) -> None:
        super().__init__()
        self.change = change

    def forward(self, x):
        return self.change(x)


class Around(Net):
    """A part deep inside does something that a cohort may not be able to."""

    def __init__(self, change) -> None:
        super().__init__()
        self.deep = nn.Sequential(nn.Identity(), Inner(change))

    def forward(self, item, kind):
        return self.layer(self.deep(self.features(item, kind)))[:, 0]


class Noise(nn.Module):
    def forward(self, x):
        return x * torch.empty_like(x).exponential_() if self.training else x


class Counting(Net):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, item, kind):
        if self.training:
            self.seen += 1
        return super().forward(item, kind)


class Offsets(Net):
    def __init__(self) -> None:
        super().__init__()
        self.item = nn.EmbeddingBag(5, 3)

    def features(self, item, kind):
        offsets = torch.arange(0, item.numel(), item.shape[1])
        return torch.cat([self.item(item.reshape(-1), offsets), self.kind(kind)], 1)


def positive(x: Tensor) -> Tensor:
    return x * (len(x[x > 0]) / x.numel())


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
    "nn.LSTM": (Recurrent(), {}, ["'lstm'", "nn.LSTM", "fedrows.nn.LSTM", "one_by_one=True"]),
    "nn.GRU": (Around(nn.GRU(5, 5)), {}, ["'deep.1.change'", "fedrows.nn.GRU", "one_by_one=True"]),
    "nn.RNNCell": (Around(nn.RNNCell(5, 5)), {}, ["'deep.1.change'", "fedrows.nn.GRU"]),
    "batch norm": (Normed(), {}, ["'norm'", "running statistics", "fedrows.nn.BatchNorm"]),
    "bags by offsets": (Offsets(), {}, ["'item' (EmbeddingBag)", "offsets", "(B, L)"]),
    "a field that forward lacks": (Deaf(), {}, ["Deaf", "item, kind by name"]),
    "no gradient": (Detached(), {}, ["Detached", "grad"]),
    "tied weights": (Tied(), {}, ["'item'", "output.weight"]),
    "a branch on the data": (
        Branching(),
        {},
        ["Branching (line", "test_model.py", "torch.where", "one_by_one=True"],
    ),
    "a number taken out": (
        Around(lambda x: x * x.sum().item()),
        {},
        ["'deep.1'", "Inner", "torch.where", "one_by_one=True"],
    ),
    "a mask as an index": (Around(positive), {}, ["'deep.1'", "torch.where", "one_by_one=True"]),
    "no batching rule": (
        Around(
            lambda x: torch.ops.aten.lstm_cell(x, [x, x], x.new_ones(20, 5), x.new_ones(20, 5))[0]
        ),
        {},
        ["'deep.1'", "aten::lstm_cell", "one_by_one=True"],
    ),
    "a random number": (
        Around(Noise()),
        {},
        ["'deep.1.change'", "global generator", "torch.rand_like"],
    ),
    "random scores": (Around(torch.randn_like), {}, ["Around", "global generator"]),
    "a buffer that training changes": (Counting(), {}, ["'seen'"]),
    "a mistake in forward": (
        Around(lambda x: x @ x),
        {},
        ["'deep.1'", "RuntimeError", "item, kind"],
    ),
    "no embedding for a table": (Net(), {"item": []}, ["'item'", "at least one"]),
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


class Twice(Net):
    """Two embeddings of one feature, as in factorisation machines."""

    def __init__(self, bag: bool = False) -> None:
        super().__init__()
        self.item = nn.EmbeddingBag(5, 1, mode="sum") if bag else nn.Embedding(5, 1)
        self.factors = nn.Embedding(5, 2)
        self.bag = bag

    def forward(self, item, kind):
        linear = self.item(item)[:, 0] if self.bag else self.item(item).sum((1, 2))
        return linear + self.factors(item).prod(1).sum(1) + self.kind(kind).sum(1)


@pytest.mark.parametrize("bag", [False, True])
def test_two_embeddings_of_one_table(bag):
    torch.manual_seed(0)
    module, data = Twice(bag), federation()
    model = Lifted(module, data, {"item": ["item", "factors"]})
    assert model.schema.tables["item"].width == 3
    start = model.start()
    assert torch.equal(
        start.tables["item"], torch.cat([module.item.weight, module.factors.weight], 1)
    )
    assert torch.equal(model.scores(start, data.train.ids), module(**data.train.ids))
    simulation = Simulation(data, model, FedSubAvg(), PLAN)
    for _ in simulation:
        pass
    params = simulation.progress.whole()
    fresh = Twice(bag)
    fresh.load_state_dict(model.export(params))
    assert torch.equal(fresh(**data.train.ids), model.scores(params, data.train.ids))
    assert not torch.equal(fresh.factors.weight, module.factors.weight)
    assert all(x.is_contiguous() for x in model.export(params).values())


def test_an_embedding_of_two_tables_is_refused_in_a_list_too():
    with pytest.raises(ModelError, match="both mapped to embedding 'factors'"):
        Lifted(Twice(), federation(5), {"item": ["item", "factors"], "kind": ["factors"]})


@pytest.mark.parametrize("module", [Recurrent(), Around(positive), Branching()])
def test_what_cannot_be_lifted_trains_one_by_one(module):
    data = federation()
    model = Lifted(module, data, one_by_one=True)
    assert type(module).__name__ in model.note
    assert "one client after another" in model.note
    simulation = Simulation(data, model, FedSubAvg(), replace(PLAN, rounds=1))
    for _ in simulation:
        simulation.evaluate()
    assert not torch.equal(simulation.progress.params.tables["item"], module.item.weight)


@pytest.mark.parametrize("module", [Net(), Dropping()])
def test_one_by_one_gives_the_same_numbers(module):
    data = federation()
    found = []
    for one_by_one in (False, True):
        model = Lifted(module, data, one_by_one=one_by_one)
        assert (model.note is not None) == one_by_one
        plan = replace(PLAN, dtype="float64", batches="epoch", epochs=2, batch_size=1)
        simulation = Simulation(data, model, FedSubAvg(), plan)
        for _ in simulation:
            pass
        found.append(simulation.progress.params)
    for table, rows in found[0].tables.items():
        torch.testing.assert_close(rows, found[1].tables[table], rtol=0, atol=1e-12)
    for name, dense in found[0].dense.items():
        torch.testing.assert_close(dense, found[1].dense[name], rtol=0, atol=1e-12)


def test_recurrent_dropout_is_refused_one_by_one():
    """It would draw from torch's global generator."""
    module = Recurrent()
    module.lstm = nn.LSTM(3, 3, num_layers=2, dropout=0.5, batch_first=True)
    with pytest.raises(ModelError, match="global generator"):
        Lifted(module, federation(), one_by_one=True)


def test_an_operation_that_is_lifted_by_a_loop_is_noted():
    model = Lifted(Around(lambda x: x + x.detach().histc(4).sum()), federation())
    assert "aten::histc" in model.note
    assert Lifted(Net(), federation()).note is None


def test_frozen_batch_norm_is_an_affine_map():
    module = Normed()
    module.norm.eval()
    model = Lifted(module, federation())
    assert "norm.running_mean" in model.export(model.start())


def test_only_a_module_that_needs_stand_ins_pays_for_them():
    data = federation()
    assert Lifted(Net(), data)._stand_ins is None
    assert not Lifted(Net(), data).random
    dropping = Lifted(Dropping(), data)
    assert dropping._stand_ins is not None
    assert dropping.random
    bags = Lifted(Twice(bag=True), data, {"item": ["item", "factors"]})
    assert bags._stand_ins is not None
    assert not bags.random


def test_training_leaves_the_global_generator_alone():
    data, module = federation(), Dropping()
    before = torch.get_rng_state()
    simulation = Simulation(data, Lifted(module, data), FedSubAvg(), PLAN)
    for _ in simulation:
        pass
    assert torch.equal(torch.get_rng_state(), before)


class Measured(Net):
    """Normalised by moments that evaluation takes from a sample."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = BatchNorm(5)

    def forward(self, item, kind):
        return self.layer(self.norm(self.features(item, kind)))[:, 0]


def test_moments_are_measured_beside_the_module():
    torch.manual_seed(0)
    module, data = Measured(), federation()
    model = Lifted(module, data)
    params = model.start()
    model.calibrate(params, data.train)
    x = module.features(**data.train.ids)
    exported = model.export(params)
    torch.testing.assert_close(exported["norm.running_mean"], x.mean(0))
    torch.testing.assert_close(exported["norm.running_var"], x.var(0, correction=0))
    assert module.norm.running_mean.abs().sum() == 0
    scores = model.scores(params, data.train.ids)
    alone = model.scores(params, {name: column[:1] for name, column in data.train.ids.items()})
    torch.testing.assert_close(scores[:1], alone)
    fresh = Measured().eval()
    fresh.load_state_dict(exported)
    torch.testing.assert_close(fresh(**data.train.ids), scores)
    model.calibrate(params.map(lambda x: 2 * x), data.train)
    torch.testing.assert_close(model.export(params)["norm.running_mean"], 2 * x.mean(0))


def test_measuring_in_slices_gives_the_same_moments(monkeypatch):
    torch.manual_seed(0)
    data = federation()
    model = Lifted(Measured(), data)
    params = model.start()
    model.calibrate(params, data.train)
    whole = model.export(params)
    monkeypatch.setattr("fedrows.measuring.TOGETHER", 2)
    model.calibrate(params, data.train)
    for name, x in model.export(params).items():
        torch.testing.assert_close(x, whole[name])


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
