"""Plain modules lifted over a cohort: what is found in them, trained, measured and given back."""

from __future__ import annotations

import pytest
import torch
from nets import Dropping, Net, Normed, Renamed, Twice, federation, trained
from torch import nn

from fedrows.lifting.lifted import Lifted
from fedrows.nn import BatchNorm


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
    params = trained(data, model)
    fresh = Twice(bag)
    fresh.load_state_dict(model.export(params))
    assert torch.equal(fresh(**data.train.ids), model.scores(params, data.train.ids))
    assert not torch.equal(fresh.factors.weight, module.factors.weight)
    assert all(x.is_contiguous() for x in model.export(params).values())


def test_training_leaves_the_module_alone():
    torch.manual_seed(0)
    module, data = Net(), federation()
    before = {name: x.clone() for name, x in module.state_dict().items()}
    params = trained(data, Lifted(module, data))
    assert all(torch.equal(x, before[name]) for name, x in module.state_dict().items())
    assert all(x.grad is None and x.requires_grad for x in module.parameters())
    assert not torch.equal(params.tables["item"], before["item.weight"])


def test_training_leaves_the_global_generator_alone():
    data, module = federation(), Dropping()
    before = torch.get_rng_state()
    trained(data, Lifted(module, data))
    assert torch.equal(torch.get_rng_state(), before)


def test_trained_numbers_load_back_into_the_module():
    torch.manual_seed(0)
    module, data = Net(), federation()
    model = Lifted(module, data)
    params, ids = trained(data, model), data.train.ids
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
    params = trained(data, Lifted(module, data), dtype="float64")
    assert params.tables["item"].dtype == torch.float64


def test_dense_layers_may_share_a_weight():
    class Tied(Net):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(5, 5), nn.Linear(5, 5)
            self.second.weight = self.first.weight

        def forward(self, item, kind):
            return self.second(self.first(self.features(item, kind))).sum(1)

    torch.manual_seed(0)
    data, module = federation(), Tied()
    model = Lifted(module, data)
    params = trained(data, model)
    fresh = Tied()
    fresh.load_state_dict(model.export(params))
    assert torch.equal(fresh(**data.train.ids), model.scores(params, data.train.ids))
    assert not torch.equal(fresh.first.weight, module.first.weight)


def test_frozen_parameters_do_not_move():
    torch.manual_seed(0)
    module, data = Net(), federation()
    module.layer.weight.requires_grad_(False)
    before = module.layer.weight.clone()
    model = Lifted(module, data)
    exported = model.export(trained(data, model))
    assert torch.equal(exported["layer.weight"], before)
    assert not torch.equal(exported["layer.bias"], module.layer.bias)


def test_frozen_batch_norm_is_an_affine_map():
    torch.manual_seed(0)
    module, data = Normed(), federation()
    mean, var = torch.randn(5), torch.rand(5) + 1
    module.norm.running_mean.copy_(mean)
    module.norm.running_var.copy_(var)
    module.norm.eval()
    model = Lifted(module, data)
    scaled = (module.features(**data.train.ids) - mean) / (var + module.norm.eps).sqrt()
    scores = model.scores(model.start(), data.train.ids)
    torch.testing.assert_close(scores, module.layer(scaled)[:, 0])
    exported = model.export(trained(data, model))
    assert torch.equal(exported["norm.running_mean"], mean)
    assert torch.equal(exported["norm.running_var"], var)
    assert not torch.equal(exported["norm.weight"], module.norm.weight)


@pytest.mark.parametrize("training", [True, False])
def test_scoring_is_evaluation_and_restores_the_modes(training):
    """Also of a part that its owner has put into another mode than the whole."""
    data, module = federation(), Dropping()
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
    monkeypatch.setattr("fedrows.lifting.calibration.TOGETHER", 2)
    model.calibrate(params, data.train)
    for name, x in model.export(params).items():
        torch.testing.assert_close(x, whole[name])
