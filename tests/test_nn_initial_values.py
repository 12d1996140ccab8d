"""Start values of a module depend on the seed and on names, and have the distributions of torch."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fedrows.nn import GRU, BatchNorm
from fedrows.nn.initial_values import start_, start_glorot_, start_of


class Mixed(nn.Module):
    def __init__(self, first: str = "item") -> None:
        super().__init__()
        for name in sorted(["item", "other"], key=lambda name: name != first):
            setattr(self, name, nn.Embedding(2000, 4, padding_idx=0))
        self.gru, self.layer, self.norm = GRU(4, 25), nn.Linear(16, 50), BatchNorm(3)


def test_start_values_depend_on_seed_and_name_alone():
    torch.manual_seed(1)
    one, again, other = Mixed(), Mixed(), Mixed("other")
    state = torch.get_rng_state()
    start_(one, 3)
    assert torch.equal(torch.get_rng_state(), state)
    start_(again, 3)
    start_(other, 3)
    torch.testing.assert_close(one.state_dict(), again.state_dict(), rtol=0, atol=0)
    torch.testing.assert_close(dict(other.state_dict()), dict(one.state_dict()), rtol=0, atol=0)
    start_(again, 4)
    assert not torch.equal(one.item.weight, again.item.weight)
    assert not torch.equal(one.item.weight, one.other.weight)


def test_start_values_have_torchs_distributions():
    module = Mixed()
    start_(module, 0, spread=0.1)
    item = module.item.weight.detach()
    assert (item[0] == 0).all()
    assert abs(item[1:].mean()) < 0.005
    assert item[1:].std() == pytest.approx(0.1, rel=0.05)
    for x, bound in [(module.layer.weight, 1 / 4), (module.gru.weight_hh_l0, 1 / 5)]:
        x = x.detach()
        assert 0.98 * bound < x.abs().max() <= bound
        assert x.std() == pytest.approx(bound / 3**0.5, rel=0.05)
    assert (module.norm.weight == 1).all()


def test_glorots_start_values():
    module = Mixed()
    before = module.gru.weight_hh_l0.detach().clone()
    start_glorot_(module, 5)
    for x, bound in [
        (module.item.weight, (6 / 2004) ** 0.5),
        (module.layer.weight, (6 / 66) ** 0.5),
    ]:
        x = x.detach()
        assert 0.98 * bound < x.abs().max() <= bound
        assert x.std() == pytest.approx(bound / 3**0.5, rel=0.05)
    assert (module.item.weight[0] == 0).all()
    assert (module.layer.bias == 0).all()
    assert torch.equal(module.gru.weight_hh_l0, before)


def test_a_row_that_is_drawn_when_it_is_read_is_the_one_in_memory():
    there, away = nn.Module(), nn.Module()
    there.item = nn.Embedding(500, 4, padding_idx=2)
    away.item = nn.Embedding(500, 4, padding_idx=2, device="meta")
    for module in (there, away):
        start_glorot_(module, 5)
    ids = torch.tensor([499, 0, 2, 77])
    rows = start_of(away.item, "item.weight")(ids)
    assert torch.equal(rows, there.item.weight.detach()[ids])
    assert (rows[2] == 0).all()
