"""Example 1 and Figure 2: two weights, one held by a single client of N = 100, one by all.

    f_1 = w1² + w2²,   f_i = w2² for every other client   (each plus a constant)
    FedAvg      w1 = (1 − 2η/N)^r · w1⁰,   w2 = (1 − 2η)^r · w2⁰
    FedSubAvg   w1 = (1 − 2γ)^r · w1⁰,     w2 = (1 − 2γ)^r · w2⁰

All clients take part in every round with one step along the exact gradient. The numbers come from
the package's own rounds and are held against the closed forms.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from fedrows.data.batches import Batch
from fedrows.data.federation import FederatedData
from fedrows.model import Model
from fedrows.paper.cells import line, number_cell, verdict_cell
from fedrows.paper.experiment import Experiment, Work
from fedrows.paper.theory.iterates import after_rounds
from fedrows.report.artefact import Artefact, Cell, Figure, Panel, ResultTable
from fedrows.rows.params import Params, Submodels
from fedrows.rows.schema import Schema
from fedrows.rows.schema import Table as Rows

CLIENTS, ROUNDS = 100, 200
START = (1.0, 1.0)
RATES = (0.5, 0.3, 0.1)
NEAR = 1e-12  # how near the closed form a run must be
TITLES = {"fedavg": "FedAvg, η", "fedsubavg": "FedSubAvg, γ"}


def make(work: Work) -> Artefact:
    """The trajectories, their distance to the optimum, and the distance to the closed forms."""
    cells, paths, distances = [], [], []
    worst = 0.0
    for name, title in TITLES.items():
        for rate in RATES:
            run, exact = trajectory(name, rate), closed_form(name, rate)
            off = float(np.abs(run - exact).max())
            worst = max(worst, off)
            label, away = f"{title} = {rate}", np.hypot(*run.T)
            seen = away > 1e-16  # a logarithm ends there
            paths.append(line(label, run[:, 1], run[:, 0]))
            distances.append(line(label, np.flatnonzero(seen).tolist(), away[seen].tolist()))
            near = np.flatnonzero(away <= 1e-3)
            weights = (number_cell(round(float(x), 15)) for x in (*run[10], *run[-1]))
            rounds_to = number_cell(float(near[0])) if len(near) else Cell(f"more than {ROUNDS}")
            checks = Cell(f"{off:.1e}", off), verdict_cell(off <= NEAR)
            cells.append((Cell(label), *weights, rounds_to, *checks))
    columns = (
        "", "w1 after 10 rounds", "w2 after 10 rounds", f"w1 after {ROUNDS}", f"w2 after {ROUNDS}",
        "rounds until |w| ≤ 0.001", "furthest from the closed form", f"within {NEAR:g}",
    )  # fmt: skip
    return Artefact(
        "example1",
        "Figure 2 and Example 1: a dispersion of 100",
        "Under FedAvg the weight that one client of 100 holds moves a hundred times too slowly; "
        f"under FedSubAvg both go at the same speed. No run is further than {worst:.0e} from the "
        "closed form.",
        (ResultTable("example1", f"N = {CLIENTS}, from w = (1, 1)", columns, tuple(cells),
               "At a rate of 0.5 w2 vanishes at once, under FedSubAvg w1 as well. "
               "The paper does not say which rates its figure uses."),),
        (
            Figure("figure2", "Figure 2: trajectories at a dispersion of 100",
                   (Panel("Where the model goes", "w2", "w1", tuple(paths)),
                    Panel("How far it is from (0, 0)", "round", "|w|", tuple(distances),
                          log_y=True))),
        ),
    )  # fmt: skip


class TwoWeights(Model):
    """Σ of w² over the weights that a client holds; its gradient 2·w needs no example."""

    closed_form = True
    schema = Schema({"w": Rows(2, 1)}, {})

    def start(self) -> Params:
        return Params({"w": torch.tensor(START, dtype=torch.float64)[:, None]}, {})

    def scores(self, params: Params, fields: Mapping[str, Tensor]) -> Tensor:
        return params.tables["w"][fields["w"], 0]

    def gradient(self, block: Submodels, batch: Batch) -> Submodels:
        return block.map(lambda x: 2 * x)


def federation(clients: int = CLIENTS) -> FederatedData:
    """Client 0 holds both weights, every other one the second."""
    return FederatedData.build(
        client=np.concatenate([[0], np.arange(clients)]),
        ids={"w": np.concatenate([[0], np.ones(clients, dtype=int)])},
        label=np.zeros(clients + 1),
        test=np.zeros(clients + 1, dtype=bool),
        tables={"w": 2},
    )


def trajectory(name: str, rate: float, clients: int = CLIENTS, many: int = ROUNDS) -> np.ndarray:
    """(w1, w2) before the first round and after every other: (rounds + 1, 2)."""
    return after_rounds(
        federation(clients), TwoWeights(), name, rounds=many, local_steps=1, lr=rate
    )


def closed_form(name: str, rate: float, clients: int = CLIENTS, many: int = ROUNDS) -> np.ndarray:
    """The same by the paper's formulas."""
    slow = 1 - 2 * rate / (clients if name == "fedavg" else 1)
    factors = np.array([slow, 1 - 2 * rate])
    return np.array(START) * factors ** np.arange(many + 1)[:, None]


EXPERIMENT = Experiment("example1", "Figure 2: Example 1, two weights and 100 clients", make)
