"""Every fast path gives what the plain way gives, and is taken where it should be."""

from __future__ import annotations

from dataclasses import replace

import fast_paths
import pytest
import torch

from fedrows import Plan, Simulation
from fedrows.algorithms.fedsubavg import FedSubAvg
from fedrows.algorithms.scaffold import Scaffold
from fedrows.lifting.lifted import Lifted
from fedrows.models.logistic import Logistic
from fedrows.server import begin
from fedrows.simulator import chunks, recorded_rounds
from fedrows.simulator.fast_paths import PLAIN, FastPaths, fastest, fleet, round_runner


@pytest.mark.parametrize("check", [*fast_paths.checks("cpu")], ids=str)
def test_on_a_cpu(check, monkeypatch):
    monkeypatch.setattr(chunks, "_SLOW", 0.0)  # cut even rounds that are quick
    check.run()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("check", [*fast_paths.checks("cuda")], ids=str)
def test_on_a_gpu(check):
    check.run()


CUDA = Plan(clients_per_round=5, device="cpu")


@pytest.fixture
def on_gpu(monkeypatch):
    """Plans say that they run on a GPU; nothing is run."""
    monkeypatch.setattr(Plan, "torch_device", property(lambda plan: torch.device("cuda")))
    monkeypatch.setattr("fedrows.nn.kernels.missing", lambda: None)


def test_what_a_cpu_takes():
    data = fast_paths.federation("LR")
    paths = fastest(Logistic(data), FedSubAvg(), data, CUDA)
    assert paths == FastPaths(traces=True, measured_chunks=True)
    for without in (replace(CUDA, chunk=3), replace(CUDA, deterministic=True)):
        assert fastest(Logistic(data), FedSubAvg(), data, without) == FastPaths(traces=True)


def test_what_a_gpu_takes(on_gpu):
    data = fast_paths.federation("LR")
    model, everything = Logistic(data), FastPaths(False, False, True, True, True)
    without = replace(everything, recorded_rounds=False)
    assert fastest(model, FedSubAvg(), data, CUDA) == everything
    assert fastest(model, Scaffold(), data, CUDA) == without  # does more than add
    for change in ({"batches": "epoch"}, {"chunk": 2}, {"tables": "mapped"}):
        assert fastest(model, FedSubAvg(), data, replace(CUDA, **change)) == without
    assert fastest(model, FedSubAvg(), replace(data, local=frozenset(["item"])), CUDA) == without
    more = replace(CUDA, clients_per_round=99)  # refused by the plain round, in words
    assert fastest(model, FedSubAvg(), data, more) == without


def test_what_keeps_a_state_is_not_recorded_whatever_it_says(on_gpu):
    class Momentum(FedSubAvg):
        def start(self, params):
            return {"velocity": params.copy()}

    data = fast_paths.federation("LR")
    assert Momentum.additive
    assert not fastest(Logistic(data), Momentum(), data, CUDA).recorded_rounds


def test_one_client_after_another_is_plain(on_gpu):
    data = fast_paths.federation("own module")
    alone = Lifted(fast_paths.TwoTower(), data, one_by_one=True)
    assert fastest(alone, FedSubAvg(), data, CUDA) == PLAIN


def test_a_round_that_cannot_be_recorded_runs_plainly_and_says_so(monkeypatch):
    def refuse(*given):
        raise RuntimeError("operation not permitted when stream is capturing\nmore")

    monkeypatch.setattr(recorded_rounds, "_Round", refuse)
    data, plan = fast_paths.federation("LR"), replace(CUDA, rounds=3)
    model, algorithm = Logistic(data), FedSubAvg()
    mine, progress = fleet(model, algorithm, data, plan, PLAIN), begin(model, algorithm, plan)
    run_round = round_runner(mine, mine, plan, progress, FastPaths(recorded_rounds=True))
    for _ in range(3):
        run_round()
    simulation = Simulation(data, model, algorithm, plan, paths=PLAIN)
    assert [at.round for at in simulation] == [1, 2, 3]
    for name, x in simulation.progress.tensors().items():
        assert torch.equal(progress.tensors()[name], x)
    assert progress.bytes_up == simulation.progress.bytes_up > 0
    assert mine.notes == [
        "Rounds are not recorded as a whole, which is slower: operation not permitted when stream "
        "is capturing"
    ]
