"""Several ranks make the run of one process: the same numbers, and touched rows only.

Ranks are threads here; tests/test_torchrun.py has processes.
"""

from __future__ import annotations

import itertools
import socket
import threading
from collections.abc import Callable, Mapping

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from ranked import positives
from threads import Module, Threads, as_ranks, federation, plan_of
from torch import Tensor, nn

from fedrows import catalogue
from fedrows.algorithm import Algorithm
from fedrows.algorithms.fedavg import FedAvg
from fedrows.algorithms.rowadam import RowAdam
from fedrows.algorithms.scaffold import Scaffold
from fedrows.algorithms.steppedmean import SteppedMean
from fedrows.data.federation import FederatedData
from fedrows.errors import PlanError
from fedrows.lifting.lifted import Lifted
from fedrows.models.logistic import Logistic
from fedrows.plan import Plan
from fedrows.server import begin, rounds
from fedrows.simulator.chunks import Chunks
from fedrows.simulator.process_group import RankError, RankGroup
from fedrows.simulator.simulated_fleet import SimulatedFleet
from fedrows.simulator.torchrun_fleet import TorchrunFleet, cuts

ALGORITHMS = {
    name: catalogue.algorithm(name)()
    for name in catalogue.names("algorithm")
    if name != "centralsgd"  # which has no cohort to split
}
LAZY = Scaffold(lazy=True)

Found = tuple[dict[str, Tensor], int]


def training(
    algorithm: Algorithm,
    plan: Plan,
    data: FederatedData | None = None,
    module: nn.Module | None = None,
) -> Callable[[RankGroup | None], Callable[[], Found]]:
    """A run that gives all that its next round would depend on, and the bytes a rank has sent."""

    def prepare(everyone: RankGroup | None) -> Callable[[], Found]:
        its = data or federation()
        model = Logistic(its) if module is None else Lifted(module, its, one_by_one=True)
        inner = SimulatedFleet(model, algorithm, its, plan)
        fleet = inner if everyone is None else TorchrunFleet(inner, everyone)
        progress = begin(model, algorithm, plan, its.local)

        def run() -> Found:
            for _ in rounds(fleet, plan, progress):
                pass
            found = progress.tensors()
            if inner.kept is not None:
                found |= inner.kept.rows | inner.kept.dense
            return found, getattr(fleet, "exchanged", 0)

        return run

    return prepare


def worst(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> float:
    """The largest difference, relative to the largest number of each tensor."""
    assert a.keys() == b.keys()
    return max(float((a[x] - b[x]).abs().max() / a[x].abs().max().clamp(min=1e-9)) for x in a)


@pytest.mark.parametrize("name", ALGORITHMS)
@pytest.mark.parametrize("batches", ["draw", "epoch"])
def test_three_ranks_are_one_process(name: str, batches: str) -> None:
    run = training(ALGORITHMS[name], plan_of(batches=batches))
    alone, _ = run(None)()
    for there, _ in as_ranks(3, run):
        assert worst(alone, there) < 1e-11


@pytest.mark.parametrize("algorithm", [*ALGORITHMS.values(), LAZY], ids=repr)
def test_to_the_last_bit_if_chunks_are_the_same(algorithm: Algorithm) -> None:
    run = training(algorithm, plan_of(chunk=2, dtype="float32"))
    alone, _ = run(None)()
    for there, _ in as_ranks(2, run):
        assert worst(alone, there) == 0


@pytest.mark.parametrize("algorithm", [*ALGORITHMS.values(), LAZY], ids=repr)
def test_to_the_last_bit_if_they_are_not(algorithm: Algorithm) -> None:
    run = training(algorithm, plan_of(dtype="float32"))
    alone, _ = run(None)()
    for there, _ in as_ranks(3, run):
        assert worst(alone, there) == 0


def test_a_module_with_wide_rows_and_dense_layers() -> None:
    run = training(Scaffold(), plan_of(rounds=3), None, Module(40))
    alone, _ = run(None)()
    for there, _ in as_ranks(2, run):
        assert worst(alone, there) < 1e-11


def test_rows_that_stay_with_their_client() -> None:
    run = training(Scaffold(), plan_of(), federation(local=["user"]))
    alone, _ = run(None)()
    for there, _ in as_ranks(2, run):
        assert worst(alone, there) < 1e-11


class Ranker(nn.Module):
    """A score for each candidate."""

    def __init__(self, users: int, items: int) -> None:
        super().__init__()
        self.user, self.item = nn.Embedding(users, 3), nn.Embedding(items, 3)

    def forward(self, user: Tensor, item: Tensor) -> Tensor:
        return torch.einsum("bf,bcf->bc", self.user(user), self.item(item))


@pytest.mark.parametrize("algorithm", [SteppedMean(), RowAdam(mean="stepped")], ids=repr)
def test_rows_that_were_drawn_as_negatives_have_occurred(algorithm: Algorithm) -> None:
    data = positives()
    torch.manual_seed(0)
    module = Ranker(data.tables["user"], data.tables["item"]).double()
    run = training(algorithm, plan_of(negatives=4, negatives_pool=10), data, module)
    alone, _ = run(None)()
    for there, _ in as_ranks(2, run):
        assert worst(alone, there) < 1e-11


@pytest.mark.parametrize(("name", "times"), [("fedsubavg", 1), ("scaffold", 3)])
@pytest.mark.parametrize("items", [40, 50_000])
def test_what_is_exchanged_is_what_is_touched(name: str, times: int, items: int) -> None:
    """4 of 8 clients a rank; each has 3 rows of 1 and a dense number; 3 numbers are agreed on."""
    rng = np.random.default_rng(0)
    data = FederatedData.build(
        client=np.repeat(np.arange(30), 2),
        ids={
            "item": np.tile([3, 7], 30) + np.repeat(np.arange(30), 2) % 3,
            "user": np.repeat(np.arange(30), 2),
        },
        label=rng.random(60) < 0.5,
        test=np.zeros(60, dtype=bool),
        tables={"item": items, "user": 30},
    )
    plan = plan_of(rounds=2, clients_per_round=8)
    found = as_ranks(2, training(ALGORITHMS[name], plan, data))
    a_round = 8 * (4 * times * (3 + 1) + 3)
    assert [sent for _, sent in found] == [2 * a_round] * 2


@given(st.lists(st.integers(1, 50), min_size=4, max_size=40), st.integers(1, 4), st.integers(1, 9))
def test_cuts(work: list[int], ranks: int, chunk: int) -> None:
    places = cuts(np.array(work), ranks, chunk)
    assert (places[0], places[-1], len(places)) == (0, len(work), ranks + 1)
    assert all(low < high for low, high in itertools.pairwise(places))
    bounds = Chunks(chunk).bounds(len(work))
    if len(bounds) > ranks:
        assert set(places) <= set(bounds)
        its = (Chunks(chunk).bounds(high - low) for low, high in itertools.pairwise(places))
        both = zip(places, its, strict=False)
        assert {low + place for low, inside in both for place in inside} == set(bounds)
    parts = [sum(work[low:high]) for low, high in itertools.pairwise(cuts(np.array(work), ranks))]
    assert max(parts) <= sum(work) / ranks + max(work) or len(work) < 2 * ranks


def test_no_client_is_left_alone() -> None:
    assert Chunks(3).bounds(7) == [0, 3, 7]
    assert Chunks(3).bounds(8) == [0, 3, 6, 8]
    assert Chunks(1).bounds(3) == [0, 1, 2, 3]
    assert Chunks(5).bounds(1) == [0, 1]


def test_clients_that_do_the_same_are_dealt_out_evenly() -> None:
    assert cuts(np.full(10, 7), 3) == [0, 3, 7, 10]
    assert cuts(np.full(50, 10), 2) == [0, 25, 50]
    assert cuts(np.array([90, 10, 10, 10, 10, 10]), 2) == [0, 1, 6]


def test_ranks_that_disagree() -> None:
    def prepare(everyone: RankGroup) -> Callable[[], str]:
        odd = int(everyone.rank == 2)
        choices = {"seed": (odd, 0, 0), "federation": (0, odd, 0), "starting model": (0, 0, odd)}
        fleets = {}
        for what, (seed, data, module) in choices.items():
            its, plan = federation(seed=data), plan_of(seed=seed)
            model = Lifted(Module(40, seed=module), its)
            fleet = TorchrunFleet(SimulatedFleet(model, FedAvg(), its, plan), everyone)
            fleets[what] = fleet, begin(model, FedAvg(), plan).params

        def run() -> str:
            said = []
            for fleet, params in fleets.values():
                with pytest.raises(RankError) as caught:
                    fleet.check(params, 0)
                said.append(caught.value.what)
            return said

        return run

    expected = [
        f"Rank 2 has another {x} than rank 0" for x in ("seed", "federation", "starting model")
    ]
    assert as_ranks(3, prepare) == [expected] * 3


def test_more_ranks_than_clients() -> None:
    fleet = SimulatedFleet(
        Lifted(Module(40), federation()), FedAvg(), federation(), plan_of(clients_per_round=2)
    )
    with pytest.raises(PlanError, match="clients-per-round is 2, which cannot be split over 3"):
        TorchrunFleet(fleet, Threads(0, 3, [], threading.Barrier(3)))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_by_nccl(monkeypatch: pytest.MonkeyPatch) -> None:
    """As much as one GPU allows: a rank that gathers what it has sent."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    for name, value in {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("MASTER_PORT", port)
    run = training(Scaffold(), plan_of(device="cuda", rounds=5))
    alone, _ = run(None)()
    there, sent = run(RankGroup())()
    assert sent > 0
    assert worst(alone, there) < 1e-11
