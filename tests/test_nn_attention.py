"""DIN's attention by the compiled kernel is what plain operations give; what is said without."""

from __future__ import annotations

import re

import fast_paths
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.func import functional_call, vmap

from fedrows import Plan, Simulation
from fedrows.algorithms.fedsubavg import FedSubAvg
from fedrows.models import din
from fedrows.nn import attention_compiled, fused, step_context
from fedrows.nn.interest_network import AttentionUnit
from fedrows.nn.kernels import cpp_library

NEAR = 1e-5  # of the largest number of a result


@pytest.fixture(scope="module")
def kernel():
    if why := attention_compiled.missing():
        pytest.skip(f"needs a C++ compiler: {why}")


@pytest.fixture
def calls(monkeypatch):
    """The calls of the kernel, by direction and number of groups."""
    found = []
    real = attention_compiled._call

    def counted(way: str, k: Tensor, *more: object) -> None:
        found.append((way, len(k)))
        real(way, k, *more)

    monkeypatch.setattr(attention_compiled, "_call", counted)
    return found


def unit_of(width: int, first: int = 80, second: int = 40) -> AttentionUnit:
    unit = AttentionUnit(width)
    unit.first, unit.second = nn.Linear(4 * width, first), nn.Linear(first, second)
    unit.third = nn.Linear(second, 1)
    return unit


def numbers_of(unit: nn.Module, clients: int, seed: int = 0) -> dict[str, Tensor]:
    """Weights of each client's own."""
    generator = torch.Generator().manual_seed(seed)
    return {
        name: torch.randn(clients, *x.shape, generator=generator) / max(x.shape[-1], 4) ** 0.5
        for name, x in unit.named_parameters()
    }


def attended(unit: nn.Module, numbers: dict[str, Tensor], q: Tensor, k: Tensor, mask: Tensor):
    """The results of a step of all clients, and what they change by everything there is."""
    leaves = [x.clone().requires_grad_() for x in (q, k, *numbers.values())]

    def run(q: Tensor, k: Tensor, mask: Tensor, *own: Tensor) -> tuple[Tensor, Tensor]:
        with step_context.step(torch.ones(len(q))):
            call = dict(zip((f"unit.{name}" for name in numbers), own, strict=True))
            return functional_call(_Attend(unit), call, (q, k, mask))

    results = vmap(run)(leaves[0], leaves[1], mask, *leaves[2:])
    generator = torch.Generator().manual_seed(9)
    total = sum((torch.randn(q.shape[1:], generator=generator).to(x) * x).sum() for x in results)
    changes = torch.autograd.grad(total, leaves, allow_unused=True)
    return [*(x.detach() for x in results), *changes]


class _Attend(nn.Module):
    def __init__(self, unit: AttentionUnit) -> None:
        super().__init__()
        self.unit = unit

    def forward(self, q: Tensor, k: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        return self.unit.attend(q, k, mask)


def lists(clients: int, batch: int, length: int, width: int, share: float, seed: int = 0):
    """Targets, lists, and which of their items are real."""
    generator = torch.Generator().manual_seed(seed)
    q, k = (
        torch.randn(clients, batch, *shape, generator=generator)
        for shape in ((width,), (length, width))
    )
    mask = torch.rand(clients, batch, length, generator=generator) < share
    return q, k * mask.unsqueeze(-1), mask


@given(
    clients=st.integers(1, 3),
    batch=st.integers(1, 5),
    length=st.integers(1, 30),
    width=st.integers(1, 20),
    first=st.integers(1, 40),
    second=st.integers(1, 40),
    share=st.sampled_from([0.0, 0.5, 1.0]),
    seed=st.integers(0, 9),
)
def test_the_kernel_equals_plain_operations_in_any_shape(
    kernel, clients, batch, length, width, first, second, share, seed
):
    unit = unit_of(width, first, second)
    numbers = numbers_of(unit, clients, seed)
    q, k, mask = lists(clients, batch, length, width, share, seed)
    mine = attended(unit, numbers, q, k, mask)
    exact = {name: x.double() for name, x in numbers.items()}
    its = attended(unit.double(), exact, q.double(), k.double(), mask)
    for a, b in zip(mine[:-1], its[:-1], strict=True):
        # Shares sum to 1, so scores' slopes cancel: what is left of them may be all rounding.
        near = NEAR * max(0.1, float(b.abs().max()))
        torch.testing.assert_close(a.double(), b, rtol=0, atol=near)
    assert mine[-1] is None  # a last bias moves no share; plain operations leave rounding there
    assert its[-1].abs().max() < 1e-12


def test_it_is_the_real_size_too(kernel, calls):
    unit = unit_of(18)
    numbers = numbers_of(unit, 3)
    q, k, mask = lists(3, 4, 100, 18, 0.8)
    mask[0, 0], mask[1, 2] = False, True
    mine = attended(unit, numbers, q, k, mask)
    assert calls == [("forward", 3), ("backward", 3)]  # once for all clients
    exact = {name: x.double() for name, x in numbers.items()}
    its = attended(unit.double(), exact, q.double(), k.double(), mask)
    assert len(calls) == 2  # none in float64
    for a, b in zip(mine[:-1], its[:-1], strict=True):
        torch.testing.assert_close(a.double(), b, rtol=0, atol=NEAR * float(b.abs().max()))
    for gone in (mine[0], mine[3]):
        assert not gone[0, 0].any()  # an empty list


def test_what_fills_a_list_up_does_not_matter(kernel):
    unit = unit_of(18)
    numbers = numbers_of(unit, 2)
    q, k, mask = lists(2, 3, 20, 18, 0.5)
    one = attended(unit, numbers, q, k, mask)
    other = attended(unit, numbers, q, torch.where(mask.unsqueeze(-1), k, torch.nan), mask)
    for a, b in zip(one[:-1], other[:-1], strict=True):
        assert torch.equal(a, b)
    assert not one[3][~mask].any()
    wrong = torch.where(mask.unsqueeze(-1), torch.nan, k)
    assert attended(unit, numbers, q, wrong, mask)[0].isnan().all()


def test_clients_threads_and_repetition_do_not_change_a_bit(kernel):
    unit = unit_of(18)
    numbers = numbers_of(unit, 5)
    given = lists(5, 4, 30, 18, 0.7)
    threads = torch.get_num_threads()
    try:
        found = []
        for count in (1, 1, 2, 3, 9):
            torch.set_num_threads(count)
            found.append(attended(unit, numbers, *given)[:-1])
    finally:
        torch.set_num_threads(threads)
    alone = [
        attended(
            unit, {n: x[i : i + 1] for n, x in numbers.items()}, *(x[i : i + 1] for x in given)
        )
        for i in range(5)
    ]
    found.append([torch.cat(parts) for parts in zip(*(x[:-1] for x in alone), strict=True)])
    for others in found[1:]:
        for a, b in zip(found[0], others, strict=True):
            assert torch.equal(a, b)


def test_when_the_kernel_is_used(monkeypatch):
    monkeypatch.setattr(attention_compiled, "missing", lambda: None)
    k = torch.ones(2, 3, 4)
    usable = attention_compiled.usable
    most, more = (torch.ones(attention_compiled.MOST + n, 1, 1) for n in (0, 1))
    assert all(map(usable, (k, most)))
    assert not any(map(usable, (k.double(), k.half(), k[:, :0], more)))
    with attention_compiled.plain_operations():
        assert not usable(k)
    assert usable(k)
    unit = AttentionUnit(4)
    assert not unit._has_kernel(k)  # outside of a client's step
    with step_context.step(torch.ones(2)):
        assert unit._has_kernel(k)
    monkeypatch.setattr(attention_compiled, "enabled", False)
    assert not usable(k)


def trained() -> tuple[dict[str, Tensor], list[str]]:
    """The numbers after a few rounds, and the notes."""
    data = fast_paths.federation("DIN")
    plan = Plan(rounds=3, clients_per_round=5, local_steps=12, device="cpu")
    run = Simulation(data, din.build(data), FedSubAvg(), plan)
    for _ in run:
        pass
    return run.tensors(), run.simulated.notes


def test_rounds_are_the_same_with_the_kernel_and_without(kernel, calls, monkeypatch):
    mine, notes = trained()
    assert calls
    assert notes == []
    again, _ = trained()
    calls.clear()
    monkeypatch.setattr(attention_compiled, "enabled", False)
    its, notes = trained()
    assert (calls, notes) == ([], [])
    for name, x in mine.items():
        assert torch.equal(x, again[name])
        torch.testing.assert_close(x, its[name], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("compiler", "said"),
    [("no-such", "there is no no-such, which .CXX names"), ("false", "/false failed")],
)
def test_without_a_compiler_rounds_go_on_plainly_and_it_is_said_once(
    compiler, said, calls, monkeypatch, tmp_path
):
    def forget() -> None:
        cpp_library.library.cache_clear()
        attention_compiled.missing.cache_clear()

    with monkeypatch.context() as here:
        here.setenv("CXX", compiler)
        here.setenv("XDG_CACHE_HOME", str(tmp_path))
        here.setattr(attention_compiled, "_lacked", None)
        forget()
        assert attention_compiled.notes() == []
        _, notes = trained()
        assert not calls
        (note,) = (x for x in notes if x.startswith("DIN's attention runs slower than it could: "))
        assert re.search(said, note)
    forget()


def test_a_kernel_whose_results_are_wrong_is_not_used(monkeypatch):
    monkeypatch.setattr(cpp_library, "library", lambda name: None)
    monkeypatch.setattr(cpp_library, "call", lambda *given: None)  # writes nothing
    attention_compiled.missing.cache_clear()
    assert attention_compiled.missing() == "the compiled kernel's results are wrong"
    attention_compiled.missing.cache_clear()


def test_both_gradients_of_a_list_may_be_wanted_or_one(kernel):
    unit = unit_of(3, 5, 4)
    w = [x.detach() for x in (unit.first.weight, unit.first.bias, unit.second.weight)]
    w += [unit.second.bias.detach(), unit.third.weight.detach()[0]]
    q, k, mask = (x[0] for x in lists(1, 2, 6, 3, 0.7))
    k = k.clone().requires_grad_()
    own = [x.unsqueeze(0) for x in (q, k, mask, *w)]
    pooled, total, *_ = fused.AttentionStep.apply(*own)
    (of_total,) = torch.autograd.grad(total.sum(), k, retain_graph=True)
    assert torch.equal(of_total, mask.unsqueeze(-1).expand_as(k).to(k))
    both = torch.autograd.grad(total.sum() + pooled.sum(), k, retain_graph=True)[0]
    (of_pooled,) = torch.autograd.grad(pooled.sum(), k)
    torch.testing.assert_close(both, of_total + of_pooled)
