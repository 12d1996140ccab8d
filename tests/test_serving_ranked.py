"""Models that rank in use: of a deployed run, of a module of one's own, and in ONNX."""

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
from torch import Tensor, nn

from fedrows import FederatedData, catalogue, load, save_data, simulate
from fedrows.files.plugins import attribute, import_file
from fedrows.flower.deployment import Deployment
from fedrows.flower.journal import Journal, carry_out
from fedrows.flower.wire.contract import DeployedTask, make_contract
from fedrows.runs.export import Trained, onnx_inputs, save
from fedrows.serving.bundle import save_bundle
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


class Near(nn.Module):
    """Scores candidates (B, C), and nothing else, by the mean of the history."""

    def __init__(self, items: int) -> None:
        super().__init__()
        self.item = nn.Embedding(items, 3, padding_idx=0)

    def forward(self, item: Tensor, history: Tensor) -> Tensor:
        seen = (history != 0).to(self.item.weight.dtype)[..., None]  # (B, L, 1)
        mean = (self.item(history) * seen).sum(1) / seen.sum(1).clamp(min=1)  # (B, 3)
        return torch.einsum("bcf,bf->bc", self.item(item), mean)


def near(data: FederatedData, seed: int) -> Near:
    torch.manual_seed(seed)
    return Near(data.tables["item"])


def test_a_module_of_ones_own_is_served_as_it_was_trained() -> None:
    data = positives(history=True)
    module = near(data, 0)
    result = simulate(data, module, rounds=2, clients_per_round=5, lr=0.5, device="cpu")
    save_bundle(Trained.of(result, data), Path("m.fedrows"), onnx=False)
    served = load("m.fedrows", near)
    items, history = np.arange(1, 41), [3, 5, 7]
    module.load_state_dict(result.state_dict())
    with torch.no_grad():
        by_hand = module(torch.from_numpy(items)[None], torch.tensor([history]))[0].numpy()
    scores = served.predict({"item": items, "history": [history] * 40}).scores
    np.testing.assert_allclose(scores, by_hand, atol=1e-6)
    best = [int(item) for item in served.recommend(history, 5).items]
    assert best == [int(x) for x in items[np.argsort(-by_hand)] if x not in history][:5]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mf", "sasrec", "own"])
def test_onnx_ranks_alike_with_any_number_of_candidates(name: str) -> None:
    runtime = pytest.importorskip("onnxruntime")
    data = positives(history=name != "mf")
    model = near(data, 0) if name == "own" else catalogue.builder(name)(data, 0)
    result = simulate(data, model, rounds=2, clients_per_round=5, lr=0.5, device="cpu")
    one = Trained.of(result, data)
    save_bundle(one, Path("m.fedrows"), onnx=True)
    by_torch = load("m.fedrows", near if name == "own" else name)
    by_onnx = load("m.fedrows", onnx=True)
    rows: dict[str, Any] = {"item": [4, 9, 2]}
    rows |= {"user": [1, 0, 3]} if name == "mf" else {"history": [[1], [], [2, 3]]}
    scores = by_torch.predict(rows).scores
    np.testing.assert_allclose(by_onnx.predict(rows).scores, scores, atol=1e-5)
    save(one, Path("m.onnx"))
    assert onnx_inputs(Path("m.onnx"))["item"] == ["examples", "item_length"]
    other = "user" if name == "mf" else "history"
    given = {x: np.array([[1], [2]]) if x == "history" else np.array([1, 2]) for x in (other,)}
    given["item"] = np.array([[4, 9, 2, 7]] * 2)
    if other == "history":
        given[other] = np.pad(given[other], ((0, 0), (0, 1)))
    session = runtime.InferenceSession("m.onnx", providers=["CPUExecutionProvider"])
    assert session.run(["score"], given)[0].shape == (2, 4)
