"""One private round, two transports: what holds in a simulation holds in a deployment."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch

pytest.importorskip("cryptography")

import deployed
from deployed import CONFIG, difference, examples, shards_of, task_of
from loopback import federation

from fedrows.data.federation import FederatedData
from fedrows.flower.wire.contract import make_contract
from fedrows.privacy.options import Privacy
from fedrows.privacy.ring import RangeError
from fedrows.rows.params import Params
from fedrows.simulation import Simulation

OPEN: dict[str, Any] = {
    "privacy": "index", "index-epsilon": "", "index-epsilon-for-ever": "", "min-contributors": 1,
    "timeout": 5.0,
}  # fmt: skip
BOTH = pytest.mark.parametrize("transport", ["simulated", "deployed"])


def simulation(data: FederatedData, options: dict[str, Any], private: bool) -> Simulation:
    agreed = make_contract(task_of(data), CONFIG | OPEN | options)
    privacy = agreed.privacy if private else Privacy()
    return Simulation(data, agreed.model(data), agreed.algorithm, agreed.plan, privacy)


def finished(transport: str, data: FederatedData, options: dict[str, Any], folder: Path) -> Params:
    """The model after a private run; local rows are read where they are kept."""
    if transport != "deployed":
        made = simulation(data, options, transport == "simulated")
        for _ in made:
            pass
        return made.progress.whole()
    # Every client is a node, so that the parties of a sum are the same as in a simulation.
    shards = shards_of(data, data.clients)
    fleet, _ = federation(task_of(data), CONFIG | OPEN | options, shards, folder)
    params = deployed.run(fleet, data).whole().copy()
    for table in data.local:
        for client in folder.glob("n*/*/clients/*"):
            kept = safetensors.torch.load(sorted(client.iterdir())[-1].read_bytes())
            params.tables[table][kept[f"local/{table}/ids"]] = kept[f"local/{table}"]
    return params


def with_local_table() -> FederatedData:
    draw = np.random.default_rng(1)
    client = np.repeat(np.arange(5), 6)
    return FederatedData.build(
        client=client,
        ids={"user": client, "item": draw.integers(0, 10, len(client))},
        label=draw.random(len(client)) < 0.5,
        test=np.zeros(len(client), dtype=bool),
        tables={"user": 5, "item": 10},
        local=["user"],
    )


@pytest.mark.parametrize(
    "transport", ["simulated", pytest.param("deployed", marks=pytest.mark.slow)]
)
def test_local_tables_learn_as_in_the_clear(transport: str, tmp_path: Path) -> None:
    data, options = with_local_table(), {"clients-per-round": 4, "rounds": 6}
    clear, private = (finished(one, data, options, tmp_path) for one in ("clear", transport))
    assert float(clear.tables["user"].abs().max()) > 0.1
    assert difference(clear, private) < 2e-5


@BOTH
@pytest.mark.parametrize("cap", ["", 2.0])
def test_the_largest_correction_follows_from_heat(
    transport: str, cap: float | str, tmp_path: Path
) -> None:
    """A range that no word can hold is refused with the correction that it must bear."""
    data = examples(clients=4, rows=6)
    heat = data.heat("uniform")["item"]
    largest = min(heat.total / float(heat.counts.min()), cap or np.inf)
    options = {"update-range": 1e12, "clients-per-round": 4, "rounds": 1, "cap": cap}
    with pytest.raises(RangeError, match=f"a correction of up to {largest:g},"):
        finished(transport, data, options, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        {"min-contributors": 2},
        {"update-range": 0.02},
        {"index-epsilon": 2.0, "index-epsilon-for-ever": 4.0},
    ],
    ids=["rows held back", "numbers cut off", "examples cut"],
)
def test_both_transports_hold_back_and_cut_alike(
    options: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some rows wait for a second holder, some numbers for more room, some rows are not asked for.

    Answers have no luck here: nobody asks for a row that 3 divides, and all ask for the others.
    """
    monkeypatch.setattr(
        "fedrows.privacy.answers.Answers.answer_", lambda self, rows, *_: rows % 3 != 0
    )
    data = examples(clients=5, rows=12, each=12)
    more = options | {"clients-per-round": 4, "rounds": 4}
    one, other = (finished(t, data, more, tmp_path) for t in ("simulated", "deployed"))
    clear = finished("clear", data, more, tmp_path)
    assert difference(one, other) < 2e-5
    assert difference(one, clear) > 1e-3  # so something was held back, or cut


def with_groups() -> FederatedData:
    """Items, and items by one of two kinds of clients: rows of one value."""
    draw = np.random.default_rng(2)
    client = np.repeat(np.arange(6), 8)
    item = draw.integers(0, 4, len(client))
    return FederatedData.build(
        client=client,
        ids={"item": np.stack([item, 4 + 4 * (client % 2) + item], axis=1)},
        label=draw.random(len(client)) < 0.5,
        test=np.zeros(len(client), dtype=bool),
        tables={"item": 12},
        groups={"item": {"item": (0, 4), "kind×item": (4, 12)}},
    )


@pytest.mark.slow
def test_rows_of_one_value_open_alike_in_both_transports(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, options = with_groups(), {"clients-per-round": 5, "rounds": 3, "min-contributors": 2}
    one, other = (finished(t, data, options, tmp_path) for t in ("simulated", "deployed"))
    assert difference(one, other) < 2e-5
    monkeypatch.setattr(
        "fedrows.privacy.openings.Openings.may_open", lambda plan, counts: counts >= plan.minimum
    )
    assert difference(one, finished("simulated", data, options, tmp_path)) > 1e-3


@pytest.mark.slow
def test_a_node_adds_its_clients_up_before_anything_leaves(tmp_path: Path) -> None:
    """Three nodes with two clients each send what six nodes with one would send."""
    data, options = with_local_table(), {"clients-per-round": 5, "rounds": 3}
    data = data.select(torch.arange(5))
    fleet, _ = federation(task_of(data), CONFIG | OPEN | options, shards_of(data, 3), tmp_path)
    together = deployed.run(fleet, data).whole()
    clear = finished("clear", data, options, tmp_path)
    assert float((together.tables["item"] - clear.tables["item"]).abs().max()) < 2e-5
