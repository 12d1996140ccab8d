"""Stand-ins give what PyTorch's operations give, and draw by counters what those draw at random."""

from __future__ import annotations

import warnings

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.func import vmap
from torch.nn import functional as F

from fedrows.errors import ModelError
from fedrows.lifting.replaced_operations import (
    ReplacedOperations,
    embedding,
    embedding_bag,
    scaled_dot_product_attention,
)
from fedrows.nn import step_context

KEYS = torch.tensor([5, -(2**62), 7])


def alone(function, x: Tensor, key: Tensor) -> Tensor:
    with step_context.step(torch.ones(len(x)), key), ReplacedOperations():
        return function(x)


def cohort(function, x: Tensor) -> Tensor:
    return vmap(lambda one, key: alone(function, one, key))(x, KEYS)


ATTEND = nn.MultiheadAttention(8, 2, dropout=0.5, batch_first=True)
ENCODE = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.5, batch_first=True)


def encoder(x: Tensor) -> Tensor:
    return ENCODE(x, src_key_padding_mask=x[..., 0] > 2)


RANDOM = {
    "nn.Dropout": nn.Dropout(0.3),
    "F.dropout": lambda x: F.dropout(x, 0.3),
    "torch.dropout": lambda x: torch.dropout(x, 0.3, True),
    "in place": lambda x: F.dropout(x * 1, 0.3, inplace=True),
    "nn.Dropout1d": nn.Dropout1d(0.5),
    "nn.Dropout2d": lambda x: nn.Dropout2d(0.5)(x.unsqueeze(1)),
    "nn.Dropout3d": lambda x: nn.Dropout3d(0.5)(x[:, :, None, None]),
    "nn.AlphaDropout": nn.AlphaDropout(0.3),
    "nn.FeatureAlphaDropout": nn.FeatureAlphaDropout(0.3),
    "attention": lambda x: F.scaled_dot_product_attention(x, x, x, dropout_p=0.5),
    "nn.MultiheadAttention": lambda x: ATTEND(x, x, x)[0],
    "nn.TransformerEncoderLayer": encoder,
    "rand_like": torch.rand_like,
    "randn_like": torch.randn_like,
    "rand": lambda x: torch.rand(4, 5) + x.mean(),
    "randn": lambda x: torch.randn((4, 5), dtype=torch.float64) + x.mean(),
}


@pytest.mark.parametrize("function", RANDOM.values(), ids=RANDOM)
def test_a_client_draws_the_same_alone_as_in_a_cohort(function):
    torch.manual_seed(1)
    x = torch.randn(3, 4, 5, 8)
    before = torch.get_rng_state()
    together = cohort(function, x)
    assert torch.equal(torch.get_rng_state(), before)
    for k, key in enumerate(KEYS):
        torch.testing.assert_close(together[k], alone(function, x[k], key))
    again = cohort(function, x[:1].expand(3, -1, -1, -1))
    assert not torch.equal(again[0], again[1])  # each client draws its own


def test_dropout_leaves_the_share_and_the_mean():
    x = torch.ones(100, 200)
    dropped = alone(nn.Dropout(0.3), x, KEYS[0])
    assert dropped.unique().tolist() == pytest.approx([0, 1 / 0.7])
    assert float((dropped == 0).double().mean()) == pytest.approx(0.3, abs=0.01)
    # No row, no column, and no neighbours are alike: the bits behave as if independent.
    mask = (dropped == 0).double() - 0.3
    assert float(mask.mean(0).abs().max()) < 0.2
    assert float(mask.mean(1).abs().max()) < 0.15
    assert abs(float((mask[1:] * mask[:-1]).mean())) < 0.01
    assert abs(float((mask[:, 1:] * mask[:, :-1]).mean())) < 0.01


def test_alpha_dropout_leaves_mean_and_variance():
    torch.manual_seed(0)
    x = torch.randn(300, 300)
    dropped = alone(nn.AlphaDropout(0.4), x, KEYS[0])
    assert float(dropped.mean()) == pytest.approx(0, abs=0.02)
    assert float(dropped.var()) == pytest.approx(1, abs=0.02)


def test_feature_dropout_drops_whole_channels():
    dropped = alone(nn.Dropout1d(0.5), torch.ones(20, 10, 7), KEYS[0])
    assert torch.equal(dropped, dropped[..., :1].expand_as(dropped))
    assert 0.3 < float((dropped == 0).double().mean()) < 0.7


def test_every_call_of_a_step_draws_anew():
    x = torch.ones(10, 10)
    first, second = alone(lambda x: torch.stack([F.dropout(x), F.dropout(x)]), x, KEYS[0])
    assert not torch.equal(first, second)


def test_a_longer_axis_moves_no_mask():
    short, long = (alone(nn.Dropout(0.5), torch.ones(4, n, 3), KEYS[0]) for n in (5, 9))
    assert torch.equal(short, long[:, :5])


def test_everything_or_nothing_may_be_dropped():
    x = torch.ones(3, 3, requires_grad=True)
    assert alone(nn.Dropout(1.0), x, KEYS[0]).abs().sum() == 0
    assert alone(nn.AlphaDropout(1.0), x, KEYS[0]).abs().sum() == 0
    with step_context.step(torch.ones(3)), ReplacedOperations() as mode:  # no key: nothing is drawn
        for layer in (nn.Dropout(0.0), nn.Dropout(0.5).eval(), nn.AlphaDropout(0.5).eval()):
            assert torch.equal(layer(x), x)
    assert not mode.used


def test_drawing_without_a_key_is_refused():
    with (
        pytest.raises(ModelError, match="no key"),
        step_context.step(torch.ones(3)),
        ReplacedOperations(),
    ):
        F.dropout(torch.ones(3))


BAGS = {
    "mean": {},
    "sum": {"mode": "sum"},
    "max": {"mode": "max"},
    "padded mean": {"padding_idx": 0},
    "padded sum": {"mode": "sum", "padding_idx": 0},
    "padded max": {"mode": "max", "padding_idx": 0},
    "weighted": {"mode": "sum", "per_sample_weights": torch.randn(4, 5, dtype=torch.float64)},
    "weighted and padded": {
        "mode": "sum",
        "per_sample_weights": torch.randn(4, 5, dtype=torch.float64),
        "padding_idx": 0,
    },
}


@pytest.mark.parametrize("how", BAGS.values(), ids=BAGS)
def test_bags_are_pytorchs(how):
    torch.manual_seed(0)
    ids = torch.randint(0, 6, (4, 5))
    ids[1] = 0  # nothing but padding
    ids[2, 2:] = 0
    found = []
    for function in (embedding_bag, F.embedding_bag):
        weight = torch.randn(6, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
        result = function(ids, weight.requires_grad_(), **how)
        found.append((result, torch.autograd.grad(result.square().sum(), weight)[0]))
    torch.testing.assert_close(found[0], found[1], rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        ({"offsets": torch.tensor([0, 2])}, "offsets"),
        ({"max_norm": 1.0}, "max_norm"),
        ({"per_sample_weights": torch.ones(2, 2)}, "'sum'"),
    ],
)
def test_bags_that_cannot_be_lifted_are_refused(arguments, names):
    ids = torch.zeros(4 if "offsets" in arguments else (2, 2), dtype=torch.int64)
    with pytest.raises(ModelError, match=names):
        embedding_bag(ids, torch.ones(3, 2), **arguments)


MASK = torch.tensor([[True, True, False], [False, False, False], [True, False, True]])
ATTENTION = {
    "plain": {},
    "causal": {"is_causal": True},
    "mask": {"attn_mask": MASK},
    "added mask": {"attn_mask": torch.where(MASK, 0.5, -torch.inf).double()},
    "scale": {"scale": 0.2},
    "shared heads": {"enable_gqa": True},
}


@pytest.mark.parametrize("how", ATTENTION.values(), ids=ATTENTION)
def test_attention_is_pytorchs(how):
    torch.manual_seed(0)
    shared = "enable_gqa" in how
    parts = [torch.randn(2, heads, 3, 4, dtype=torch.float64) for heads in (4, 4, 4)]
    if shared:
        parts[1:] = [x[:, :2] for x in parts[1:]]
    found = []
    for function in (scaled_dot_product_attention, F.scaled_dot_product_attention):
        leaves = [x.clone().requires_grad_() for x in parts]
        result = function(*leaves, **how)
        found.append([result, *torch.autograd.grad(result.square().sum(), leaves)])
    torch.testing.assert_close(found[0], found[1], rtol=0, atol=1e-12)


def test_attention_in_a_cohort_runs_no_hidden_loop():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        cohort(encoder, torch.randn(3, 4, 5, 8))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("function", [nn.Dropout(0.3), nn.Dropout1d(0.5), torch.rand_like])
def test_a_gpu_draws_the_same(function):
    x = torch.ones(4, 5, 8)
    found = alone(function, x.cuda(), KEYS[0].cuda())
    torch.testing.assert_close(found.cpu(), alone(function, x, KEYS[0]))


@pytest.mark.parametrize("nothing", [None, 0, 2])
@given(
    ids=st.lists(st.lists(st.integers(0, 4), min_size=3, max_size=3), min_size=1, max_size=40),
    width=st.integers(1, 9),
    kind=st.sampled_from([torch.float32, torch.float64]),
)
def test_rows_and_their_gradients_are_pytorchs_to_the_bit(nothing, ids, width, kind):
    places = torch.tensor(ids)[:, None]  # (K, 1, 3): each client has an example
    generator = torch.Generator().manual_seed(0)
    above = torch.randn(*places.shape, width, dtype=kind, generator=generator)
    block = torch.randn(5, width, dtype=kind, generator=generator).requires_grad_()

    def rows(own):
        with ReplacedOperations():
            return F.embedding(own, block, nothing)

    found, plain = vmap(rows)(places), F.embedding(places, block, nothing)
    assert torch.equal(found, plain)
    assert embedding(places, block, nothing) is not NotImplemented  # it is the replacement's
    mine, its = (torch.autograd.grad((x * above).sum(), block)[0] for x in (found, plain))
    assert torch.equal(mine, its)
