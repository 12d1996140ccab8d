"""Small private runs and their data: what the tests of privacy in a simulation share."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedrows import catalogue
from fedrows.data.federation import FederatedData
from fedrows.lifting.lifted import Lifted
from fedrows.models.logistic import Logistic
from fedrows.plan import Plan
from fedrows.privacy.messages import digest
from fedrows.privacy.options import Privacy
from fedrows.rows.ragged import ragged
from fedrows.simulation import Simulation

ROUNDS, COHORT = 6, 8
OPEN = {"index_epsilon": None, "min_contributors": 1}  # hides nothing but who sent what


def synthetic() -> FederatedData:
    """40 clients with ten examples each, of 30 items."""
    task = catalogue.task("synthetic")
    return task.load(task.options(clients=40, items=30, examples_per_client=10))


def lists_and_places() -> FederatedData:
    """25 clients, a list of words and a place of their own; the tables have different widths."""
    rng = np.random.default_rng(0)
    client = np.repeat(np.arange(25), 8)
    words = ragged([rng.integers(1, 12, rng.integers(0, 4)) for _ in client], most=3)
    return FederatedData.build(
        client=client,
        ids={"words": words, "place": rng.integers(0, 6, len(client)), "own": client},
        label=rng.random(len(client)) < 0.5,
        test=np.zeros(len(client), dtype=bool),
        tables={"word": 12, "place": 6, "own": 25},
        fields={"words": "word", "place": "place", "own": "own"},
        local=["own"],
    )


def wide_model(data: FederatedData) -> Lifted:
    """A model of lists and places, with a bias for each client."""

    class Wide(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.word, self.place = nn.Embedding(12, 4, padding_idx=0), nn.Embedding(6, 2)
            self.own, self.out = nn.Embedding(25, 1), nn.Linear(6, 1)

        def forward(self, words: Tensor, place: Tensor, own: Tensor) -> Tensor:
            there = (words > 0)[..., None].to(self.out.weight.dtype)
            both = torch.cat([(self.word(words) * there).sum(-2), self.place(place)], -1)
            return self.out(both)[..., 0] + self.own(own)[..., 0]

    return Lifted(Wide(), data)


def run(
    data: FederatedData,
    privacy: Privacy | None = None,
    algorithm: str = "fedsubavg",
    model: Any = None,
    **plan: Any,
) -> Simulation:
    plan = {"rounds": ROUNDS, "clients_per_round": COHORT, "dtype": "float64", **plan}
    made = Logistic(data) if model is None else model
    of = catalogue.algorithm(algorithm)()
    return Simulation(data, made, of, Plan(device="cpu", **plan), privacy)


def clients_counted(simulation: Simulation) -> Simulation:
    """A clear run whose heat counts clients, as a secure sum does, whatever its mean's weights."""
    heat = simulation.fleet.data.heat("uniform")
    simulation.fleet.heat = lambda: heat
    return simulation


def finish(simulation: Simulation) -> Simulation:
    for _ in simulation:
        pass
    return simulation


def furthest(one: Simulation, other: Simulation) -> float:
    a, b = one.progress.whole(), other.progress.whole()
    parts = [(a.tables, b.tables), (a.dense, b.dense)]
    return max(float((x[name] - y[name]).abs().max()) for x, y in parts for name in x)


def uploads(simulation: Simulation) -> list[Any]:
    """What arrives in each round of a whole run."""
    seen, open_round = [], simulation.fleet.open_round

    def watching(round_: Any) -> Any:
        opened = open_round(round_)
        train = opened.train
        opened.train = lambda *args: seen.append(train(*args)) or seen[-1]
        return opened

    simulation.fleet.open_round = watching
    finish(simulation)
    return seen


def seeded(use: int) -> bytes:
    return digest(b"a test", str(use).encode())
