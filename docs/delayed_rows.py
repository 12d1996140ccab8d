"""A small problem with a known answer: rows of a quadratic under asynchronous rounds.

Client i has the loss ½ Σ (x[m] − y_i)² over the rows m that it holds, and takes one step of rate h.
N clients hold the same number of rows each; a row of a kind has n holders. M updates make a step of
FedSubAvg.

    all devices alike, y = 0   an update is D = C/M − 1 steps old from the second wave on, and
                               E e(t+1) = E e(t) − h σ E e(t − D),   σ = E 1/√(1 + J)
                               J: moves of the row in D steps, binomial with q = P(a holder comes)
    fast and slow clients      y = +1 and −1: rows end, on average, at
                               Σ r σ y / Σ r σ   with r how often, and σ how heavy, a group comes in
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fedrows import catalogue
from fedrows.data.batches import Batch
from fedrows.data.federation import FederatedData
from fedrows.model import Model
from fedrows.plan import Plan
from fedrows.rows.params import Params, Submodels
from fedrows.rows.schema import Schema, Table
from fedrows.simulation import Simulation

CLIENTS, BUFFER, CONCURRENCY, RATE = 1_000, 5, 50, 0.04
DELAY = CONCURRENCY // BUFFER - 1
KINDS = {10: 2_000, 100: 200, 1_000: 1}  # holders of a row → rows of this kind
RULES = ("row", "version", "none")
SLOWER = 9.0  # how many times as long a slow client takes


def chance(holders: int) -> float:
    """q: the probability that a step moves a row with so many holders."""
    none = math.comb(CLIENTS - holders, BUFFER) / math.comb(CLIENTS, BUFFER)
    return 1 - none


def factor(rule: str, delay: int, holders: int) -> float:
    """σ: what an update counts for on average, of a row with so many holders."""
    if rule == "none":
        return 1.0
    if rule == "version":
        return 1 / math.sqrt(1 + delay)
    q = chance(holders)
    odds = [math.comb(delay, j) * q**j * (1 - q) ** (delay - j) for j in range(delay + 1)]
    return sum(p / math.sqrt(1 + j) for j, p in enumerate(odds))


def expected(rule: str, holders: int, steps: int) -> list[float]:
    """E e(t) for t = 0 … steps; in the first wave updates are younger than D."""
    error = [1.0]
    for t in range(steps):
        age = min(t, DELAY)
        error.append(error[t] - RATE * factor(rule, age, holders) * error[t - age])
    return error


def largest_rate(delay: int) -> float:
    """The rate times σ above which e(t+1) = e(t) − hσ e(t − D) grows: 2 sin(π / (4D + 2))."""
    return 2 * math.sin(math.pi / (4 * delay + 2))


def steps_to(errors: Sequence[float], target: float) -> int | None:
    """The first step at which the error is no larger than the target."""
    return next((t for t, error in enumerate(errors) if error <= target), None)


def ends_at(rule: str, holders: int) -> float:
    """Where rows end with fast (+1) and slow (−1) clients, half of all each."""
    took = np.array([1.0, SLOWER])
    wait, high = 0.0, 1e6
    for _ in range(200):  # Σ t / (w + t) = C
        middle = (wait + high) / 2
        busy = CLIENTS / 2 * (took / (middle + took)).sum()
        wait, high = (middle, high) if busy > CONCURRENCY else (wait, middle)
    often = 1 / (wait + took)
    ages = took * CLIENTS / 2 * often.sum() / BUFFER  # in steps
    weigh = often * [_between(rule, float(age), holders) for age in ages]
    return float((weigh[0] - weigh[1]) / weigh.sum())


def _between(rule: str, age: float, holders: int) -> float:
    low, share = math.floor(age), age % 1
    return (1 - share) * factor(rule, low, holders) + share * factor(rule, low + 1, holders)


@dataclass
class Pull(Model):
    """½ Σ (x − y)² over the rows that a client holds, with its gradient in closed form."""

    rows: int
    begin: float
    closed_form = True

    @property
    def schema(self) -> Schema:  # type: ignore[override]
        return Schema({"x": Table(self.rows, 1)}, {})

    def start(self) -> Params:
        return Params({"x": torch.full((self.rows, 1), self.begin, dtype=torch.float64)}, {})

    def scores(self, params: Params, fields: Mapping[str, Tensor]) -> Tensor:
        return params.tables["x"][fields["x"], 0]

    def gradient(self, block: Submodels, batch: Batch) -> Submodels:
        goal = block.index["x"].spread(2 * batch.label.mean(1) - 1)  # of labels 0 and 1
        rows = block.rows["x"] - (goal[:, None] if self.begin == 0 else 0)
        return Submodels(block.index, {"x": rows}, {})


def federation(seed: int) -> FederatedData:
    """Every client holds one row of each group; a group is a random split of the clients."""
    random = np.random.default_rng(seed)
    client, row, first = [], [], 0
    for holders, count in KINDS.items():
        for group in range(count * holders // CLIENTS):
            client.append(random.permutation(CLIENTS))
            row.append(first + group * (CLIENTS // holders) + np.arange(CLIENTS) // holders)
        first += count
    who = np.concatenate(client)
    return FederatedData.build(
        client=who, ids={"x": np.concatenate(row)}, label=(who % 2 == 0).astype(float),
        test=np.zeros(len(who), dtype=bool), tables={"x": first},
    )  # fmt: skip


def simulated(rule: str, steps: int, seed: int, clock: str = "constant") -> np.ndarray:
    """The rows before the first step and after every other: (steps + 1, rows)."""
    data = federation(seed)
    model = Pull(sum(KINDS.values()), 1.0 if clock == "constant" else 0.0)
    plan = Plan(
        rounds=steps, clients_per_round=BUFFER, local_steps=1, batch_size=1, lr=RATE, seed=seed,
        weighting="uniform", dtype="float64", device="cpu", chunk=BUFFER, train_sample=1,
        mode="async", buffer=BUFFER, concurrency=CONCURRENCY, staleness=rule, clock=clock,
    )  # fmt: skip
    run = Simulation(data, model, catalogue.algorithm("fedsubavg")(), plan)
    points = [run.progress.params.tables["x"][:, 0].numpy().copy()]
    for progress in run:
        points.append(progress.params.tables["x"][:, 0].numpy().copy())
    return np.stack(points)


def fast_and_slow(rule: str, steps: int, seed: int) -> np.ndarray:
    """The same with every second client slow, from a table of devices."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "devices.csv"
        pace = [(1.0, SLOWER)[i % 2] for i in range(CLIENTS)]
        rows = [f"{i},{1 / x},{1e9 / x},{1e9 / x}" for i, x in enumerate(pace)]
        path.write_text("\n".join(["client,speed,down,up", *rows]), "utf-8")
        return simulated(rule, steps, seed, str(path))


def of_kind(values: np.ndarray, holders: int) -> np.ndarray:
    """The columns of one kind of rows."""
    first = 0
    for kind, count in KINDS.items():
        if kind == holders:
            return values[:, first : first + count]
        first += count
    raise ValueError(f"no rows have {holders} holders")
