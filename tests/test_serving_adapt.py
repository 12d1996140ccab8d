"""A served model adapts to a new client: the client's own rows move, and nothing else."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from served import COLUMNS, shop, trained
from served_module import build

import fedrows
from fedrows import FederatedData
from fedrows.errors import DataError
from fedrows.models import mf
from fedrows.runs.export import Trained
from fedrows.serving.bundle import save_bundle
from fedrows.serving.rebuild import TorchScorer


class Levels(torch.nn.Module):
    def __init__(self, items: int) -> None:
        super().__init__()
        self.item = torch.nn.Embedding(items, 1)
        self.level = torch.nn.Parameter(torch.zeros(()))

    def forward(self, item: torch.Tensor) -> torch.Tensor:
        return self.item(item)[:, 0] + self.level


def test_a_client_adapts_its_own_rows_and_nothing_else(tmp_path: Path) -> None:
    """Against a slow twin: gradient steps on a plain module, in float64."""
    one = trained("float64")
    save_bundle(one, tmp_path / "m.fedrows", onnx=False)
    served = fedrows.load(tmp_path / "m.fedrows", build)
    mine = shop(seed=5).iloc[:6].assign(user="new")
    twin = build(one.data, 0).double()
    twin.load_state_dict(one.state_dict())
    encoded = one.data.encode(mine)
    fields = encoded.examples.to(torch.device("cpu"), torch.float64).fields(torch.arange(6))
    label = encoded.examples.label.double()
    for _ in range(7):
        loss = torch.nn.functional.binary_cross_entropy_with_logits(twin(**fields), label)
        twin.zero_grad()
        loss.backward()
        with torch.no_grad():
            twin.user.weight -= 0.5 * twin.user.weight.grad
    adapted = served.adapt(mine, steps=7, lr=0.5)
    with torch.no_grad():
        wanted = encoded.in_order(twin(**fields)).numpy()
    np.testing.assert_allclose(adapted.predict(mine).scores, wanted, atol=1e-12)
    assert adapted.evaluate(mine)["loss"] < served.evaluate(mine)["loss"]
    assert not any("start values" in note for note in adapted.predict(mine).notes)
    ours, theirs = adapted.scorer, served.scorer
    assert isinstance(ours, TorchScorer)
    assert isinstance(theirs, TorchScorer)
    changed = (ours.params.tables["user"] != theirs.params.tables["user"]).any(1)
    assert changed.nonzero().flatten().tolist() == [one.data.tables["user"] - 1]
    assert torch.equal(ours.params.tables["item"], theirs.params.tables["item"])
    best = adapted.recommend([101], 1, context={"price": 0.0})
    assert best.scores[0] == pytest.approx(
        adapted.recommend([101], 1, client="new", context={"price": 0.0}).scores[0]
    )
    for other in (mine.assign(user="newer"), mine.assign(user="u3")):
        with pytest.raises(DataError, match="was adapted to client 'new', but a row is of"):
            adapted.predict(other)


def test_personal_parts_start_alike_and_adapt(tmp_path: Path) -> None:
    columns = COLUMNS | {"features": ["item"], "numbers": [], "local": []}
    data = FederatedData.from_frame(shop(), **columns)
    module = Levels(data.tables["item"])
    result = fedrows.simulate(
        data, module, personal=["level"], rounds=2, clients_per_round=5, device="cpu"
    )
    save_bundle(Trained.of(result, data), tmp_path / "m.fedrows", onnx=False)
    served = fedrows.load(tmp_path / "m.fedrows", module)
    mine = shop().iloc[:4].assign(liked=1)
    before = served.predict(mine)
    assert "personal parts level stay with their clients" in before.notes[-1]
    moved = served.adapt(mine, steps=1, lr=0.5).predict(mine).scores - before.scores
    wanted = 0.5 * (1 - 1 / (1 + np.exp(-before.scores))).mean()  # −lr · the mean slope
    np.testing.assert_allclose(moved, wanted, rtol=1e-5)


@pytest.mark.parametrize("ridge", [None, 0.0, 0.7])
def test_a_new_client_of_a_bundled_model_has_the_ridge_of_training(
    ridge: float | None, tmp_path: Path
) -> None:
    """Against a slow twin: steps on the loss with a penalty on the factors that are read."""
    columns = COLUMNS | {"features": ["user", "item"], "numbers": []}
    data = FederatedData.from_frame(shop(), **columns)
    model = mf.build(data, 0, ridge=ridge)
    result = fedrows.simulate(data, model, rounds=2, lr=0.5, clients_per_round=8, device="cpu")
    one = replace(Trained.of(result, data), built_by="mf")
    save_bundle(one, tmp_path / "m.fedrows", onnx=False)
    mine = shop(seed=5).iloc[:6].assign(user="new")
    adapted = fedrows.load(tmp_path / "m.fedrows").adapt(mine, steps=9, lr=0.5)
    state = one.state_dict()
    encoded = data.encode(mine)
    item, user = (encoded.examples.ids[name] for name in ("item", "user"))
    p, b = state["user_factors.weight"][user[0]].clone(), torch.zeros(())
    b += state["user_bias.weight"][user[0], 0]
    q, level = state["item_factors.weight"][item], state["item_bias.weight"][item, 0]
    strength = mf.RIDGE if ridge is None else ridge
    for _ in range(9):
        p.requires_grad_(), b.requires_grad_()
        scores = q @ p + level + b + state["bias"]
        loss = torch.nn.functional.binary_cross_entropy_with_logits(
            scores, encoded.examples.label.float()
        )
        slopes = torch.autograd.grad(loss + strength / 2 * p.square().sum(), [p, b])
        p, b = (x.detach() - 0.5 * slope for x, slope in zip((p, b), slopes, strict=True))
    wanted = encoded.in_order(q @ p + level + b + state["bias"]).numpy()
    np.testing.assert_allclose(adapted.predict(mine).scores, wanted, atol=1e-5)


def test_a_client_is_known_by_its_value(tmp_path: Path) -> None:
    """Adapted to 5, it is the model of "5" and of 5.0 too, but of nobody else."""
    columns = COLUMNS | {"client": "who", "features": ["item"], "numbers": [], "local": []}
    frame = shop().assign(who=lambda x: x["user"].str[1:].astype(int))
    data = FederatedData.from_frame(frame, **columns)
    result = fedrows.simulate(
        data, Levels(data.tables["item"]), personal=["level"], rounds=1, clients_per_round=5,
        device="cpu",
    )  # fmt: skip
    save_bundle(Trained.of(result, data), tmp_path / "m.fedrows", onnx=False)
    served = fedrows.load(tmp_path / "m.fedrows", Levels(data.tables["item"]))
    mine = frame[frame["who"] == 5]
    adapted = served.adapt(mine)
    wanted = adapted.predict(mine).scores
    for name in ("5", 5.0, np.int8(5)):
        np.testing.assert_array_equal(adapted.predict(mine.assign(who=name)).scores, wanted)
        again = served.adapt(mine.assign(who=name))
        np.testing.assert_array_equal(again.predict(mine).scores, wanted)
    for name in (6, "05", "five"):
        with pytest.raises(DataError, match="was adapted to client 5, but a row is of"):
            adapted.predict(mine.assign(who=name))
