"""What a liar inside a secure sum can do: its mean stays where honest ones lie."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("safetensors")

from deployed import CONFIG, examples, run, shards_of, task_of
from loopback import federation

from fedrows.algorithms.fedsubavg import FedSubAvg
from fedrows.data.federation import FederatedData
from fedrows.flower.node import sum_inputs
from fedrows.flower.node.private_node import PrivateNode
from fedrows.privacy.layout import PartyVectors
from fedrows.privacy.protocol import ProtocolError
from fedrows.privacy.row_space import RowSpace
from fedrows.privacy.weighted_mean import Mean, WeightedMean
from fedrows.rows.heat import Heat, heat_of

SUMMING = WeightedMean({"t": 1}, {"bias": ()}, 4.0)
HEAT = {"t": Heat(torch.arange(3), torch.tensor([100.0, 10.0, 1.0]).double(), 100.0)}
WEIGHTS = torch.tensor([5.0, 7.0, 8.0]).double()


def mean(*rows: float, weight: float = 20.0, bias: float = 0.0) -> Mean:
    values = torch.tensor(rows, dtype=torch.float64)[:, None]
    return Mean(weight, {"t": (torch.arange(len(rows)), values)}, {"bias": torch.tensor(bias)})


def test_rows_are_clamped_after_the_correction() -> None:
    found = SUMMING.bounded(mean(9e10, -1e4, 3.9, bias=-1e9), WEIGHTS, FedSubAvg(cap=50.0), HEAT)
    assert found is not None
    assert found.rows["t"][1].flatten().tolist() == pytest.approx([4.0, -0.4, 4.0 / 50])
    assert float(found.dense["bias"]) == -4.0


def test_honest_means_stay_as_they_are() -> None:
    honest = mean(0.24, -0.3, 0.05, bias=0.2)
    found = SUMMING.bounded(honest, WEIGHTS, FedSubAvg(cap=50.0), HEAT)
    assert found is not None
    assert torch.equal(found.rows["t"][1], honest.rows["t"][1])


@pytest.mark.parametrize("weight", [1e-9, 4.9, 20.1, 4e6, float("inf")])
def test_weights_that_cannot_be_right_are_refused(weight: float) -> None:
    with pytest.raises(ProtocolError, match=r"add up to .* but only 4\.995 to 20\.02 can"):
        SUMMING.bounded(mean(0.1, weight=weight), WEIGHTS, FedSubAvg(), HEAT)


LIES = {
    "in range": lambda coding: coding.encode(np.array([coding.range]))[0],
    "beyond": lambda coding: coding.dtype.type(2 ** (coding.bits - 2)),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_lie_in_a_secure_sum_moves_a_row_no_further_than_the_range(
    tmp_path: Path, lie: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One node of four puts the same large word at each of its rows; its weight is honest."""
    data = examples()
    config = CONFIG | {"privacy": "index", "index-epsilon": "", "index-epsilon-for-ever": ""}
    config |= {"rounds": 1, "clients-per-round": 12, "local-steps": 1, "update-range": 2.0}
    fleet, _ = federation(task_of(data), config, shards_of(data, 4), tmp_path)
    lies, half, words = [False], PrivateNode._half, PartyVectors.words

    def lying_half(self: PrivateNode, *args: Any) -> Any:
        lies[0] = self.name == "n1"
        return half(self, *args)

    def lying_words(self: PartyVectors, *args: Any) -> Any:
        rows, holds, behind = words(self, *args)
        if lies[0]:
            own = holds & (np.arange(len(holds)) < self.layout.numbers // self.layout.piece)
            rows = np.where(own[:, None], LIES[lie](self.coding), rows)
        return rows, holds, behind

    monkeypatch.setattr(PrivateNode, "_half", lying_half)
    monkeypatch.setattr(PartyVectors, "words", lying_words)
    moved = run(fleet, data).whole().tables["item"].abs()
    assert 0.5 < float(moved.max()) <= 2.0 + 1e-9  # the lie is there, within the range


def test_a_lie_about_heat_stops_no_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A row that more clients held than there are would move by next to nothing, for ever."""
    data, honest = examples(), sum_inputs.heat_vector

    def lying(space: RowSpace, shard: FederatedData) -> np.ndarray:
        words = honest(space, shard)
        words[3] += np.uint64(2**40)
        words[4:5] -= np.uint64(2**20)  # a sum below 0
        return words

    monkeypatch.setattr(sum_inputs, "heat_vector", lying)
    config = CONFIG | {"privacy": "index", "index-epsilon": "", "index-epsilon-for-ever": ""}
    fleet, _ = federation(task_of(data), config, shards_of(data, 3), tmp_path)
    fleet.gather()
    found, wanted = fleet.heat()["item"], heat_of(data.index["item"], data.weights("uniform"))
    counts = dict(zip(found.ids.tolist(), found.counts.tolist(), strict=True))
    right = dict(zip(wanted.ids.tolist(), wanted.counts.tolist(), strict=True))
    assert counts == {row: x for row, x in right.items() if row != 4} | {3: 12.0}
