"""Deployed rounds on data that are to be ranked: nodes draw the negatives that a simulation draws."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("safetensors")

from deployed import CONFIG, difference, run, shards_of, simulated, task_of
from loopback import federation, fresh
from ranked import positives

from fedrows import catalogue
from fedrows.data.federation import FederatedData
from fedrows.models import mf, sasrec

CHOSEN = CONFIG | {"negatives-pool": 7, "negatives": 3, "batch-size": 3}
RANKS = [
    name for name in catalogue.names("algorithm") if name not in ("centralsgd", "scaffold")
]


def task(data: FederatedData, **more: Any) -> Any:
    if "history" in data.fields:
        return task_of(data, lambda d, s: sasrec.build(d, s, width=8, **more))
    return task_of(data, lambda d, s: mf.build(d, s, factors=3))


@pytest.mark.parametrize("algorithm", RANKS)
def test_deployed_is_simulated(tmp_path: Path, algorithm: str) -> None:
    data = positives()
    fleet, _ = federation(task(data), CHOSEN | {"algorithm": algorithm}, shards_of(data), tmp_path)
    found, wanted = run(fleet, data).whole(), simulated(fleet, data)
    assert float((found.tables["item"] - wanted.tables["item"]).abs().max()) < 1e-12
    assert float((found.dense["bias"] - wanted.dense["bias"]).abs().max()) < 1e-12
    assert not fleet.rejected
