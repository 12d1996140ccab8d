"""A deployed run on data that are to be ranked: what the server measures, and what it exports."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from commands import fedrows, own_folder  # noqa: F401
from deployed import CONFIG, difference, shards_of
from loopback import Loopback, fresh
from ranked import positives

from fedrows import load, save_data
from fedrows.files.plugins import attribute, import_file
from fedrows.flower.deployment import Deployment
from fedrows.flower.journal import Journal, carry_out
from fedrows.flower.wire.contract import DeployedTask, make_contract
from fedrows.simulation import Simulation
from fedrows.watch import Observers

pytestmark = pytest.mark.usefixtures("own_folder")
TASK = """
from fedrows import catalogue
from fedrows.data.stored.store import open_data
from fedrows.flower.wire.contract import DeployedTask

def model(data, seed):
    return catalogue.model(name(data))(data, seed)

def name(data):
    return "sasrec" if "history" in data.fields else "mf"

def server(config):
    return open_data(config["shop-data"])

TASK = DeployedTask("shop", server, model, server, name)
"""


def deployed(history: bool) -> tuple[Deployment, Simulation]:
    """A run in the folder `run`, and its simulated twin."""
    data = positives(history=history)
    save_data(data, "data")
    Path("task.py").write_text(TASK)
    task: DeployedTask = attribute(import_file(Path("task.py").absolute(), "It"), "TASK", "It")
    config: dict[str, Any] = {**CONFIG, "device": "cpu", "shop-data": "data", "negatives-pool": 7}
    config |= {"rounds": 6, "clients-per-round": 12, "algorithm": "fedsubavg", "lr": 1.0}
    transport = Loopback()
    for number, (name, shard) in enumerate(shards_of(data).items(), start=1):
        transport.here[number] = fresh(task, config, shard, Path("nodes").absolute() / name, name)
    run = Deployment(make_contract(task, config), transport, config, lambda text: None)
    with Journal.opened(Path("run"), run) as journal:
        carry_out(run, journal, Observers())
    twin = Simulation(data, run.contract.model(data), run.algorithm, run.plan)
    for _ in twin:
        pass
    return run, twin


def test_a_bundle_of_sequences_ranks_as_the_simulated_run() -> None:
    run, twin = deployed(history=True)
    assert difference(run.progress.whole(), twin.progress.whole()) < 1e-12
    found, wanted = run.evaluate(), twin.evaluate()
    for name in ("test_hr10", "test_ndcg10_all", "validation_mrr", "test_loss", "train_loss"):
        assert found[name] == pytest.approx(wanted[name], abs=1e-9)
    fedrows("export", "run", "--to", "m.fedrows", "--no-onnx")
    served = load("m.fedrows")
    history, items = [3, 5, 7], np.arange(1, 41)
    rows = {"item": items, "history": [history] * 40}
    scores = served.predict(rows).scores
    fields = {"item": torch.from_numpy(items), "history": torch.tensor([history] * 40)}
    by_hand = twin.model.scores(twin.progress.whole(), fields).numpy()
    np.testing.assert_allclose(scores, by_hand, atol=1e-5)
    best = [int(item) for item in served.recommend(history, 5).items]
    order = [int(item) for item in items[np.argsort(-by_hand)] if item not in history]
    assert best == order[:5]


def test_users_rows_stay_on_their_nodes_so_a_bundle_has_those_of_the_start() -> None:
    run, twin = deployed(history=False)
    whole, other = run.progress.whole(), twin.progress.whole()
    assert float((whole.tables["item"] - other.tables["item"]).abs().max()) < 1e-12
    assert torch.equal(whole.tables["user"], run.model.start().tables["user"].double())
    assert not torch.equal(other.tables["user"], whole.tables["user"])
    assert 0 <= run.evaluate()["test_hr10"] <= 1
    fedrows("export", "run", "--to", "m.fedrows", "--no-onnx")
    served = load("m.fedrows")
    rows = {"item": np.arange(40), "user": np.zeros(40, dtype=np.int64)}
    ids = {name: torch.from_numpy(column) for name, column in rows.items()}
    by_hand = run.model.scores(whole, ids).numpy()
    np.testing.assert_allclose(served.predict(rows).scores, by_hand, atol=1e-5)
    assert len(served.recommend(client=3, k=5).items) == 5
