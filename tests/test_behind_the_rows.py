"""Weight, loss and dense numbers of a sum open as its rows do, with enough contributors."""

from __future__ import annotations

import numpy as np
import pytest
import torch

pytest.importorskip("cryptography")

from fedrows.privacy.held_back import HeldBack
from fedrows.privacy.in_memory import ClientKeys, InMemoryProtocols
from fedrows.privacy.layout import OpenedRows, PartyVectors
from fedrows.privacy.options import Privacy
from fedrows.privacy.values import Values
from fedrows.privacy.weighted_mean import ClientUpdates, WeightedMean
from fedrows.rows.index import Index
from fedrows.rows.params import Submodels

UNION = {"item": np.arange(4)}
DENSE = {"bias": (3,)}  # not a multiple of the rows' width


def opened(how: str, minimum: int, dense: list[float], losses: bool = True) -> OpenedRows:
    """The sum of four parties, of which the first have trained: one for each dense number."""
    count = len(dense)
    values = {"item": Values()} if minimum > 1 else None
    mean = WeightedMean({"item": 2}, DENSE, 4.0, losses, values)
    index = {"item": Index(torch.arange(4).repeat(count), 4 * torch.arange(count + 1))}
    own = torch.tensor(dense, dtype=torch.float64)[:, None].expand(-1, 3)
    rows = {"item": torch.full((4 * count, 2), 0.25, dtype=torch.float64)}
    updates = ClientUpdates(
        Submodels(index, rows, {"bias": own.clone()}), np.ones(count), np.arange(count),
        np.arange(4), np.full(count, 0.5),
    )  # fmt: skip
    sent = mean.contribute(updates, UNION, HeldBack(mean.widths))
    coding = mean.coding(np.ones(4), 4, 3, 1.0)
    vectors = PartyVectors(mean.layout(UNION), sent, coding)
    privacy = Privacy.of("index", min_contributors=minimum, secure_sum=how)
    protocols = InMemoryProtocols(privacy, ClientKeys(), [0, 1, 2, 3], "a round")
    outcome = protocols.add_up(vectors, np.ones(4, dtype=bool), {})
    assert not outcome.failed
    return outcome.opened


@pytest.mark.parametrize("how", ["arithmetic", "real"])
@pytest.mark.parametrize(
    ("minimum", "dense", "figures", "bias"),
    [
        (2, [0.5], [0, 0], 0),  # of one party alone nothing is opened
        (2, [0.5, 0.25], [2, 1], 0.75),
        (2, [0.5, 0.0], [2, 1], 0),  # zeros hide nobody
        (3, [0.5, 0.25], [0, 0], 0),
        (3, [0.5, 0.25, -0.25], [3, 1.5], 0.5),
        (1, [0.5], [1, 0.5], 0.5),
    ],
)
def test_they_open_with_enough_contributors(
    how: str, minimum: int, dense: list[float], figures: list[float], bias: float
) -> None:
    found = opened(how, minimum, dense)
    assert found.extra == pytest.approx([*figures, bias, bias, bias], abs=1e-5)
    marks, sums = found.rows["item"]
    assert marks.all() == (len(dense) >= minimum)
    assert sums == pytest.approx(0.25 * len(dense) if marks.all() else 0, abs=1e-5)


@pytest.mark.parametrize("how", ["arithmetic", "real"])
def test_without_losses_the_weight_stands_alone(how: str) -> None:
    found = opened(how, 2, [0.5, 0.25], losses=False)
    assert found.extra == pytest.approx([2, 0.75, 0.75, 0.75], abs=1e-5)
