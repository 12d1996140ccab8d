"""A trained model in use: a bundle predicts, recommends and adapts as the model itself does."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch
from served import COLUMNS, scores_by_hand, shop, trained, write_builder
from served_module import Shop, build

import fedrows
from fedrows import FederatedData, Hashed
from fedrows.errors import BundleError, DataError, FedrowsError, ModelError
from fedrows.runs.export import Trained
from fedrows.serving.bundle import save_bundle
from fedrows.serving.rebuild import TorchScorer
from fedrows.serving.served_model import ServedModel

NEW = pd.DataFrame(
    {
        "user": ["u3", "nobody", "u7"],
        "item": ["105", "999", "129"],
        "past": [[101, 102, 103, 104, 999], [], [110]],
        "price": [0.5, -1, 2],
        "colour": ["red", "green", "blue"],
    }
)


@pytest.fixture(scope="module")
def model() -> Trained:
    return trained()


@pytest.fixture(scope="module")
def path(model: Trained, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("bundle") / "shop.fedrows"
    save_bundle(model, path, onnx=False)
    return path


@pytest.fixture
def served(model: Trained, path: Path) -> ServedModel:
    return fedrows.load(path, build(model.data, 1))


@pytest.mark.parametrize("frame", [pd.DataFrame, pl.DataFrame, dict], ids=lambda x: x.__name__)
def test_predictions_are_those_of_the_module(
    model: Trained, served: ServedModel, frame: Any
) -> None:
    for rows in (shop(), NEW):
        found = served.predict(frame(rows.to_dict("list")))
        np.testing.assert_allclose(found.scores, scores_by_hand(model, rows), atol=1e-6)
        assert found.probabilities is not None
        np.testing.assert_allclose(found.probabilities, 1 / (1 + np.exp(-found.scores)), rtol=1e-6)
    unknown, start = found.notes[0], found.notes[-1]
    assert "Column 'item': 1 values are not in the vocabulary" in unknown
    assert "scored with start values: adapt the model to a client first" in start


def test_a_module_is_given_by_itself_by_its_builder_or_by_reference(
    model: Trained, path: Path, tmp_path: Path
) -> None:
    module = build(model.data, 1)
    before = {name: x.clone() for name, x in module.state_dict().items()}
    wanted = fedrows.load(path, module).predict(NEW).scores
    assert all(torch.equal(x, before[name]) for name, x in module.state_dict().items())
    reference = write_builder(tmp_path / "own.py")
    for given in (build, reference):
        assert (fedrows.load(path, given).predict(NEW).scores == wanted).all()


def test_loading_a_bundle_runs_no_code_that_it_names(model: Trained, tmp_path: Path) -> None:
    code = tmp_path / "code.py"
    reference = write_builder(code)
    save_bundle(model, tmp_path / "m.fedrows", module=reference, onnx=False)
    code.write_text("raise SystemExit('it ran')")
    with pytest.raises(BundleError, match=r"runs no code that it names.*code.py:build' was named"):
        fedrows.load(tmp_path / "m.fedrows")


def test_a_model_of_the_catalogue_loads_by_its_name(model: Trained, tmp_path: Path) -> None:
    data = FederatedData.from_frame(shop(), **(COLUMNS | {"numbers": [], "local": []}))
    from fedrows.models.logistic import Logistic

    result = fedrows.simulate(data, Logistic(data), rounds=2, clients_per_round=5, device="cpu")
    one = replace(Trained.of(result, data), built_by="logistic")
    save_bundle(one, tmp_path / "m.fedrows", onnx=False)
    served = fedrows.load(tmp_path / "m.fedrows")
    assert served.metrics is not None
    assert served.metrics["test_auc"] == result.history[-1]["test_auc"]
    measured = served.evaluate(shop())
    assert measured["rows"] == 240
    encoded = data.encode(shop())
    examples = encoded.examples.fields(torch.arange(len(encoded.examples)))
    wanted = result.model.scores(result.params, examples)
    assert (served.predict(shop()).scores == encoded.in_order(wanted).numpy()).all()


def test_the_same_model_gives_the_same_file(model: Trained, path: Path, tmp_path: Path) -> None:
    save_bundle(model, tmp_path / "again.fedrows", onnx=False)
    assert (tmp_path / "again.fedrows").read_bytes() == path.read_bytes()


def test_every_damage_is_found(path: Path, tmp_path: Path) -> None:
    content = path.read_bytes()
    bad = tmp_path / "bad.fedrows"
    for at in np.linspace(0, len(content) - 5, 60).astype(int):
        bad.write_bytes(
            content[:at] + bytes(b ^ 255 for b in content[at : at + 4]) + content[at + 4 :]
        )
        with pytest.raises(BundleError, match=r"was changed|cut short or no bundle"):
            fedrows.load(bad)
        bad.write_bytes(content[:at])
        with pytest.raises(BundleError, match="cut short or no bundle"):
            fedrows.load(bad)


def test_another_version_and_another_module_are_named(
    model: Trained, path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedrows.serving.bundle.FORMAT", 9)
    save_bundle(model, tmp_path / "new.fedrows", onnx=False)
    monkeypatch.undo()
    with pytest.raises(BundleError, match=r"has format 9 of fedrows .* use that version"):
        fedrows.load(tmp_path / "new.fedrows")
    with pytest.raises(BundleError, match=r"'user.weight' is \(21, 4\) in the bundle and \(5, 4\)"):
        fedrows.load(path, Shop(5, model.data.tables["item"]))
    with pytest.raises(BundleError, match=r"cannot be built by .*give a function build"):
        fedrows.load(path, Shop)
    with pytest.raises(BundleError, match="has no ONNX file"):
        fedrows.load(path, onnx=True)
    with pytest.raises(BundleError, match="cannot be read"):
        fedrows.load(tmp_path / "nothing.fedrows")


def test_recommendations_are_the_best_of_all_items(model: Trained, served: ServedModel) -> None:
    context = {"user": "u3", "price": 0.25}
    found = served.recommend([101, 102], k=4, context=context)
    items = model.data.vocabulary["item"].tolist()
    rows = pd.DataFrame([context | {"item": x, "past": [101, 102]} for x in items])
    rows["score"] = scores_by_hand(model, rows)
    best = rows[~rows["item"].isin([101, 102])].nlargest(4, "score")
    assert found.items == best["item"].tolist()
    np.testing.assert_allclose(found.scores, best["score"], atol=1e-6)
    by_client = served.recommend([101, 102], k=4, client="u3", context={"price": 0.25})
    assert by_client.items == found.items
    some = served.recommend([101, 102], 2, context=context, candidates=[101, 999, 105])
    assert len(some.items) == 2
    assert set(some.items) <= {101, 999, 105}
    again = served.recommend([101, 102], k=99, context=context, exclude=[])
    assert len(again.items) == len(items)
    framed = served.recommend(
        k=9,
        client="u3",
        candidates=pd.DataFrame({"item": [105, 106], "price": [1, 2], "past": [[1], []]}),
    )
    assert sorted(framed.items) == [105, 106]


GIVEN: dict[str, Any] = {"context": {"user": "u3", "price": 1.0}}
BAD: dict[str, tuple[Any, list[str]]] = {
    "an empty history": (lambda s: s.recommend([], **GIVEN), ["history is empty", "'past': []"]),
    "no k": (lambda s: s.recommend([101], 0, **GIVEN), ["k is 0"]),
    "a column without a value": (
        lambda s: s.recommend([101], client="u3"), ["'price'", "context="]
    ),
    "no client": (lambda s: s.recommend([101], context={"price": 1}), ["'user'", "client="]),
    "a strange column": (
        lambda s: s.recommend([101], context={"size": 3}), ["context names 'size'"]
    ),
    "a history of text": (
        lambda s: s.recommend(["tea"], **GIVEN), ["numbers", "'tea'"]
    ),
    "no candidate": (lambda s: s.recommend([101], candidates=[], **GIVEN), ["no candidate"]),
    "candidates without items": (
        lambda s: s.recommend(candidates={"price": [1]}), ["no column 'item'"]
    ),
    "a missing column": (
        lambda s: s.predict(NEW.drop(columns="price")), ["no column 'price'", "user, item, past"]
    ),
    "no label to adapt to": (lambda s: s.adapt(NEW.iloc[:1]), ["no column 'liked'"]),
    "no label to evaluate on": (lambda s: s.evaluate(NEW), ["no column 'liked'"]),
    "no example to adapt to": (lambda s: s.adapt(shop().iloc[:0]), ["no row"]),
    "several clients to adapt to": (lambda s: s.adapt(shop()), ["20 clients", "'u0'"]),
    "no steps": (lambda s: s.adapt(shop().iloc[:1], steps=0), ["steps is 0"]),
    "half a step": (lambda s: s.adapt(shop().iloc[:1], steps=1.5), ["steps is 1.5"]),
    "no end of a rate": (lambda s: s.adapt(shop().iloc[:1], lr=float("inf")), ["lr is inf"]),
    "a rate in words": (lambda s: s.adapt(shop().iloc[:1], lr="0.1"), ["lr is '0.1'"]),
    "a history that is text": (
        lambda s: s.recommend("105", **GIVEN), ["history is '105'", "list of items"]
    ),
    "a history of one item": (lambda s: s.recommend(105, **GIVEN), ["history is 105"]),
    "a history of lists": (lambda s: s.recommend([[105]], **GIVEN), ["history has the list [105]"]),
    "one item to leave out": (lambda s: s.recommend([101], exclude=5, **GIVEN), ["exclude is 5"]),
    "a context that is text": (
        lambda s: s.recommend([101], client="u3", context="price"), ["context is 'price'"]
    ),
    "candidates, and some to leave out": (
        lambda s: s.recommend([101], candidates=[105], exclude=[105], **GIVEN), ["exclude"]
    ),
    "candidates that are text": (
        lambda s: s.recommend([101], candidates="105", **GIVEN), ["candidates is '105'"]
    ),
}  # fmt: skip


@pytest.mark.parametrize(("ask", "names"), BAD.values(), ids=BAD)
def test_bad_questions_are_named(served: ServedModel, ask: Any, names: list[str]) -> None:
    with pytest.raises(DataError) as caught:
        ask(served)
    said = str(caught.value)
    assert "\n" not in said
    assert said.endswith(".")
    assert all(name in said for name in names), said


def test_new_rows_need_no_label(served: ServedModel) -> None:
    """A log of what is to come has a label's column, and nothing in it."""
    wanted = served.predict(NEW).scores
    for label in (None, float("nan"), "", "unknown"):
        np.testing.assert_array_equal(served.predict(NEW.assign(liked=label)).scores, wanted)
    with pytest.raises(DataError, match="Column 'liked'"):
        served.evaluate(NEW.assign(liked=None))


def test_a_keyword_that_is_misspelt_is_named(served: ServedModel, path: Path) -> None:
    calls: dict[str, Any] = {
        "adapt has no keyword 'step': did you mean steps": lambda: served.adapt(NEW, step=3),
        "recommend has no keyword 'contex': did you mean context": lambda: served.recommend(
            contex={}
        ),
        "load has no keyword 'modul': did you mean module": lambda: fedrows.load(path, modul=build),
    }
    for said, call in calls.items():
        with pytest.raises(FedrowsError, match=re.escape(said)):
            call()


def test_k_may_be_any_whole_number(served: ServedModel) -> None:
    count = np.int64(2)
    assert len(served.recommend([101], count, **GIVEN).items) == 2  # type: ignore[arg-type]


def test_models_that_cannot_do_what_is_asked(tmp_path: Path) -> None:
    from fedrows.models.logistic import Logistic

    columns = COLUMNS | {"features": ["item"], "numbers": [], "local": []}
    data = FederatedData.from_frame(shop(), **columns, tables={"item": Hashed(50)})
    result = fedrows.simulate(data, Logistic(data), rounds=1, clients_per_round=5, device="cpu")
    one = replace(Trained.of(result, data), built_by="logistic")
    save_bundle(one, tmp_path / "m.fedrows", onnx=False)
    served = fedrows.load(tmp_path / "m.fedrows")
    with pytest.raises(ModelError, match="no local table and no personal part"):
        served.adapt(shop().iloc[:3])
    with pytest.raises(DataError, match="are hashed"):
        served.recommend()
    with pytest.raises(DataError, match="no column for the client"):
        served.recommend(client="u3")
    with pytest.raises(DataError, match="reads no list of items"):
        served.recommend([105])
    assert served.recommend(candidates=[101, "102", 103.0], k=3).scores.shape == (3,)
    with pytest.raises(ModelError, match="not about one item"):
        replace(
            served,
            bundle=replace(served.bundle, encoder=replace(served.bundle.encoder, target=None)),
        ).recommend()


@pytest.mark.parametrize("history", [False, True])
def test_ranking_models_recommend(history: bool, tmp_path: Path) -> None:
    from fedrows import catalogue
    from fedrows.data.leave_one_out import leave_one_out

    frame = shop()
    data = leave_one_out(frame["user"], frame["item"], history=3 if history else 0)
    name = "sasrec" if history else "mf"
    model = catalogue.model(name)(data, 0)
    result = fedrows.simulate(data, model, rounds=2, clients_per_round=5, device="cpu")
    save_bundle(
        replace(Trained.of(result, data), built_by=name), tmp_path / "m.fedrows", onnx=False
    )
    served = fedrows.load(tmp_path / "m.fedrows")
    found = served.recommend([101, 105], 5) if history else served.recommend(client="new", k=5)
    assert len(found.items) == 5
    assert found.probabilities is None
    assert (np.diff(found.scores) <= 0).all()
    rows = (
        {"item": found.items, "history": [[101, 105]] * 5}
        if history
        else {"item": found.items, "user": ["new"] * 5}
    )
    np.testing.assert_allclose(served.predict(rows).scores, found.scores, atol=1e-6)
    with pytest.raises(ModelError, match="labels are ranking"):
        served.evaluate(rows | {"label": [1] * 5})
    if history:
        new = served.recommend([101, 99_999, 105], 5)  # an item that came after training
        assert new.items == found.items
        assert "1 values are not in the vocabulary and are left out of their lists" in new.notes[0]
    if history:  # of a history longer than any in training, the last three items count
        long = {"item": found.items, "history": [[110, 112, 103, 101, 105, 107]] * 5}
        cut = {"item": found.items, "history": [[101, 105, 107]] * 5}
        np.testing.assert_array_equal(served.predict(long).scores, served.predict(cut).scores)
        best = served.recommend([110, 112, 103, 101, 105, 107], 5, exclude=[])
        assert best.items == served.recommend([101, 105, 107], 5, exclude=[]).items


@pytest.mark.parametrize("labels", ["classes", "numbers"])
def test_other_labels_have_other_scores(labels: str, tmp_path: Path) -> None:
    """Logits and probabilities of every class; numbers have no probability."""

    class Items(torch.nn.Module):
        def __init__(self, items: int) -> None:
            super().__init__()
            self.item = torch.nn.Embedding(items, 3)

        def forward(self, item: torch.Tensor) -> torch.Tensor:
            return self.item(item) if labels == "classes" else self.item(item).sum(1)

    frame = shop().assign(liked=np.arange(240) % 3)
    columns = COLUMNS | {"features": ["item"], "numbers": [], "local": [], "labels": labels}
    data = FederatedData.from_frame(frame, **columns)
    module = Items(data.tables["item"])
    result = fedrows.simulate(data, module, rounds=1, clients_per_round=5, device="cpu")
    save_bundle(Trained.of(result, data), tmp_path / "m.fedrows", onnx=False)
    served = fedrows.load(tmp_path / "m.fedrows", module)
    found, measured = served.predict(frame), served.evaluate(frame)
    assert found.scores.shape == ((240, 3) if labels == "classes" else (240,))
    if labels == "classes":
        assert found.probabilities is not None
        np.testing.assert_allclose(found.probabilities.sum(1), 1, rtol=1e-6)
        right = found.probabilities[np.arange(240), np.arange(240) % 3]
        assert measured["loss"] == pytest.approx(-np.log(right).mean(), rel=1e-5)
        with pytest.raises(ModelError, match="scores classes"):
            served.recommend()
    else:
        assert found.probabilities is None
        errors = found.scores - np.arange(240) % 3
        assert measured["loss"] == pytest.approx((errors**2).mean() / 2, rel=1e-5)
        assert len(served.recommend(k=3).items) == 3


def test_a_client_whose_only_item_is_the_test_item(tmp_path: Path) -> None:
    """It trains nothing, is said to, is scored with the start row, and can be adapted to later."""
    frame = shop()
    frame["held"] = frame["user"] == "u0"
    data = FederatedData.from_frame(frame, **COLUMNS, test="held")
    assert "1 of 20 clients have no training data: left out of N." in data.notes
    result = fedrows.simulate(data, build(data, 0), rounds=1, clients_per_round=5, device="cpu")
    save_bundle(Trained.of(result, data), tmp_path / "m.fedrows", onnx=False)
    served = fedrows.load(tmp_path / "m.fedrows", build)
    only = frame[frame["user"] == "u0"].iloc[:1]
    assert "start values" in served.predict(only).notes[-1]
    assert np.isfinite(served.adapt(only).predict(only).scores).all()


@pytest.mark.slow
def test_onnx_and_torch_agree_and_onnx_needs_no_module(model: Trained, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    path = tmp_path / "m.fedrows"
    assert save_bundle(model, path, onnx=True) == [
        "The rows of user stay with their clients: they are as they started."
    ]
    by_onnx = fedrows.load(path)
    assert not isinstance(by_onnx.scorer, TorchScorer)
    by_torch = fedrows.load(path, build)
    for rows in (shop(), NEW, NEW.iloc[:1]):
        one, other = by_onnx.predict(rows), by_torch.predict(rows)
        np.testing.assert_allclose(one.scores, other.scores, atol=1e-5)
    assert by_onnx.recommend([101], 5, **GIVEN).items == by_torch.recommend([101], 5, **GIVEN).items
    with pytest.raises(BundleError, match="no gradients"):
        by_onnx.adapt(shop().iloc[:3])
