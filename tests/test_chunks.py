"""However a cohort is cut, and on however many threads, it trains to the same numbers."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedrows.algorithms.fedsubavg import FedSubAvg
from fedrows.algorithms.scaffold import Scaffold
from fedrows.client import PlainTrainer
from fedrows.data.federation import FederatedData
from fedrows.lifting.lifted import Lifted
from fedrows.model import logistic_loss, sigmoid
from fedrows.models import din, lstm
from fedrows.models.logistic import Logistic
from fedrows.plan import Plan
from fedrows.simulation import Simulation
from fedrows.simulator import chunks
from fedrows.simulator.chunks import Chunks, cut, fastest

CLIENTS = 7
PLAN = Plan(
    rounds=2, clients_per_round=6, local_steps=2, batch_size=3, device="cpu", dtype="float64"
)


def clicks() -> FederatedData:
    rng, owner = np.random.default_rng(0), np.repeat(np.arange(CLIENTS), 4)
    return FederatedData.build(
        client=owner,
        ids={
            "user": owner,
            "item": rng.integers(1, 20, len(owner)),
            "history": rng.integers(0, 20, (len(owner), 5)),
        },
        fields={"user": "user", "item": "item", "history": "item"},
        tables={"user": CLIENTS, "item": 20},
        padded=["item"],
        label=rng.integers(0, 2, len(owner)),
        test=np.zeros(len(owner), dtype=bool),
    )


def texts() -> FederatedData:
    rng, owner = np.random.default_rng(1), np.repeat(np.arange(CLIENTS), 4)
    return FederatedData.build(
        client=owner,
        ids={"text": rng.integers(0, 9, (len(owner), 3))},
        tables={"text": 9},
        padded=["text"],
        label=rng.integers(0, 2, len(owner)),
        test=np.zeros(len(owner), dtype=bool),
    )


def run(data, model, algorithm, way=None, plan=PLAN) -> list[torch.Tensor]:
    simulation = Simulation(data, model, algorithm, plan)
    simulation.fleet.chunks = way
    for _ in simulation:
        pass
    params = simulation.progress.whole()
    return [*params.tables.values(), *params.dense.values()]


@pytest.mark.parametrize("way", [Chunks(3), Chunks(1), Chunks(3, 2), Chunks(2, 3), Chunks(1, 2)])
@pytest.mark.parametrize("made", [(clicks, din.build), (texts, lstm.build)], ids=["din", "lstm"])
@pytest.mark.parametrize("algorithm", [FedSubAvg(), Scaffold()], ids=["fedsubavg", "scaffold"])
def test_chunks_and_threads_change_nothing(way, made, algorithm):
    data, model = made[0](), made[1](made[0]())
    whole = run(data, model, algorithm, Chunks(6))
    torch.testing.assert_close(run(data, model, algorithm, way), whole, rtol=0, atol=1e-10)


@pytest.mark.parametrize("size", [1, 3, 7, 25, 32])
def test_a_sigmoid_is_the_same_wherever_it_stands(size):
    scores = torch.linspace(-20, 20, 10_007)
    pieces = [sigmoid(piece) for piece in scores.split(size)]
    assert torch.equal(torch.cat(pieces), sigmoid(scores))


@pytest.mark.parametrize("parts", [1, 2, 5])
@pytest.mark.parametrize("threads", [1, 2, 4, 16])
@pytest.mark.parametrize("cohort", [1, 2, 7, 50, 5_000])
def test_a_cut_holds_the_cohort(cohort, threads, parts):
    way = cut(cohort, threads, parts)
    assert 1 <= way.clients <= min(cohort, 1_000)  # beyond that, a step has left the cache
    assert 1 <= way.at_a_time <= threads
    assert way.bounds(cohort)[-1] == cohort


def timed(monkeypatch, seconds: dict[Chunks, float], cohort: int, threads: int) -> Chunks:
    """What is chosen if each way takes so many seconds."""
    now = 0.0
    monkeypatch.setattr(chunks.time, "perf_counter", lambda: now)

    def train(way: Chunks) -> None:
        nonlocal now
        now += seconds.get(way, 100.0)

    return fastest(train, cohort, threads)


def test_the_fastest_way_is_taken_if_it_is_clearly_faster(monkeypatch):
    halves = Chunks(25, 2)
    assert timed(monkeypatch, {Chunks(50): 2.0, halves: 1.0}, 50, 2) == halves
    assert timed(monkeypatch, {Chunks(50): 2.0, halves: 1.9}, 50, 2) == Chunks(50)
    assert timed(monkeypatch, {Chunks(50): 0.1, halves: 0.01}, 50, 2) == Chunks(50)  # not worth it


def test_threads_are_doubled_until_they_are_slower(monkeypatch):
    seconds = {Chunks(48): 8.0, Chunks(24, 2): 4.0, Chunks(12, 4): 3.0, Chunks(6, 8): 3.5}
    best = Chunks(6, 4)
    assert timed(monkeypatch, seconds | {best: 2.5, Chunks(3, 16): 0.1}, 48, 16) == best
    assert timed(monkeypatch, seconds, 48, 16) == Chunks(12, 4)
    seconds = {Chunks(48): 8.0, Chunks(24, 2): 2.0, Chunks(16, 3): 1.0}
    assert timed(monkeypatch, seconds, 48, 3) == Chunks(16, 3)


def test_threads_of_every_number_are_had():
    data, model = clicks(), din.build(clicks())
    simulation = Simulation(data, model, FedSubAvg(), PLAN)
    pools = [simulation.fleet.trainer._pool(count) for count in (2, 2, 3)]
    assert pools[0] is pools[1]
    assert [pool._max_workers for pool in pools] == [2, 2, 3]


def test_a_quick_round_is_not_cut_and_a_given_chunk_is_kept():
    data = clicks()
    for chunk, expected in ((None, Chunks(6)), (4, Chunks(4))):
        plan = Plan(rounds=1, clients_per_round=6, chunk=chunk, device="cpu")
        simulation = Simulation(data, Logistic(data), FedSubAvg(), plan)
        for _ in simulation:
            pass
        assert simulation.fleet.chunks == expected


def test_a_cohort_that_does_not_fit_trains_in_smaller_chunks(monkeypatch):
    data, model = clicks(), Logistic(clicks())
    whole = run(data, model, Scaffold())
    simulation = Simulation(data, model, Scaffold(), PLAN)
    trainer = simulation.fleet.trainer.inner
    train = trainer.train

    def small_memory(self, given):
        if len(given.local.clients) > 2:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return train(given)

    monkeypatch.setattr(PlainTrainer, "train", small_memory)
    for _ in simulation:
        pass
    params = simulation.progress.whole()
    found = [*params.tables.values(), *params.dense.values()]
    torch.testing.assert_close(found, whole, rtol=0, atol=1e-12)
    assert simulation.fleet.notes == [
        "A cohort of 6 does not fit into the GPU's memory: it trains in chunks of 2."
    ]


def test_one_client_that_does_not_fit_is_an_error(monkeypatch):
    data = clicks()
    simulation = Simulation(data, Logistic(data), FedSubAvg(), PLAN)

    def no_memory(*more):
        raise torch.OutOfMemoryError("CUDA out of memory.")

    monkeypatch.setattr(PlainTrainer, "train", no_memory)
    with pytest.raises(torch.OutOfMemoryError):
        next(iter(simulation))


def test_a_known_derivative_is_the_losss_own():
    data = clicks()
    known, other = (din.build(data) for _ in range(2))
    other.loss = lambda scores, label: logistic_loss(scores, label)  # which nobody knows
    assert isinstance(known, Lifted)
    for batches in ("draw", "epoch"):
        plan = Plan(**{**vars(PLAN), "batches": batches})
        expected = run(data, known, FedSubAvg(), plan=plan)
        found = run(data, other, FedSubAvg(), plan=plan)
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
