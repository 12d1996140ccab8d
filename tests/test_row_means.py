"""Every mean of a row and every row-wise optimiser, against a loop over the rows of full models."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

import numpy as np
import pytest
import torch
import twin

from fedrows import Simulation
from fedrows.algorithm import Algorithm
from fedrows.algorithms.boundedsubavg import BoundedSubAvg
from fedrows.algorithms.fedavg import FedAvg
from fedrows.algorithms.fedsubavg import FedSubAvg
from fedrows.algorithms.holdersmean import HoldersMean
from fedrows.algorithms.rowadagrad import RowAdagrad
from fedrows.algorithms.rowadam import RowAdam
from fedrows.algorithms.rowdecay import RowDecay
from fedrows.algorithms.steppedmean import SteppedMean
from fedrows.data.federation import FederatedData
from fedrows.models.logistic import Logistic
from fedrows.plan import Plan
from fedrows.rows.row_means import MEANS

PLAN = Plan(
    rounds=8, clients_per_round=3, local_steps=2, batch_size=2, lr=0.3, lr_decay=0.97,
    dtype="float64", device="cpu",
)  # fmt: skip
PLANS = {
    "examples": PLAN,
    "uniform": replace(PLAN, weighting="uniform"),
    "epoch": replace(PLAN, batches="epoch", epochs=2),
    "chunk": replace(PLAN, chunk=1),
    "everybody": replace(PLAN, clients_per_round=7),
}
every_plan = pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
PLAIN: dict[str, Algorithm] = {
    "cohort": FedAvg(), "heat": FedSubAvg(), "holders": HoldersMean(), "stepped": SteppedMean(),
    "bounded": BoundedSubAvg(),
}  # fmt: skip


def run(data: FederatedData, plan: Plan, algorithm: Algorithm) -> twin.Vector:
    simulation = Simulation(data, Logistic(data), algorithm, plan)
    for _ in simulation:
        pass
    params = simulation.progress.whole()
    return {t: x[:, 0] for t, x in params.tables.items()} | dict(params.dense)


def assert_close(found: twin.Vector, expected: twin.Vector) -> None:
    for name, x in expected.items():
        torch.testing.assert_close(found[name], x, rtol=0, atol=1e-10)


def corrected(factor: twin.Factor, model: twin.Vector, mean, cohort, number):
    """The rows that somebody has a say on, each with its corrected mean: (table, row, update)."""
    for table in ("item", "kind"):
        for row in range(len(model[table])):
            times = factor(table, row, cohort, number)
            if times is not None:
                yield table, row, times * float(mean[table][row])


@every_plan
@pytest.mark.parametrize("mean", MEANS)
def test_a_mean_is_the_loop_over_rows(mean: str, plan: Plan) -> None:
    data = twin.federation()
    factor = twin.row_factor(data, plan, mean)

    def step(model, update, cohort, number):
        after = twin.combine([(1, model)])
        for table, row, moved in corrected(factor, model, update, cohort, number):
            after[table][row] += moved
        after["bias"] = model["bias"] + update["bias"]
        return after

    expected = twin.train(data, plan, step)
    assert_close(run(data, plan, PLAIN[mean]), expected)
    assert_close(run(data, plan, RowDecay(mean=mean, power=0)), expected)


@pytest.mark.parametrize("plan", [PLANS["examples"], PLANS["uniform"]], ids=["examples", "uniform"])
@pytest.mark.parametrize("mean", MEANS)
def test_adagrad_is_the_loop_over_rows(mean: str, plan: Plan) -> None:
    data, tau = twin.federation(), 0.05
    factor = twin.row_factor(data, plan, mean)
    second: dict = defaultdict(lambda: tau**2)

    def step(model, update, cohort, number):
        after = twin.combine([(1, model)])
        rows = [*corrected(factor, model, update, cohort, number), ("bias", (), update["bias"])]
        for table, row, moved in rows:
            second[table, row] = second[table, row] + moved**2
            after[table][row] += 0.2 * moved / (second[table, row] ** 0.5 + tau)
        return after

    algorithm = RowAdagrad(mean=mean, server_lr=0.2, tau=tau)
    assert_close(run(data, plan, algorithm), twin.train(data, plan, step))


@pytest.mark.parametrize("plan", [PLANS["examples"], PLANS["uniform"]], ids=["examples", "uniform"])
@pytest.mark.parametrize("mean", MEANS)
def test_adam_is_the_loop_over_rows(mean: str, plan: Plan) -> None:
    data, tau = twin.federation(), 0.05
    factor = twin.row_factor(data, plan, mean)
    first: dict = defaultdict(float)
    second: dict = defaultdict(float)
    steps: dict = defaultdict(int)

    def step(model, update, cohort, number):
        after = twin.combine([(1, model)])
        rows = [*corrected(factor, model, update, cohort, number), ("bias", (), update["bias"])]
        for table, row, moved in rows:
            at = table, row
            first[at], second[at] = 0.8 * first[at] + 0.2 * moved, 0.9 * second[at] + 0.1 * moved**2
            steps[at] += 1
            m, v = first[at] / (1 - 0.8 ** steps[at]), second[at] / (1 - 0.9 ** steps[at])
            after[table][row] += 0.2 * m / (v**0.5 + tau)
        return after

    algorithm = RowAdam(mean=mean, server_lr=0.2, beta1=0.8, beta2=0.9, tau=tau)
    assert_close(run(data, plan, algorithm), twin.train(data, plan, step))


@pytest.mark.parametrize("mean", MEANS)
def test_a_decaying_step_is_the_loop_over_rows(mean: str) -> None:
    data = twin.federation()
    factor = twin.row_factor(data, PLAN, mean)
    steps: dict = defaultdict(int)

    def step(model, update, cohort, number):
        after = twin.combine([(1, model)])
        for table, row, moved in corrected(factor, model, update, cohort, number):
            steps[table, row] += 1
            after[table][row] += 0.5 * moved / steps[table, row] ** 0.75
        after["bias"] = model["bias"] + 0.5 * update["bias"]
        return after

    algorithm = RowDecay(mean=mean, server_lr=0.5, power=0.75)
    assert_close(run(data, PLAN, algorithm), twin.train(data, PLAN, step))


def test_a_row_whose_steps_cancel_was_stepped_on() -> None:
    """Client 0 sees row 0 with both labels in one batch: its update is 0, but it had its say."""
    data = FederatedData.build(
        client=np.array([0, 0, 1, 1]),
        ids={"item": np.array([0, 0, 0, 0])},
        label=np.array([0, 1, 1, 1]),
        test=np.zeros(4, dtype=bool),
        tables={"item": 1},
    )
    for dtype in ("float32", "float64"):
        plan = Plan(
            rounds=1, clients_per_round=2, batches="epoch", batch_size=2, lr=1.0, dtype=dtype,
            device="cpu",
        )  # fmt: skip
        # Client 1 moves the row by lr · ½, and client 0 by nothing.
        assert float(run(data, plan, SteppedMean())["item"][0]) == pytest.approx(0.25)


def test_rows_that_fill_lists_up_and_examples_of_weight_0_do_not_occur() -> None:
    from fedrows.data.batches import local_data, occurred

    data = FederatedData.build(
        client=np.array([0, 0, 1]),
        ids={"item": np.array([[3, 0], [5, 6], [3, 4]])},
        label=np.array([0, 1, 1]),
        test=np.zeros(3, dtype=bool),
        tables={"item": 8},
        padded=["item"],
        weight=np.array([1.0, 0.0, 1.0]),
    )
    plan, cohort = replace(PLAN, batches="epoch"), torch.tensor([0, 1])
    marks = occurred(local_data(data, cohort), data.index, plan, 1)["item"]
    ids = data.index["item"].ids.tolist()
    assert [x for x, mark in zip(ids, marks.tolist(), strict=True) if mark] == [3, 3, 4]
