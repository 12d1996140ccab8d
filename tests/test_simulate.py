"""From a data frame to a trained module, in one call or as a loop."""

from __future__ import annotations

import math
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

import fedrows
from fedrows import FederatedData, Plan, Simulation, Vocabulary
from fedrows.algorithms.centralsgd import CentralSGD
from fedrows.algorithms.fedavg import FedAvg
from fedrows.errors import PlanError, UnknownNameError
from fedrows.models.logistic import Logistic

KEYS = {
    "algorithm", "seed", "round", "train_loss", "test_loss", "test_accuracy", "test_auc",
    "test_gauc", "buckets", "bytes_down", "bytes_up", "seconds",
}  # fmt: skip


@pytest.fixture(scope="module")
def data() -> FederatedData:
    """40 people of two tastes rate 15 dishes; a taste likes every other dish, nine times of ten."""
    rng = np.random.default_rng(0)
    person, dish = rng.integers(0, 40, 800), rng.integers(0, 15, 800)
    taste = person % 2
    liked = ((dish + taste) % 2 == 0) ^ (rng.random(800) < 0.1)
    names = np.array([f"dish {d}" for d in range(15)])[dish]
    frame = pd.DataFrame({"person": person, "taste": taste, "dish": names, "liked": liked})
    every = dict.fromkeys(["taste", "dish"], Vocabulary(oov=False))
    return FederatedData.from_frame(
        frame, client="person", label="liked", features=["taste", "dish"], test=0.25, tables=every
    )


class Tastes(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.taste = nn.Embedding(2, 4)
        self.dish = nn.Embedding(15, 4)
        self.bias = nn.Parameter(torch.zeros(()))

    def forward(self, taste: torch.Tensor, dish: torch.Tensor) -> torch.Tensor:
        return (self.taste(taste) * self.dish(dish)).sum(1) + self.bias


def entropy(share: float) -> float:
    return -share * math.log(share) - (1 - share) * math.log(1 - share)


def test_a_module_learns(data):
    module, lines = Tastes(), []
    result = fedrows.simulate(
        data, module, rounds=30, clients_per_round=10, lr=0.3, device="cpu", report=lines.append
    )
    prior = entropy(float(data.train.label.mean()))
    best = entropy(0.1)
    assert prior == pytest.approx(0.69, abs=0.01)
    assert result.history == lines
    assert [line["round"] for line in lines] == [10, 20, 30]
    assert all(set(line) == KEYS for line in lines)
    last = lines[-1]
    assert (last["algorithm"], last["seed"]) == ("fedsubavg", 0)
    assert 0.8 * best < last["train_loss"] < 0.7 * prior
    assert last["test_loss"] < 0.75 * prior
    assert last["test_accuracy"] > 0.8
    assert last["bytes_up"] > last["bytes_down"] > 0
    assert lines[0]["seconds"] < last["seconds"]
    module.load_state_dict(result.state_dict())
    scores = module(**data.test.ids)
    accuracy = ((scores > 0) == (data.test.label > 0.5)).float().mean()
    assert float(accuracy) == pytest.approx(last["test_accuracy"])


def test_the_function_can_be_called_twice(data):
    """A submodule of the same name would take the function's place after the first import."""
    for _ in range(2):
        fedrows.simulate(data, Tastes(), rounds=1, device="cpu")


def test_the_public_function_is_a_function():
    """Whatever is imported first; torch is imported once, because that takes seconds."""
    script = (
        "import os, sys, torch\n"
        "for code in sys.argv[1:]:\n"
        "    if (child := os.fork()) == 0: exec(code); os._exit(0)\n"
        "    if os.waitpid(child, 0)[1]: sys.exit(code)\n"
    )
    codes = (
        "from fedrows import Simulation, simulate; assert callable(simulate)",
        "import fedrows; fedrows.simulate; assert callable(fedrows.simulate)",
        "import fedrows.cli.run; assert callable(fedrows.simulate)",
    )
    subprocess.run([sys.executable, "-c", script, *codes], check=True)


def test_public_names():
    names = (
        "FederatedData Hashed OwnTask Plan Scaled Simulation Split Study Vocabulary compare load "
    )
    names += "open_data read_parquet save_data simulate tune with_personal __version__"
    assert fedrows.__all__ == names.split()
    assert all(hasattr(fedrows, name) for name in fedrows.__all__)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = fedrows.nothing


def test_an_algorithm_by_name_or_with_options(data):
    by_name = fedrows.simulate(data, Logistic(data), "fedavg", rounds=2, device="cpu")
    given = fedrows.simulate(data, Logistic(data), FedAvg(), rounds=2, device="cpu")
    assert torch.equal(by_name.params.tables["dish"], given.params.tables["dish"])
    assert by_name.history[-1]["algorithm"] == "fedavg"
    assert set(by_name.state_dict()) == {"taste", "dish", "bias"}


def test_the_plan_is_checked(data):
    with pytest.raises(PlanError, match=r"lr is -1, but must be above 0\."):
        fedrows.simulate(data, Tastes(), lr=-1)
    with pytest.raises(PlanError, match=r"clients-per-round is 41, but only 40 clients"):
        fedrows.simulate(data, Tastes(), clients_per_round=41, rounds=1, device="cpu")
    with pytest.raises(UnknownNameError, match="did you mean fedsubavg"):
        fedrows.simulate(data, Tastes(), "fedsubav")
    with pytest.raises(TypeError, match="round"):
        fedrows.simulate(data, Tastes(), round=3)


def test_small_federations_need_no_number_of_clients(data):
    result = fedrows.simulate(data, Logistic(data), rounds=1, device="cpu")
    whole = fedrows.simulate(data, Logistic(data), rounds=1, clients_per_round=40, device="cpu")
    assert torch.equal(result.params.tables["dish"], whole.params.tables["dish"])


def test_threads_are_the_plans_while_it_runs(data):
    seen, before = [], torch.get_num_threads()
    fedrows.simulate(
        data, Logistic(data), rounds=1, device="cpu", threads=before + 1,
        report=lambda line: seen.append(torch.get_num_threads()),
    )  # fmt: skip
    assert seen == [before + 1]
    assert torch.get_num_threads() == before


def test_a_loop_of_ones_own(data):
    plan = Plan(rounds=5, evaluate_every=2, clients_per_round=8, device="cpu")
    simulation = Simulation(data, Logistic(data), FedAvg(), plan)
    assert simulation.due  # the start is an evaluation too
    assert simulation.evaluate()["train_loss"] == pytest.approx(math.log(2))
    due, losses = [], []
    for progress in simulation:
        if simulation.due:
            due.append(progress.round)
            losses.append(simulation.evaluate()["train_loss"])
    assert due == [2, 4, 5]
    assert losses == sorted(losses, reverse=True)
    assert simulation.seconds > 0


def test_evaluating_changes_nothing(data):
    plan = Plan(rounds=4, clients_per_round=8, device="cpu")
    looked_at, left_alone = (Simulation(data, Logistic(data), FedAvg(), plan) for _ in range(2))
    for _ in looked_at:
        looked_at.evaluate()
    for _ in left_alone:
        pass
    for name, x in looked_at.tensors().items():
        assert torch.equal(x, left_alone.tensors()[name])


def test_central_training_is_one_client_with_everything(data):
    plan = Plan(rounds=2, clients_per_round=8, batch_size=3, batches="epoch", device="cpu")
    simulation = Simulation(data, Logistic(data), CentralSGD(), plan)
    assert simulation.fleet.clients == 1
    assert simulation.fleet.plan.batch_size == 24
    assert simulation.fleet.plan.batches == "draw"
    for _ in simulation:
        pass
    assert simulation.evaluator.facts()["clients"] == 40
    assert simulation.plan is plan
