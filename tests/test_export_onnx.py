"""A model exported to ONNX gives the same scores, without fedrows."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from exported import Tied, expected, history, items, ratings
from torch import Tensor, nn

from fedrows import FederatedData, catalogue
from fedrows.notebook.simulate import simulate
from fedrows.runs.export import (
    ExportError,
    Trained,
    check_format,
    onnx_inputs,
    save,
)


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)


def scored(path: Path, data: FederatedData) -> Tensor:
    """The test examples' scores by ONNX, all at once."""
    runtime = pytest.importorskip("onnxruntime")
    session = runtime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    fields = data.test.fields(torch.arange(len(data.test)))
    types = {x.name: x.type for x in session.get_inputs()}
    assert types.keys() == fields.keys()
    given = {
        name: x.numpy().astype(np.float32) if types[name] == "tensor(float)" else x.numpy()
        for name, x in fields.items()
    }
    return torch.from_numpy(session.run(["score"], given)[0])


def words() -> FederatedData:
    """Data for the LSTM: texts."""
    return ratings(features={"before": "token"}, tables={"token": 9})


def features() -> FederatedData:
    """Data for logistic regression, with a list in a padded table."""
    return ratings(features={"item": "item", "before": "token"}, tables={"token": 9})


@pytest.mark.parametrize(
    ("name", "make"),
    [
        ("logistic", features),
        pytest.param("lstm", words, marks=pytest.mark.slow),
        ("din", history),
    ],
)
@pytest.mark.slow
def test_onnx_gives_the_scores_of_the_built_in_models(name: str, make: Any) -> None:
    pytest.importorskip("onnxscript")
    data = make()
    model = catalogue.model(name)(data, 0)
    result = simulate(data, model, rounds=2, clients_per_round=5, lr=0.1)
    trained = Trained.of(result, data)
    assert expected(trained).std() > 0
    save(trained, Path("m.onnx"))
    torch.testing.assert_close(
        scored(Path("m.onnx"), data), expected(trained), rtol=1e-5, atol=1e-6
    )
    assert [path.name for path in Path().iterdir()] == ["m.onnx"]
    shapes = onnx_inputs(Path("m.onnx"))
    assert all(shape[0] == "examples" for shape in shapes.values())
    if name != "lstm" or torch.__version__ >= "2.13":  # before, its lists have one length
        lists = {field: shape[1] for field, shape in shapes.items() if len(shape) > 1}
        assert lists == {field: f"{field}_length" for field in trained.lists()}


@pytest.mark.slow
def test_onnx_of_a_users_module_and_of_one_length_of_list() -> None:
    pytest.importorskip("onnxscript")

    class Flat(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.token, self.top = nn.Embedding(9, 3, padding_idx=0), nn.Linear(12, 1)

        def forward(self, before: Tensor, price: Tensor) -> Tensor:
            return self.top(self.token(before).flatten(1))[:, 0] * price

    data = ratings(features={"before": "token"}, tables={"token": 9}, numbers=["price"])
    result = simulate(data, Flat(), rounds=2, clients_per_round=5)
    trained = Trained.of(result, data)
    save(trained, Path("m.onnx"))
    torch.testing.assert_close(scored(Path("m.onnx"), data), expected(trained))


def test_a_module_that_onnx_cannot_have_is_one_sentence() -> None:
    pytest.importorskip("onnxscript")

    class Odd(Tied):
        def forward(self, item: Tensor, price: Tensor) -> Tensor:
            scores = super().forward(item, price)
            if not self.training and float(scores.detach().sum()) > 1e9:
                return scores * 2
            return scores

    data = items()
    result = simulate(data, Odd(data.tables["item"]), rounds=1, clients_per_round=5)
    with pytest.raises(ExportError, match=r"^Odd cannot be exported to ONNX \(.*\): export it as"):
        save(Trained.of(result, data), Path("m.onnx"))
    assert list(Path().iterdir()) == []


def test_a_missing_package_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    pytest.importorskip("onnx")
    with pytest.raises(ExportError, match=r"pip install fedrows\[onnx\]\.$"):
        check_format("onnx")
