"""Exactness in float64: submodels against the full model, a cohort against one after another."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch
import twin
from torch import nn

from fedrows.algorithm import Round
from fedrows.algorithms.fedadam import FedAdam
from fedrows.algorithms.fedavg import FedAvg
from fedrows.algorithms.fedprox import FedProx
from fedrows.algorithms.fedsubavg import FedSubAvg
from fedrows.algorithms.holdersmean import HoldersMean
from fedrows.algorithms.scaffold import Scaffold
from fedrows.algorithms.scaffoldapprox import ScaffoldApprox
from fedrows.algorithms.steppedmean import SteppedMean
from fedrows.client import Assignment, train
from fedrows.data.batches import local_data
from fedrows.data.federation import FederatedData
from fedrows.lifting.lifted import Lifted
from fedrows.models.logistic import Logistic
from fedrows.plan import Plan
from fedrows.rows.params import Submodels, take, total
from fedrows.server import Progress, begin, rounds
from fedrows.simulator.simulated_fleet import SimulatedFleet

DRAWN = Plan(
    rounds=12, clients_per_round=3, local_steps=4, batch_size=2, lr=0.3, lr_decay=0.97,
    dtype="float64", device="cpu",
)  # fmt: skip
UNEQUAL = replace(DRAWN, batches="epoch", epochs=2)
CLOSE = {"rtol": 0, "atol": 1e-10}


def run(data, plan, algorithm, model=None) -> Progress:
    model = model or Logistic(data)
    progress = begin(model, algorithm, plan)
    for _ in rounds(SimulatedFleet(model, algorithm, data, plan), plan, progress):
        pass
    return progress


def assert_equal(progress: Progress, expected: twin.Vector) -> None:
    model = progress.whole()
    for table, rows in model.tables.items():
        torch.testing.assert_close(rows[:, 0], expected[table], **CLOSE)
    torch.testing.assert_close(model.dense["bias"], expected["bias"], **CLOSE)


PLANS = {
    "drawn": DRAWN,
    "unequal": UNEQUAL,
    "clipped": replace(UNEQUAL, clip=0.4),
    "uniform": replace(UNEQUAL, weighting="uniform"),
    "chunked": replace(UNEQUAL, chunk=2),
    "all clients": replace(DRAWN, clients_per_round=7),
}


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
@pytest.mark.parametrize(
    ("algorithm", "options"),
    [
        (FedAvg(), {}),
        (FedProx(mu=0.5), {"mu": 0.5}),
        (Scaffold(), {"scaffold": True}),
        (Scaffold(lazy=True), {"scaffold": True}),
    ],
    ids=["fedavg", "fedprox", "scaffold", "scaffold lazy"],
)
def test_submodels_give_what_the_full_model_gives(plan, algorithm, options):
    data = twin.federation()
    assert_equal(run(data, plan, algorithm), twin.train(data, plan, twin.averaged, **options))


@pytest.mark.parametrize("lazy", [False, True])
def test_scaffold_approximation(lazy):
    data = twin.federation()
    change, fresh = twin.zeros(data), UNEQUAL.clients_per_round / data.clients

    def step(model, mean, cohort, number):
        nonlocal change
        change = twin.combine([(1 - fresh, change), (fresh, mean)])
        return twin.combine([(1, model), (1, change)])

    expected = twin.train(data, UNEQUAL, step)
    assert_equal(run(data, UNEQUAL, ScaffoldApprox(lazy=lazy)), expected)


def test_fedadam_as_published():
    data, tau = twin.federation(), 0.05
    first = twin.zeros(data)
    second = {name: x + tau**2 for name, x in twin.zeros(data).items()}

    def step(model, mean, cohort, number):
        nonlocal first, second
        first = twin.combine([(0.9, first), (0.1, mean)])
        square = {name: x * x for name, x in mean.items()}
        second = twin.combine([(0.99, second), (0.01, square)])
        moved = {name: x / (second[name].sqrt() + tau) for name, x in first.items()}
        return twin.combine([(1, model), (0.1, moved)])

    expected = twin.train(data, UNEQUAL, step)
    assert_equal(run(data, UNEQUAL, FedAdam(server_lr=0.1, tau=tau)), expected)


@pytest.mark.parametrize(
    ("algorithm", "divisor"),
    [
        (FedSubAvg(), "all"),
        (FedSubAvg(cap=2.0), "capped"),
        (FedSubAvg(alpha=0.5), "root"),
        (HoldersMean(), "held"),
        (SteppedMean(), "stepped"),
    ],
    ids=["fedsubavg", "cap", "alpha", "holders", "stepped"],
)
@pytest.mark.parametrize("weighting", ["uniform", "examples"])
def test_corrected_means(algorithm, divisor, weighting):
    """Row by row in Python: what each correction multiplies the mean by."""
    data, plan = twin.federation(), replace(UNEQUAL, weighting=weighting, rounds=8)
    weight = twin.weight_of(data, plan)
    held = {
        table: [set(index.slice(i, i + 1).ids.tolist()) for i in range(data.clients)]
        for table, index in data.index.items()
    }

    def factor(table, row, cohort, number):
        holders = [i for i in range(data.clients) if row in held[table][i]]
        if not holders:
            return 1.0
        inverse_heat = sum(weight) / sum(weight[i] for i in holders)
        if divisor == "capped":
            return min(inverse_heat, 2.0)
        if divisor == "root":
            return inverse_heat**0.5
        if divisor == "all":
            return inverse_heat
        part = [i for i in cohort if i in holders]
        if divisor == "stepped":
            part = [i for i in part if row in twin.seen(data, plan, i, number, table)]
        return sum(weight[i] for i in cohort) / sum(weight[i] for i in part) if part else 1.0

    def step(model, mean, cohort, number):
        moved = {name: x.clone() for name, x in mean.items()}
        for table in held:
            for row in range(data.tables[table]):
                moved[table][row] *= factor(table, row, cohort, number)
        return twin.combine([(1, model), (1, moved)])

    assert_equal(run(data, plan, algorithm), twin.train(data, plan, step))


def test_fedsubavg_moves_a_row_by_the_mean_over_its_holders():
    """Unbiased: over all cohorts, the mean of the corrected updates is the holders' mean."""
    data = twin.federation(clients=5)
    plan = replace(DRAWN, weighting="uniform", clients_per_round=2)
    model = Logistic(data)
    algorithm = FedSubAvg()
    fleet = SimulatedFleet(model, algorithm, data, plan)
    expected = {t: torch.zeros(rows, 1, dtype=torch.float64) for t, rows in data.tables.items()}
    holders = {t: torch.zeros(rows, 1, dtype=torch.float64) for t, rows in data.tables.items()}
    for client in range(data.clients):
        upload = _upload(fleet, model, plan, torch.tensor([client]))
        for table, index in upload.update.index.items():
            expected[table][index.ids] += upload.update.rows[table]
            holders[table][index.ids] += 1
    cohorts = list(itertools.combinations(range(data.clients), 2))
    mean = {t: torch.zeros(rows, 1, dtype=torch.float64) for t, rows in data.tables.items()}
    for cohort in cohorts:
        numbers = torch.tensor(cohort)
        upload = _upload(fleet, model, plan, numbers)
        params = begin(model, algorithm, plan).params
        sums = total(upload.update, fleet.weights[numbers], upload.steps)
        algorithm.step_(params, {}, sums, fleet.heat(), Round(1, plan.lr, 5, 5.0, numbers))
        for table, rows in params.tables.items():
            mean[table] += rows / len(cohorts)
    for table in mean:
        torch.testing.assert_close(mean[table], expected[table] / holders[table].clamp(min=1))


def _upload(fleet, model, plan, cohort):
    facts = Round(1, plan.lr, fleet.clients, float(fleet.weights.sum()), cohort)
    opened = fleet.open_round(facts)
    start = take(begin(model, FedSubAvg(), plan).params, opened.index, len(cohort))
    return opened.train(start, None)


class Mlp(nn.Module):
    """An ordinary module: two embeddings and two dense layers."""

    def __init__(self, data: FederatedData) -> None:
        super().__init__()
        self.item = nn.Embedding(data.tables["item"], 4)
        self.kind = nn.Embedding(data.tables["kind"], 3)
        self.mlp = nn.Sequential(nn.Linear(7, 5), nn.Tanh(), nn.Linear(5, 1))

    def forward(self, item, kind):
        return self.mlp(torch.cat([self.item(item).mean(1), self.kind(kind)], 1))[:, 0]


@pytest.mark.parametrize("plan", [DRAWN, replace(UNEQUAL, clip=0.2)], ids=["drawn", "unequal"])
@pytest.mark.parametrize("algorithm", [FedProx(mu=0.3), Scaffold()], ids=lambda a: a.name)
@pytest.mark.parametrize("kind", ["logistic", "lifted"])
def test_a_cohort_trains_as_its_clients_do_alone(plan, algorithm, kind):
    torch.manual_seed(0)
    data = twin.federation(1)
    model = Logistic(data) if kind == "logistic" else Lifted(Mlp(data), data)
    data = data.to(torch.device("cpu"), torch.float64)
    params = model.start().map(lambda x: torch.randn_like(x, dtype=torch.float64))
    cohort = torch.tensor([0, 2, 3, 6])
    facts = Round(3, 0.3, 7, 7.0, cohort)
    index = {table: whole.select(cohort) for table, whole in data.index.items()}
    start = take(params, index, 4)
    sent, kept = (start.map(torch.rand_like) for _ in range(2))
    extras = (sent, kept) if algorithm.keeps else (None, None)
    given = Assignment(local_data(data, cohort), start, *extras, facts)
    together = train(model, algorithm, plan, given)
    for k, client in enumerate(cohort.tolist()):
        local, own = local_data(data, torch.tensor([client])), given.slice(k, k + 1)
        alone = train(model, algorithm, plan, replace(own, local=local))
        assert alone.steps.tolist() == together.steps[k : k + 1].tolist()
        _assert_same(together.update.slice(k, k + 1), alone.update)
        for name, extra in alone.extra.items():
            _assert_same(together.extra[name].slice(k, k + 1), extra)
        if alone.kept is not None:
            _assert_same(together.kept.slice(k, k + 1), alone.kept)


def _assert_same(left: Submodels, right: Submodels) -> None:
    for table, rows in left.rows.items():
        torch.testing.assert_close(rows, right.rows[table], **CLOSE)
    for name, dense in left.dense.items():
        torch.testing.assert_close(dense, right.dense[name], **CLOSE)


def test_the_closed_form_of_logistic_regression_is_its_gradient():
    """Logistic, hand-batched, against the same model as a plain module, lifted."""

    class Plain(nn.Module):
        def __init__(self):
            super().__init__()
            self.item, self.kind = nn.Embedding(12, 1), nn.Embedding(5, 1)
            self.bias = nn.Parameter(torch.zeros(()))
            for part in (self.item, self.kind):
                nn.init.zeros_(part.weight)

        def forward(self, item, kind):
            return self.bias + self.item(item).sum((1, 2)) + self.kind(kind)[:, 0]

    data = twin.federation()
    hand = run(data, UNEQUAL, FedSubAvg())
    lifted = run(data, UNEQUAL, FedSubAvg(), Lifted(Plain(), data))
    for table, rows in hand.params.tables.items():
        torch.testing.assert_close(rows, lifted.params.tables[table], **CLOSE)
    torch.testing.assert_close(hand.params.dense["bias"], lifted.params.dense["bias"], **CLOSE)


class Squares(Logistic):
    """Example 1 of the paper: a client's loss is the sum of its weights' squares."""

    def start(self):
        params = super().start()
        params.tables["w"][:] = torch.tensor([[3.0], [-2.0]])
        return params

    def gradient(self, block, batch):
        return block.map(lambda x: 2 * x)


@pytest.mark.parametrize("eta", [0.5, 0.3, 0.05])
@pytest.mark.parametrize("algorithm", [FedAvg(), FedSubAvg()], ids=lambda a: a.name)
def test_example_1(algorithm, eta):
    """w1 is held by one client of N = 100, w2 by all; full participation, exact gradients."""
    count, r = 100, 12
    owner = np.append(np.arange(count), 0)
    data = FederatedData.build(
        client=owner,
        ids={"w": np.append(np.ones(count, dtype=int), 0)},
        label=np.zeros(count + 1),
        test=np.zeros(count + 1, dtype=bool),
        tables={"w": 2},
    )
    plan = Plan(
        rounds=r, clients_per_round=count, local_steps=1, batch_size=1, lr=eta,
        weighting="uniform", dtype="float64", device="cpu",
    )  # fmt: skip
    w1, w2 = run(data, plan, algorithm, Squares(data)).params.tables["w"][:, 0].tolist()
    slow = 1 - 2 * eta / count if isinstance(algorithm, FedAvg) else 1 - 2 * eta
    assert w1 == pytest.approx(3 * slow**r, abs=1e-12)
    assert w2 == pytest.approx(-2 * (1 - 2 * eta) ** r, abs=1e-12)


@pytest.mark.parametrize(
    "algorithm", [FedAvg(), FedProx(), FedSubAvg(), FedAdam(lazy=True)], ids=lambda a: a.name
)
def test_rows_that_nobody_holds_do_not_move(algorithm):
    data, plan = twin.federation(), replace(DRAWN, rounds=1)
    model = Logistic(data)
    progress = begin(model, algorithm, plan)
    progress.params.tables["item"].normal_(generator=torch.Generator().manual_seed(0))
    before = progress.params.copy()
    fleet = SimulatedFleet(model, algorithm, data, plan)
    cohort = fleet.draw(1, plan.clients_per_round)
    next(iter(rounds(fleet, plan, progress)))
    for table, rows in progress.params.tables.items():
        held = data.index[table].select(cohort).ids.unique()
        rest = torch.ones(len(rows), dtype=torch.bool)
        rest[held] = False
        assert rest.any()
        assert torch.equal(rows[rest], before.tables[table][rest])
        assert not torch.equal(rows[held], before.tables[table][held])
