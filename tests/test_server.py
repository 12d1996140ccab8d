"""The round loop and the simulated fleet: the same run again, whatever the chunk, and its cost."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice

import numpy as np
import pytest
import torch
import twin
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from fedrows import catalogue
from fedrows.algorithm import Algorithm, Round
from fedrows.algorithms.fedavg import FedAvg
from fedrows.algorithms.fedsubavg import FedSubAvg
from fedrows.algorithms.scaffold import Scaffold
from fedrows.client import Upload
from fedrows.data.federation import FederatedData
from fedrows.errors import PlanError
from fedrows.lifting.lifted import Lifted
from fedrows.model import Model
from fedrows.models.logistic import Logistic
from fedrows.plan import Plan
from fedrows.rows.params import Params, take, total
from fedrows.seeds import COHORT, choose
from fedrows.server import Progress, begin, rounds
from fedrows.simulator.simulated_fleet import SimulatedFleet

PLAN = Plan(rounds=6, clients_per_round=4, local_steps=3, batch_size=2, lr=0.3, device="cpu")
EPOCH = replace(PLAN, batches="epoch", clip=0.5)


class Mlp(nn.Module):
    def __init__(self, data: FederatedData) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.item = nn.Embedding(data.tables["item"], 4)
        self.kind = nn.Embedding(data.tables["kind"], 3)
        self.layers = nn.Sequential(nn.Linear(7, 5), nn.Tanh(), nn.Linear(5, 1))

    def forward(self, item: Tensor, kind: Tensor) -> Tensor:
        return self.layers(torch.cat([self.item(item).mean(1), self.kind(kind)], 1))[:, 0]


MODELS = {"logistic": Logistic, "lifted": lambda data: Lifted(Mlp(data), data)}


def run(plan: Plan, algorithm: Algorithm, model: Model | None = None) -> Progress:
    data = twin.federation()
    model = model or Logistic(data)
    progress = begin(model, algorithm, plan)
    for _ in rounds(SimulatedFleet(model, algorithm, data, plan), plan, progress):
        pass
    return progress


def numbers(params: Params) -> Tensor:
    return torch.cat([x.reshape(-1) for x in (*params.tables.values(), *params.dense.values())])


def test_more_clients_than_there_are():
    with pytest.raises(PlanError) as caught:
        run(replace(PLAN, clients_per_round=8), FedAvg())
    assert str(caught.value) == (
        "clients-per-round is 8, but only 7 clients have training data: ask for at most 7."
    )
    run(replace(PLAN, clients_per_round=7, rounds=1), FedAvg())


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("plan", [PLAN, EPOCH], ids=["draw", "epoch"])
def test_the_same_seed_is_the_same_run(kind, plan):
    data = twin.federation()
    first, again, other = (
        numbers(run(replace(plan, seed=seed), FedSubAvg(), MODELS[kind](data)).whole())
        for seed in (0, 0, 1)
    )
    assert torch.equal(first, again)
    assert not torch.allclose(first, other)
    assert first.isfinite().all()


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("algorithm", [FedSubAvg(), Scaffold()], ids=lambda a: a.name)
@pytest.mark.parametrize(("dtype", "most"), [("float32", 1e-6), ("float64", 1e-12)])
def test_chunks_do_not_matter(kind, algorithm, dtype, most):
    data = twin.federation()
    plans = [replace(EPOCH, chunk=chunk, dtype=dtype) for chunk in (None, 1, 2, 3, 4, 99)]
    whole, *chunked = (numbers(run(plan, algorithm, MODELS[kind](data)).whole()) for plan in plans)
    assert whole.abs().max() > 0.01
    for found in chunked:
        assert (found - whole).abs().max() <= most


@pytest.mark.parametrize("kind", MODELS)
def test_threads_hardly_matter(kind):
    data, found = twin.federation(), []
    before = torch.get_num_threads()
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            found.append(numbers(run(PLAN, FedSubAvg(), MODELS[kind](data)).whole()))
    finally:
        torch.set_num_threads(before)
    assert (found[0] - found[1]).abs().max() <= 1e-6


def test_stopping_and_going_on_is_going_on():
    data = twin.federation()
    model, algorithm = Logistic(data), Scaffold(lazy=True)
    fleet, progress = SimulatedFleet(model, algorithm, data, PLAN), begin(model, algorithm, PLAN)
    seen = [progress.round for progress in islice(rounds(fleet, PLAN, progress), 2)]
    seen += [progress.round for progress in rounds(fleet, PLAN, progress)]
    assert seen == [1, 2, 3, 4, 5, 6]
    assert list(rounds(fleet, PLAN, progress)) == []
    assert torch.equal(numbers(progress.whole()), numbers(run(PLAN, algorithm).whole()))


@pytest.mark.parametrize(("dtype", "size"), [("float32", 4), ("float64", 8)])
@pytest.mark.parametrize(("algorithm", "times"), [(FedAvg(), 1), (Scaffold(), 2)], ids=["1", "2"])
def test_bytes_by_hand(dtype, size, algorithm, times):
    """Client 0 holds 3 rows, client 1 one, and each the bias: 6 numbers and 4 ids for two."""
    data = FederatedData.build(
        client=np.array([0, 0, 1]),
        ids={"t": np.array([[0, 1], [1, 2], [1, 1]])},
        label=np.array([0, 1, 1]),
        test=np.zeros(3, dtype=bool),
        tables={"t": 50},
    )
    plan = replace(PLAN, clients_per_round=2, dtype=dtype)
    model = Logistic(data)
    progress = begin(model, algorithm, plan)
    assert (progress.bytes_down, progress.bytes_up) == (0, 0)
    next(rounds(SimulatedFleet(model, algorithm, data, plan), plan, progress))
    assert progress.bytes_down == times * size * 6 / 2
    assert progress.bytes_up == times * size * 6 / 2 + 4 * 4 / 2


def test_what_a_round_tells_the_fleet():
    seen = []

    class Watching(SimulatedFleet):
        def open_round(self, round_):
            seen.append((round_.number, round_.lr, round_.clients, round_.weight))
            assert round_.cohort.tolist() == choose(5, COHORT, round_.number, 7, 4).tolist()
            return super().open_round(round_)

    data, plan = (
        twin.federation(),
        replace(PLAN, lr_decay=0.5, rounds=3, weighting="uniform", seed=5),
    )
    model = Logistic(data)
    fleet = Watching(model, FedAvg(), data, plan)
    list(rounds(fleet, plan, begin(model, FedAvg(), plan)))
    assert seen == [(1, 0.3, 7, 7.0), (2, 0.15, 7, 7.0), (3, 0.075, 7, 7.0)]


class Deserted(SimulatedFleet):
    """A fleet in which only some of the cohort answer."""

    answer = 3

    def trained(self, cohort, start, sent, round_):
        whole, count = super().trained(cohort, start, sent, round_), self.answer
        extra = {name: x.slice(0, count) for name, x in whole.extra.items()}
        return Upload(
            cohort[:count], whole.update.slice(0, count), whole.steps[:count], extra, None
        )


@pytest.mark.parametrize("weighting", ["uniform", "examples"])
def test_the_mean_is_over_those_who_answered(weighting):
    data, plan = twin.federation(), replace(PLAN, dtype="float64", rounds=1, weighting=weighting)
    model, algorithm = Logistic(data), FedAvg()
    progress = begin(model, algorithm, plan)
    next(rounds(Deserted(model, algorithm, data, plan), plan, progress))
    fleet = SimulatedFleet(model, algorithm, data, plan)
    cohort = choose(plan.seed, COHORT, 1, 7, 4)[:3]
    expected = begin(model, algorithm, plan).params
    opened = fleet.open_round(Round(1, plan.lr, 7, float(fleet.weights.sum()), cohort))
    upload = opened.train(take(expected, opened.index, 3), None)
    total(upload.update, fleet.weights[cohort], upload.steps).add_(expected)
    torch.testing.assert_close(numbers(progress.params), numbers(expected), rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", catalogue.names("algorithm"))
def test_a_round_that_nobody_answers_changes_nothing(name):
    data = twin.federation()
    model, algorithm = Logistic(data), catalogue.algorithm(name)()
    fleet = Deserted(model, algorithm, data, PLAN)
    fleet.answer = 0
    progress = begin(model, algorithm, PLAN)
    list(rounds(fleet, PLAN, progress))
    assert (numbers(progress.whole()) == 0).all()


def test_clients_keep_what_is_theirs():
    """After a round of Scaffold exactly the cohort has control variates."""
    data, plan = twin.federation(), replace(PLAN, chunk=3)
    model, algorithm = Logistic(data), Scaffold()
    fleet = SimulatedFleet(model, algorithm, data, plan)
    assert fleet.kept.norms().tolist() == [0] * 7
    next(rounds(fleet, plan, begin(model, algorithm, plan)))
    cohort = choose(plan.seed, COHORT, 1, 7, 4).tolist()
    assert fleet.kept.norms().nonzero()[:, 0].tolist() == cohort
    assert fleet.kept.dense["bias"].nonzero()[:, 0].tolist() == cohort
    assert SimulatedFleet(model, FedAvg(), data, plan).kept is None


ROWS = 10**7


class Watch(TorchDispatchMode):
    """Notes every operation that makes, or reads the whole of, a tensor of the table's size."""

    THRIFTY = frozenset({"view", "detach", "index", "index_select", "index_add_", "index_put_"})

    def __init__(self) -> None:
        super().__init__()
        self.wasteful: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        touched = tree_leaves((args, kwargs, result))
        if any(isinstance(x, Tensor) and x.numel() >= ROWS for x in touched):
            name = func._schema.name.removeprefix("aten::")
            if name not in self.THRIFTY:
                self.wasteful.append(name)
        return result


THRIFTY = {
    "fedavg": {}, "fedprox": {}, "fedsubavg": {}, "holdersmean": {}, "steppedmean": {},
    "boundedsubavg": {}, "rowadagrad": {}, "rowadam": {}, "rowdecay": {},
    "scaffold": {"lazy": True}, "scaffoldapprox": {"lazy": True}, "fedadam": {"lazy": True},
}  # fmt: skip


def vast(kind: str) -> tuple[FederatedData, Model]:
    """A dozen clients in a table of ten million rows."""
    rng = np.random.default_rng(0)
    owner = np.repeat(np.arange(12), 5)
    data = FederatedData.build(
        client=owner,
        ids={"item": rng.integers(0, ROWS, (len(owner), 2))},
        label=rng.integers(0, 2, len(owner)),
        test=np.zeros(len(owner), dtype=bool),
        tables={"item": ROWS},
    )
    if kind == "logistic":
        return data, Logistic(data)

    class Sum(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.item = nn.Embedding(ROWS, 1, _weight=torch.zeros(ROWS, 1))
            self.layer = nn.Linear(1, 1)

        def forward(self, item: Tensor) -> Tensor:
            return self.layer(self.item(item).sum(1))[:, 0]

    return data, Lifted(Sum(), data)


@pytest.mark.parametrize(("name", "options"), THRIFTY.items(), ids=THRIFTY)
def test_a_round_costs_what_it_touches(name, options):
    """The table is gathered from and added to; nothing else of its size is made or read."""
    data, model = vast("logistic")
    algorithm = catalogue.algorithm(name)(**options)
    fleet, progress = SimulatedFleet(model, algorithm, data, PLAN), begin(model, algorithm, PLAN)
    loop = rounds(fleet, PLAN, progress)
    with Watch() as watch:
        for _ in islice(loop, 3):
            pass
    assert watch.wasteful == []
    assert progress.params.tables["item"].count_nonzero() > 0


def test_a_lifted_round_costs_what_it_touches():
    data, model = vast("lifted")
    plan = replace(PLAN, chunk=2, batches="epoch", clip=1.0)
    fleet = SimulatedFleet(model, FedSubAvg(), data, plan)
    loop = rounds(fleet, plan, begin(model, FedSubAvg(), plan))
    with Watch() as watch:
        next(loop)
    assert watch.wasteful == []


def test_the_watch_sees_a_sweep():
    data, model = vast("logistic")
    algorithm = catalogue.algorithm("fedadam")()
    fleet = SimulatedFleet(model, algorithm, data, PLAN)
    loop = rounds(fleet, PLAN, begin(model, algorithm, PLAN))
    with Watch() as watch:
        next(loop)
    assert {"zeros_like", "add_"} <= set(watch.wasteful)


def test_a_cohort_of_many_clients_costs_its_own_size():
    """With a million clients a round looks at K of them."""
    count = 10**6
    data = FederatedData.build(
        client=np.arange(count),
        ids={"item": np.arange(count) % 50},
        label=np.arange(count) % 2,
        test=np.zeros(count, dtype=bool),
        tables={"item": 50},
    )
    plan = replace(PLAN, weighting="examples", chunk=2)
    model, algorithm = Logistic(data), FedSubAvg()
    loop = rounds(SimulatedFleet(model, algorithm, data, plan), plan, begin(model, algorithm, plan))
    next(loop)
    largest = Largest()
    with largest:
        next(loop)
    assert largest.made < 10_000


class Largest(TorchDispatchMode):
    """The size of the largest tensor that an operation makes, views left out."""

    made = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if not func.is_view:
            sizes = (x.numel() for x in tree_leaves(result) if isinstance(x, Tensor))
            self.made = max(self.made, *sizes, 0)
        return result
