"""Every layer of fedrows.nn equals its torch counterpart, lifted or not; padding has no effect."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from layers import FORMS, made
from torch import Tensor, nn
from torch.func import functional_call, vmap

from fedrows.errors import ModelError
from fedrows.nn import GRU, LSTM, AttentionPooling, BatchNorm, Dice, step_context

CLOSE = {"rtol": 0.0, "atol": 1e-10}
RECURRENT = {LSTM: nn.LSTM, GRU: nn.GRU}


def flat(found: object) -> list[Tensor]:
    """All tensors of a result."""
    if isinstance(found, Tensor):
        return [found]
    assert isinstance(found, tuple)
    return [x for part in found for x in flat(part)]


def gradients(results: list[Tensor], leaves: list[Tensor]) -> tuple[Tensor, ...]:
    """The gradient of a sum with uneven weights, so that no two numbers can change places."""
    total = sum((made(*x.shape, seed=7 + n) * x).sum() for n, x in enumerate(results))
    assert isinstance(total, Tensor)
    return torch.autograd.grad(total, leaves, materialize_grads=True)


def assert_alike(one: nn.Module, other: nn.Module, *inputs: Tensor) -> None:
    """Values, and gradients of parameters and of inputs that have one."""
    sides = []
    for module in (one, other):
        own = [x.clone().requires_grad_() if x.is_floating_point() else x for x in inputs]
        leaves = [x for x in own if x.requires_grad] + list(module.parameters())
        results = flat(module(*own))
        sides.append((results, gradients(results, leaves)))
    torch.testing.assert_close(sides[0], sides[1], **CLOSE)


@pytest.mark.parametrize("ours", RECURRENT)
@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_recurrent_layers_equal_torchs(ours, form):
    layer = ours(3, 4, dtype=torch.float64, **form)
    theirs = RECURRENT[ours](3, 4, dtype=torch.float64, **form)
    layer.load_state_dict(theirs.state_dict())
    assert [*layer.state_dict()] == [*theirs.state_dict()]
    assert_alike(layer, theirs, made(5, 6, 3))
    fresh = ours(3, 4, dtype=torch.float64, **form)
    theirs.load_state_dict(fresh.state_dict())
    assert_alike(fresh, theirs, made(1, 1, 3))


@pytest.mark.parametrize("ours", RECURRENT)
@pytest.mark.parametrize("form", [{"num_layers": 2}, {"bidirectional": True}])
def test_recurrent_layers_start_from_a_given_state(ours, form):
    layer = ours(3, 4, dtype=torch.float64, **form)
    theirs = RECURRENT[ours](3, 4, dtype=torch.float64, **form)
    theirs.load_state_dict(layer.state_dict())
    states = [made(2, 6, 4, seed=n) for n in range(2 if ours is LSTM else 1)]

    class Given(nn.Module):
        def __init__(self, inner: nn.Module) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, x: Tensor, *state: Tensor) -> object:
            return self.inner(x, state if ours is LSTM else state[0])

    assert_alike(Given(layer), Given(theirs), made(5, 6, 3), *states)


@pytest.mark.parametrize("ours", RECURRENT)
def test_recurrent_layers_equal_torchs_in_float32(ours):
    layer, theirs = ours(3, 4), RECURRENT[ours](3, 4)
    theirs.load_state_dict(layer.state_dict())
    x = made(5, 6, 3).float()
    torch.testing.assert_close(layer(x)[0], theirs(x)[0])
    assert layer(x)[0].dtype == torch.float32


def test_what_recurrent_layers_cannot_do_is_refused():
    with pytest.raises(ModelError, match="proj_size=2"):
        LSTM(3, 4, proj_size=2)
    with pytest.raises(ModelError, match=r"F = 3, but got \(2, 5, 4\)"):
        GRU(3, 4)(made(2, 5, 4))
    with pytest.raises(ModelError, match="PackedSequence"):
        LSTM(3, 4)(nn.utils.rnn.pack_sequence([made(2, 3)]))


def moved(norm: nn.Module) -> nn.Module:
    """The same layer, in float64, with other numbers than 0 and 1."""
    norm = norm.double()
    for n, x in enumerate(norm.parameters()):
        x.data = made(*x.shape, seed=n)
    return norm


@pytest.mark.parametrize("affine", [True, False])
def test_batch_norm_equals_torchs(affine):
    norm, theirs = moved(BatchNorm(3, affine=affine)), nn.BatchNorm1d(3, affine=affine).double()
    theirs.load_state_dict(norm.state_dict())
    x = made(6, 3) * 2 + 5
    assert_alike(norm, theirs, x)
    norm.load_state_dict(theirs.state_dict())  # their running averages have moved
    assert_alike(norm.eval(), theirs.eval(), x)


def test_batch_norm_of_lists_equals_torchs():
    norm, theirs = moved(BatchNorm(3)), nn.BatchNorm1d(3).double()
    theirs.load_state_dict(norm.state_dict())
    x = made(6, 4, 3)
    torch.testing.assert_close(norm(x), theirs(x.mT).mT, **CLOSE)


@pytest.mark.parametrize("kind", [BatchNorm, Dice])
@pytest.mark.parametrize("shape", [(5, 3), (5, 4, 3)])
def test_examples_of_weight_0_do_not_count(kind, shape):
    layer, x = moved(kind(3)), made(*shape)
    with step_context.step(torch.tensor([1.0, 0.0, 1.0, 1.0, 0.0], dtype=torch.float64)):
        found = layer(x)
    kept = torch.tensor([0, 2, 3])
    with step_context.step(torch.ones(3, dtype=torch.float64)):
        torch.testing.assert_close(found[kept], layer(x[kept]), **CLOSE)
    assert found.isfinite().all()


@pytest.mark.parametrize("kind", [BatchNorm, Dice])
def test_a_weight_of_2_counts_as_two_examples(kind):
    layer, x = moved(kind(3)), made(2, 3)
    with step_context.step(torch.tensor([2.0, 1.0], dtype=torch.float64)):
        found = layer(x)
    torch.testing.assert_close(found, layer(x[torch.tensor([0, 1, 0])])[:2], **CLOSE)


@pytest.mark.parametrize("kind", [BatchNorm, Dice])
def test_masked_positions_do_not_count(kind):
    layer, x = moved(kind(3)), made(2, 4, 3)
    mask = torch.tensor([[True, True, False, False], [True, True, True, False]])
    found = layer(x, mask)[mask]
    torch.testing.assert_close(found, layer(x[mask]), **CLOSE)


@pytest.mark.parametrize("kind", [BatchNorm, Dice])
def test_a_client_without_examples_has_gradients_of_0(kind):
    layer, weight = moved(kind(3)), torch.zeros(4, dtype=torch.float64)
    x = made(4, 3).requires_grad_()
    with step_context.step(weight):
        lost = (layer(x).sum(1) * weight).sum()
    found = torch.autograd.grad(lost, [x, *layer.parameters()])
    assert all((g == 0).all() for g in found)


def test_moments_of_a_sample_are_measured_whatever_the_slices():
    x = made(10, 3) * 3 + 1
    for cuts in ([10], [4, 6], [1, 2, 7]):
        norm = BatchNorm(3).double().eval()
        norm.begin_measuring()
        for part in x.split(cuts):
            with step_context.step(torch.ones(len(part)), measuring=True):
                found = norm(part)
            with step_context.step(torch.ones(len(part))):
                torch.testing.assert_close(found, norm(part))  # by the slice's own moments
        norm.end_measuring()
        torch.testing.assert_close(norm.running_mean, x.mean(0), **CLOSE)
        torch.testing.assert_close(norm.running_var, x.var(0, correction=0), **CLOSE)
        torch.testing.assert_close(norm(x), nn.BatchNorm1d(3).double()(x), **CLOSE)


def test_measuring_starts_anew_and_an_unused_layer_keeps_its_moments():
    norm = BatchNorm(2)
    for value in (1.0, 5.0):
        norm.begin_measuring()
        with step_context.step(torch.ones(2), measuring=True):
            norm(torch.tensor([[value, 0.0], [value, 2.0]]))
        norm.end_measuring()
    assert norm.running_mean.tolist() == [5, 1]
    assert norm.running_var.tolist() == [0, 1]
    norm.begin_measuring()
    norm.end_measuring()
    assert norm.running_mean.tolist() == [5, 1]


@pytest.mark.parametrize("kind", [BatchNorm, Dice])
def test_in_evaluation_an_example_stands_alone(kind):
    layer, x = moved(kind(3)).eval(), made(5, 3)
    torch.testing.assert_close(layer(x)[2:3], layer(x[2:3]), **CLOSE)


def test_training_keeps_nothing():
    norm = BatchNorm(3).double()
    before = copy.deepcopy(norm.state_dict())
    with step_context.step(torch.ones(5)):
        norm(made(5, 3))
    torch.testing.assert_close(norm.state_dict(), before, rtol=0, atol=0)


def test_dice_by_hand():
    dice = Dice(1, eps=0.0)
    dice.alpha.data = torch.tensor([0.25])
    found = dice(torch.tensor([[1.0], [3.0]]))  # normalised: −1 and 1
    p = torch.sigmoid(torch.tensor([[-1.0], [1.0]]))
    torch.testing.assert_close(found, torch.tensor([[1.0], [3.0]]) * (p + (1 - p) / 4))


def test_a_batch_of_one_example_over_and_over_is_not_all_noise():
    dice, x = Dice(200).double(), made(1, 200)
    whole = torch.cat([x, x, x * (1 + 1e-15)])  # equal but for rounding
    torch.testing.assert_close(dice(whole)[2:], dice(x), rtol=0, atol=1e-12)


def test_attention_by_hand():
    scores = torch.tensor([[0.0, torch.tensor(3.0).log(), 9.0]])
    mask = torch.tensor([[True, True, False]])
    values = torch.tensor([[[4.0, 0.0], [0.0, 8.0], [99.0, 99.0]]])
    found = AttentionPooling()(scores, mask, values)
    torch.testing.assert_close(found, torch.tensor([[1.0, 6.0]]))


def test_an_empty_list_attends_to_zeros_and_has_no_gradient():
    scores, values = made(2, 3).requires_grad_(), made(2, 3, 4).requires_grad_()
    mask = torch.tensor([[False, False, False], [True, False, True]])
    found = AttentionPooling()(scores, mask, values)
    assert (found[0] == 0).all()
    to_scores, to_values = torch.autograd.grad(found.square().sum(), [scores, values])
    assert to_scores.isfinite().all()
    assert (to_scores[~mask] == 0).all()
    assert (to_values[~mask] == 0).all()
    assert (to_values[mask] != 0).all()


@given(lengths=st.lists(st.integers(0, 4), min_size=1, max_size=4), more=st.integers(1, 3))
def test_longer_padding_changes_no_attention(lengths, more):
    longest = max(lengths) + more
    mask = torch.arange(longest) < torch.tensor(lengths)[:, None]
    scores, values = made(len(lengths), longest), made(len(lengths), longest, 2)
    long = AttentionPooling()(scores, mask, values)
    cut = slice(0, longest - more)
    if longest > more:
        short = AttentionPooling()(scores[:, cut], mask[:, cut], values[:, cut])
        torch.testing.assert_close(long, short, **CLOSE)
    else:
        assert (long == 0).all()


class Weighted(nn.Module):
    """A layer in a client's step, in which the last example only fills the batch."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor, weight: Tensor) -> Tensor:
        with step_context.step(weight):
            return self.inner(x) * weight[:, None]


WEIGHT = torch.tensor([[1.0, 1, 1, 0], [1, 1, 0, 0], [1, 1, 1, 1]], dtype=torch.float64)
LIFTED: dict[str, tuple[Callable[[], nn.Module], list[Tensor]]] = {
    **{
        f"{kind.__name__}, {name}": (
            lambda kind=kind, form=form: kind(3, 4, dtype=torch.float64, **form),
            [made(3, 5, 6, 3)],
        )
        for kind in RECURRENT
        for name, form in FORMS.items()
    },
    "BatchNorm": (lambda: moved(Weighted(BatchNorm(3))), [made(3, 4, 3), WEIGHT]),
    "Dice": (lambda: moved(Weighted(Dice(3))), [made(3, 4, 3), WEIGHT]),
    "AttentionPooling": (
        AttentionPooling,
        [made(3, 2, 4), made(3, 2, 4) > 0, made(3, 2, 4, 5)],
    ),
}


@pytest.mark.parametrize("clients", [3, 1])
@pytest.mark.parametrize(("make", "inputs"), LIFTED.values(), ids=LIFTED)
def test_lifted_layers_equal_a_loop_over_clients(make, inputs, clients):
    module = make()
    numbers = {
        name: made(clients, *x.shape, seed=n).requires_grad_()
        for n, (name, x) in enumerate(module.named_parameters())
    }
    inputs = [x[:clients] for x in inputs]
    inputs = [x.clone().requires_grad_() if x.is_floating_point() else x for x in inputs]
    leaves = [*numbers.values(), *(x for x in inputs if x.requires_grad)]

    def call(numbers: dict[str, Tensor], *inputs: Tensor) -> list[Tensor]:
        return flat(functional_call(module, numbers, inputs))

    lifted = vmap(call)(numbers, *inputs)
    one_by_one = [
        call({name: x[k] for name, x in numbers.items()}, *(x[k] for x in inputs))
        for k in range(clients)
    ]
    alone = [torch.stack(parts) for parts in zip(*one_by_one, strict=True)]
    torch.testing.assert_close(lifted, alone, **CLOSE)
    torch.testing.assert_close(gradients(lifted, leaves), gradients(alone, leaves), **CLOSE)


@pytest.mark.parametrize("kind", RECURRENT)
def test_recurrent_layers_lift_twice_and_with_shared_weights(kind):
    layer = kind(3, 4, dtype=torch.float64)
    x = made(2, 3, 5, 6, 3)
    found = vmap(vmap(lambda x: layer(x)[0]))(x)
    alone = torch.stack([torch.stack([layer(x)[0] for x in some]) for some in x])
    torch.testing.assert_close(found, alone, **CLOSE)
    own = list(layer.parameters())
    torch.testing.assert_close(gradients([found], own), gradients([alone], own), **CLOSE)


@pytest.mark.gpu
@pytest.mark.parametrize("kind", RECURRENT)
def test_recurrent_layers_equal_torchs_on_a_gpu(kind):
    if not torch.cuda.is_available():
        pytest.skip("needs a GPU")
    layer = kind(3, 4, num_layers=2, dtype=torch.float64, device="cuda")
    theirs = RECURRENT[kind](3, 4, num_layers=2, dtype=torch.float64, device="cuda")
    theirs.load_state_dict(layer.state_dict())
    x = made(5, 6, 3).cuda()
    torch.testing.assert_close(layer(x)[0], theirs(x)[0], **CLOSE)
