"""Sums in a fixed order: PyTorch's modes while a round runs, what is said, and equal bits."""

from __future__ import annotations

import os
import warnings

import pytest
import torch

from benchmarks.speed import shapes
from fedrows import simulate
from fedrows.algorithms.fedsubavg import FedSubAvg
from fedrows.data.federation import FederatedData
from fedrows.models import lstm
from fedrows.nn import fused
from fedrows.plan import Plan
from fedrows.simulation import Simulation
from fedrows.simulator.deterministic import deterministic, fixed_order
from fedrows.simulator.fast_paths import PLAIN


@pytest.fixture(autouse=True)
def _workspace(monkeypatch):
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)


def modes() -> tuple[bool, bool, bool]:
    return (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
        deterministic.fill_uninitialized_memory,
    )


def test_modes_hold_inside_and_come_back():
    before = modes()
    assert before[0] is False
    with fixed_order():
        assert modes() == (True, True, False)
        assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
    assert modes() == before
    with pytest.raises(KeyError), fixed_order():
        raise KeyError
    assert modes() == before


def test_operations_without_an_order_are_named_once_and_other_warnings_pass():
    def heard() -> list[str]:
        with fixed_order() as unsteady:
            for _ in range(2):
                warnings.warn("sum_cuda does not have a deterministic order.", stacklevel=1)
            warnings.warn("something else", stacklevel=1)
        return unsteady

    with pytest.warns(UserWarning, match="^something else$"):
        assert heard() == ["sum_cuda"]


def test_kernels_that_add_in_any_order_are_left_out(monkeypatch):
    monkeypatch.setattr(fused, "usable", lambda x: True)
    assert fused.adds_freely(torch.ones(1))
    with fixed_order():
        assert not fused.adds_freely(torch.ones(1))


def texts() -> FederatedData:
    return FederatedData.build(
        client=[0, 0, 1, 1],
        ids={"text": [[1, 2, 0], [2, 3, 4], [3, 0, 0], [0, 0, 0]]},
        tables={"text": 5},
        label=[0, 1, 0, 1],
        test=[False] * 4,
        padded=["text"],
    )


def test_a_run_says_what_has_no_order(monkeypatch):
    data = texts()
    model = lstm.build(data)
    real = model.gradient

    def gradient(*given):
        if torch.are_deterministic_algorithms_enabled():
            warnings.warn("x_cuda does not have a deterministic implementation", stacklevel=1)
        return real(*given)

    monkeypatch.setattr(model, "gradient", gradient)
    runs = []
    for fixed in (False, True):
        plan = Plan(rounds=3, clients_per_round=2, device="cpu", deterministic=fixed)
        runs.append(Simulation(data, model, FedSubAvg(), plan, paths=PLAIN))
        for _ in runs[-1]:
            pass
    quiet, told = (run.simulated.notes for run in runs)
    assert [note for note in told if note not in quiet] == [
        "Last bits may differ when it is repeated: PyTorch has no fixed order for x_cuda."
    ]
    dense = (run.progress.params.dense.values() for run in runs)
    numbers = zip(*dense, strict=True)
    assert all(torch.equal(a, b) for a, b in numbers)  # on a CPU the order is fixed anyway


def test_the_last_word_of_a_text_is_read():
    data = texts()
    module = lstm.build(data).module
    ids = torch.tensor([[1, 2, 0], [2, 3, 4], [3, 0, 0], [0, 0, 0]])
    hidden, _ = module.lstm(module.token(ids))
    ends = torch.stack([hidden[0, 1], hidden[1, 2], hidden[2, 0], torch.zeros(lstm.HIDDEN)])
    torch.testing.assert_close(module(text=ids), module.output(ends)[:, 0])


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("make", [shapes.texts, shapes.clicks, shapes.own])
def test_a_gpu_gives_the_same_bits_twice(make):
    shape = make("cuda")
    ends = []
    for _ in range(2):
        plan = {"rounds": 5, "clients_per_round": 20, "device": "cuda", "deterministic": True}
        params = simulate(shape.data, shape.model(), **plan).params
        ends.append([*params.tables.values(), *params.dense.values()])
    assert all(torch.equal(a, b) for a, b in zip(*ends, strict=True))
