"""Local tables: a row that one client holds stays there, whatever the algorithm."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from fedrows import catalogue
from fedrows.data.federation import FederatedData
from fedrows.errors import DataError
from fedrows.models.logistic import Logistic
from fedrows.plan import Plan
from fedrows.simulation import Simulation

PLAN = Plan(
    rounds=8, clients_per_round=3, local_steps=3, batch_size=2, lr=0.4,
    device="cpu", dtype="float64", evaluate_every=4,
)  # fmt: skip


def federation(local: tuple[str, ...] = ("user",)) -> FederatedData:
    """Six users with an id of their own, and items that they share."""
    rng = np.random.default_rng(0)
    user = np.repeat(np.arange(6), 5)
    return FederatedData.build(
        client=user,
        ids={"user": user, "item": rng.integers(0, 8, len(user))},
        label=rng.integers(0, 2, len(user)),
        test=np.arange(len(user)) % 5 == 4,
        tables={"user": 6, "item": 8},
        local=local,
    )


def run(data: FederatedData, name: str, plan: Plan = PLAN) -> Simulation:
    simulation = Simulation(data, Logistic(data), catalogue.algorithm(name)(), plan)
    for _ in simulation:
        pass
    return simulation


@pytest.mark.parametrize("name", catalogue.names("algorithm"))
def test_every_algorithm_leaves_local_rows_to_their_client(name):
    """They move by their client's own update, and the server remembers nothing about them."""
    simulation = run(federation(), name)
    rows = simulation.progress.whole().tables["user"]
    assert rows.isfinite().all()
    assert (rows != 0).any()
    assert all("user" not in part.tables for part in simulation.progress.state.values())
    again = run(federation(), name, replace(PLAN, chunk=2)).progress.whole()
    torch.testing.assert_close(rows, again.tables["user"], rtol=0, atol=1e-12)


def test_fedsubavg_would_move_them_as_far_with_uniform_weights():
    """A row with one holder is corrected by N / 1 of its share 1 / K: local, but for N / K."""
    plan = replace(PLAN, rounds=1, weighting="uniform", clients_per_round=6)
    local, shared = (run(federation(which), "fedsubavg", plan) for which in (("user",), ()))
    for table in ("user", "item"):
        left, right = (x.progress.params.tables[table] for x in (local, shared))
        torch.testing.assert_close(left, right, rtol=0, atol=1e-12)


def test_they_are_not_sent():
    local, shared = run(federation(), "fedavg"), run(federation(()), "fedavg")
    assert shared.progress.bytes_down - local.progress.bytes_down == 8  # one float64
    assert shared.progress.bytes_up - local.progress.bytes_up == 8 + 4  # and its id


def test_a_row_of_two_clients_cannot_be_local():
    with pytest.raises(DataError, match="item"):
        federation(("user", "item"))
