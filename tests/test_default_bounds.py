"""What bounds a client that lies when nobody has asked for it, in runs as deployments make them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("safetensors")

from deployed import CONFIG, examples, run, shards_of, task_of
from loopback import Loopback, federation, fresh

from fedrows import catalogue
from fedrows.algorithms.fedsubavg import FedSubAvg
from fedrows.data.federation import FederatedData
from fedrows.flower.deployment import Deployment
from fedrows.flower.journal import Journal, carry_out
from fedrows.flower.wire.contract import BOUNDS, make_contract
from fedrows.flower.wire.message import Message, pack, unpack
from fedrows.runs.folder import RunFolder
from fedrows.watch import Observers

COHORT = CONFIG["clients-per-round"]


def test_a_run_that_chooses_nothing_has_all_bounds_in_its_folder(tmp_path: Path) -> None:
    """The configuration of a whole run, as the server wrote it and its nodes agreed to it."""
    data, loopback = examples(), Loopback()
    for place, (name, shard) in enumerate(shards_of(data).items(), start=1):
        loopback.here[place] = fresh(task_of(data), CONFIG, shard, tmp_path / name, name)
    deployment = Deployment(make_contract(task_of(data), CONFIG), loopback, CONFIG, lambda _: None)
    with Journal.opened(tmp_path / "run", deployment) as journal:
        carry_out(deployment, journal, Observers())
    found = RunFolder.open(tmp_path / "run").config
    assert found["algorithm"]["cap"] == COHORT
    assert {name: found["plan"][name] for name in BOUNDS} == BOUNDS


@pytest.mark.parametrize("mode", ["clear", "index", "full"])
def test_the_correction_is_bounded_by_the_cohort_in_every_mode(mode: str) -> None:
    chosen = {"dp-noise": 2.0} if mode == "full" else {}
    made = make_contract(task_of(examples()), CONFIG | {"privacy": mode} | chosen)
    assert made.algorithm == FedSubAvg(cap=float(COHORT))


def test_a_run_may_choose_another_bound_or_none() -> None:
    task = task_of(examples())
    assert make_contract(task, CONFIG | {"cap": 100.0}).algorithm == FedSubAvg(cap=100.0)
    assert make_contract(task, CONFIG | {"cap": ""}).algorithm == FedSubAvg()


def test_a_simulation_has_the_correction_as_published() -> None:
    """Nobody lies there, and the paper's runs have no cap."""
    assert catalogue.algorithm("fedsubavg")().cap is None


def with_a_row_of_its_own(clients: int, rows: int = 30) -> FederatedData:
    """Client 0 alone holds the last row."""
    draw = np.random.default_rng(0)
    client = np.repeat(np.arange(clients), 8)
    ids = draw.integers(0, rows - 1, len(client))
    ids[:8] = rows - 1
    label = draw.random(len(client)) < 0.5
    label[:8] = True
    test = np.zeros(len(client), dtype=bool)
    return FederatedData.build(
        client=client, ids={"item": ids}, label=label, test=test, tables={"item": rows}
    )


def test_a_liar_moves_its_cold_row_no_further_than_it_says_to(tmp_path: Path) -> None:
    """One client of 24 has a row that nobody else has; its node sends ten times its updates."""
    data = with_a_row_of_its_own(clients=24)
    config = CONFIG | {"weighting": "uniform", "rounds": 6, "max-norm": 1e9}

    def moved(folder: str, **options: Any) -> float:
        shards = shards_of(data, 6)
        fleet, loopback = federation(task_of(data), config | options, shards, tmp_path / folder)

        def meddle(node: int, answer: bytes) -> bytes:
            message = unpack(answer)
            if node != 1 or message.kind != "trained":
                return answer
            values = np.frombuffer(message.parts["update/item"], dtype="<f8") * 10
            lie = {**message.parts, "update/item": values.tobytes()}
            sent.append(float(np.abs(values).max(initial=0.0)))
            return pack(Message("trained", message.facts, lie))

        loopback.meddle, sent = meddle, list[float]()
        found = abs(float(run(fleet, data).whole().tables["item"][-1]))
        assert sent  # it was drawn
        assert folder == "unbounded" or found <= sum(sent) * (1 + 1e-9)
        return found

    default, capped = moved("default"), moved("capped", **{"row-clip": ""})
    unbounded = moved("unbounded", **{"row-clip": "", "cap": ""})
    assert capped == pytest.approx(unbounded * COHORT / data.clients, rel=1e-3)  # not N / n, but K
    assert default < capped / 10  # and its row is clipped beside
