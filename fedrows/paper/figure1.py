"""Figure 1: one round of FedAvg and of FedSubAvg, worked out for three clients and three rows.

All N = 3 clients take part, with equal weights. Row 1 is held by clients 1 and 2 as in the paper's
picture, row 2 by all, row 3 by client 3 alone. The numbers come from the algorithms themselves.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fedrows import catalogue
from fedrows.algorithm import Round
from fedrows.paper.experiment import Experiment, Work
from fedrows.report.artefact import Artefact, Cell, Curve, Figure, Panel, ResultTable
from fedrows.rows.heat import heat_of
from fedrows.rows.index import Index
from fedrows.rows.params import Params, Submodels, total

CLIENTS = 3
HELD = (((0, 0.9), (1, 0.6)), ((0, 0.3), (1, 0.3)), ((1, 0.9), (2, 1.2)))  # (row, update) by client
ROWS = 3
NAMES = {"fedavg": "FedAvg", "fedsubavg": "FedSubAvg"}


def make(work: Work) -> Artefact:
    """The picture, as a table and as dots."""
    uploads = [dict(pairs) for pairs in HELD]
    moved = {title: step(name).tolist() for name, title in NAMES.items()}
    return Artefact(
        "figure1",
        "Figure 1: FedAvg and FedSubAvg with N = 3 clients",
        "FedAvg divides by all clients, so that row 3, which one of three holds, moves by a third "
        "of what its holder wants; FedSubAvg moves every row by the mean over its holders.",
        (_table(uploads, moved),),
        (_figure(uploads, moved),),
    )


def _table(uploads: list[dict[int, float]], moved: dict[str, list[float]]) -> ResultTable:
    rows = []
    for row in range(ROWS):
        own = [upload[row] for upload in uploads if row in upload]
        uploaded = (_number(upload.get(row)) for upload in uploads)
        steps = (_number(by_row[row]) for by_row in moved.values())
        holders = Cell(f"{len(own)}", float(len(own)))
        means = _number(CLIENTS / len(own)), _number(sum(own) / len(own))
        rows.append((Cell(f"row {row + 1}"), *uploaded, holders, *means, *steps))
    columns = (
        "",
        *(f"client {i + 1} uploads" for i in range(CLIENTS)),
        "n_m",
        "N / n_m",
        "mean over holders",
        *(f"{title} moves by" for title in moved),
    )
    note = "–: the client does not hold the row, downloads nothing of it and uploads nothing."
    return ResultTable(
        "figure1", "One round, all three clients taking part", columns, tuple(rows), note
    )


def _figure(uploads: list[dict[int, float]], moved: dict[str, list[float]]) -> Figure:
    numbers = tuple(float(row + 1) for row in range(ROWS))
    level = Curve("no update", (numbers[0], numbers[-1]), (0.0, 0.0), kind="guide")
    held = (
        Curve(
            f"client {i}", tuple(row + 1.0 for row in upload), tuple(upload.values()), kind="dots"
        )
        for i, upload in enumerate(uploads, start=1)
    )
    steps = (Curve(title, numbers, tuple(y), kind="dots") for title, y in moved.items())
    panels = (
        Panel("what the clients upload", "row", "update", (*held, level)),
        Panel("how far the round moves each row", "row", "update", (*steps, level)),
    )
    note = "Row 1 is held by clients 1 and 2, row 2 by all, row 3 by client 3."
    return Figure("figure1", "Figure 1: one round with N = K = 3", panels, note)


def step(name: str) -> Tensor:
    """By how much one round of an algorithm moves the rows: (rows,) float64."""
    ids = torch.tensor([row for pairs in HELD for row, _ in pairs])
    splits = torch.tensor([0, *torch.tensor([len(pairs) for pairs in HELD]).cumsum(0).tolist()])
    update = torch.tensor([[x] for pairs in HELD for _, x in pairs], dtype=torch.float64)
    index = Index(ids, splits)
    weights = torch.ones(CLIENTS, dtype=torch.float64)
    sums = total(Submodels({"w": index}, {"w": update}, {}), weights, torch.ones(CLIENTS))
    params = Params({"w": torch.zeros(ROWS, 1, dtype=torch.float64)}, {})
    algorithm = catalogue.algorithm(name)()
    round_ = Round(1, 1.0, CLIENTS, float(CLIENTS), torch.arange(CLIENTS))
    heat = {"w": heat_of(index, weights)}
    algorithm.step_(params, algorithm.start(params), sums, heat, round_)
    return params.tables["w"][:, 0]


def _number(value: float | None) -> Cell:
    return Cell("–") if value is None else Cell(f"{value:.2f}", value)


EXPERIMENT = Experiment("figure1", "Figure 1: a round with three clients, worked out", make)
