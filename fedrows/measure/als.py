"""Alternating least squares: biases and factors of clients and items, fitted to the labels.

    y ≈ μ + b_u + b_m + ⟨p_u, q_m⟩

With one side held, the other is a ridge regression per row on [1, the factors of the held side],
which is solved exactly. A score is the logit of the fitted share.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fedrows.data.examples import Examples
from fedrows.data.federation import FederatedData
from fedrows.measure.anchors import ExampleScorer, best, check_labels

RIDGES = (3.0, 6.0, 12.0)  # that are tried
TURNS = 8
_EXAMPLES = 2**16  # whose products are made at once


def als(
    data: FederatedData, factors: int = 8, ridge: float | None = None, seed: int = 0
) -> ExampleScorer:  # fmt: skip
    """The fit with the ridge that does best on validation examples, or with a given one."""
    check_labels(data)
    tried = RIDGES if ridge is None else (ridge,)
    return best([_fit(data, factors, each, seed) for each in tried], data)


def _fit(data: FederatedData, factors: int, ridge: float, seed: int) -> ExampleScorer:
    draw = torch.Generator().manual_seed(seed)
    label, ids = data.train.label.double().cpu(), _client_and_item(data, data.train)
    assert data.target is not None
    sizes = len(data.test.splits) - 1, data.tables[data.fields[data.target[0]]]
    sides = [  # a bias, then factors: (rows, 1 + f)
        torch.randn(rows, 1 + factors, generator=draw, dtype=torch.float64) * 0.1 for rows in sizes
    ]
    for side in sides:
        side[:, 0] = 0
    mean = label.mean()
    for _ in range(TURNS):
        for fitted, held in ((1, 0), (0, 1)):
            other = sides[held]
            design = torch.cat([torch.ones_like(other[:, :1]), other[:, 1:]], 1)  # (rows, 1 + f)
            wanted = label - mean - other[ids[held], 0]
            sides[fitted] = _regressed(design, ids[held], ids[fitted], wanted, ridge, sizes[fitted])

    def scorer(part: Examples) -> Tensor:
        client, item = _client_and_item(data, part)
        p, q = sides[0][client], sides[1][item]  # (n, 1 + f)
        share = mean + p[:, 0] + q[:, 0] + (p[:, 1:] * q[:, 1:]).sum(1)
        return torch.logit(share, eps=1e-3)

    return scorer


def _client_and_item(data: FederatedData, part: Examples) -> tuple[Tensor, Tensor]:
    """The client and the item of every example."""
    return part.owner.cpu(), data.targets(part).cpu()


def _regressed(
    design: Tensor, other: Tensor, row: Tensor, wanted: Tensor, ridge: float, rows: int
) -> Tensor:
    """For every row the ridge regression over its examples: (rows, w).

    An example's features are design[other] (n, w), and `wanted` (n,) is what they should come to.
    """
    width = design.shape[1]
    squares = torch.zeros(rows, width * width, dtype=torch.float64)
    products = torch.zeros(rows, width, dtype=torch.float64)
    for some in torch.arange(len(row)).split(_EXAMPLES):
        x = design[other[some]]  # (s, w)
        outer = (x.unsqueeze(2) * x.unsqueeze(1)).flatten(1)  # (s, w·w)
        squares.index_add_(0, row[some], outer)
        products.index_add_(0, row[some], x * wanted[some].unsqueeze(1))
    penalty = ridge * torch.eye(width, dtype=torch.float64)
    return torch.linalg.solve(squares.view(rows, width, width) + penalty, products)
