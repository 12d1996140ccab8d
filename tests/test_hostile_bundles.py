"""Bundles of a writer who lies: their digest is right, and nothing else has to be."""

from __future__ import annotations

import hashlib
import io
import json
import random
import zipfile
from pathlib import Path
from typing import Any

import pytest
from ranked import positives

pytest.importorskip("safetensors")

from fedrows import FederatedData, catalogue, load
from fedrows.errors import BundleError, FedrowsError
from fedrows.models import mf
from fedrows.runs.export import Trained
from fedrows.serving.bundle import FACTS, FORMAT, ONNX, WORDS, open_bundle, save_bundle


def written(path: Path, files: dict[str, bytes], compression: int) -> Path:
    """An archive with a right digest as its comment."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", compression) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
        archive.comment = b"0" * 64
    content = out.getvalue()[:-64]
    path.write_bytes(content + hashlib.sha256(content).hexdigest().encode())
    return path


def test_a_bundle_that_becomes_larger_than_its_file_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path / "bomb", {FACTS: b" " * 2**20}, zipfile.ZIP_DEFLATED)
    assert path.stat().st_size < 2**13
    with pytest.raises(BundleError, match="is compressed, and bundles of fedrows are not"):
        open_bundle(path)


@pytest.mark.parametrize("encoder", [None, [], {}, {"features": 3}])
def test_facts_that_do_not_fit_are_refused(tmp_path: Path, encoder: object) -> None:
    facts = {"format": FORMAT, "fedrows": "0", **({} if encoder is None else {"encoder": encoder})}
    files = {FACTS: json.dumps(facts).encode()}
    path = written(tmp_path / "odd", files, zipfile.ZIP_STORED)
    with pytest.raises(BundleError, match="has parts that do not fit together"):
        open_bundle(path)


@pytest.mark.parametrize(
    "lie", [{"ridge": "much"}, {"ridge": -1}, {"first": {"item": 99}}, {"first": {"tea": 0}}]
)
def test_a_ridge_that_does_not_fit_is_refused(tmp_path: Path, lie: dict[str, Any]) -> None:
    data = positives()
    start = mf.build(data)
    trained = Trained(start, start.start(), data, built_by="mf")
    save_bundle(trained, tmp_path / "true", onnx=False)
    with zipfile.ZipFile(tmp_path / "true") as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    facts = json.loads(files[FACTS])
    facts["model"] |= lie
    files[FACTS] = json.dumps(facts).encode()
    path = written(tmp_path / "odd", files, zipfile.ZIP_STORED)
    with pytest.raises(BundleError, match="has a ridge that does not fit its tables"):
        load(path)


def parts_of(path: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


@pytest.fixture(scope="module")
def true_bundles(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Bundles of two models, as an honest writer writes them."""
    pytest.importorskip("pandas")
    from served import shop

    folder = tmp_path_factory.mktemp("bundles")
    data = FederatedData.from_frame(
        shop(), client="user", label="liked", features={"user": "user", "item": "item"},
        local=["user"], target=("item", None),
    )  # fmt: skip
    for name in ("mf", "logistic"):
        model = catalogue.model(name)(data, 0)
        trained = Trained(model, model.start(), data, built_by=name)
        save_bundle(trained, folder / name, onnx=False)
    return [folder / "mf", folder / "logistic"]


LIES: list[Any] = [
    None, True, 0, -1, 3, 10**6, 10**12, 10**30, 0.5, 1e308, "", "x", "../x", "a:b", [], {}, [1],
    {"a": 1}, ["x"], "item", "user", "time", "number", "text", "hashed", "given", "vocabulary",
    "classes", "numbers", "ranking",
]  # fmt: skip


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The paths of everything in a value of JSON; of a list, of its first entries."""
    keys: list[Any] = []
    if isinstance(value, dict | list):
        keys = list(value) if isinstance(value, dict) else list(range(len(value)))[:3]
    inside = [places(value[key], (*path, key)) for key in keys]
    return [path, *(one for some in inside for one in some)]


def changed(value: Any, path: tuple[Any, ...], lie: Any) -> Any:
    """The same with a lie at a path; without what is there if the lie is `...`."""
    if not path:
        return {} if lie is ... else lie
    copy = dict(value) if isinstance(value, dict) else list(value)
    if lie is ... and len(path) == 1:
        del copy[path[0]]
    else:
        copy[path[0]] = changed(copy[path[0]], path[1:], lie)
    return copy


def test_lies_in_a_bundle_are_refused_or_do_no_harm(
    true_bundles: list[Path], tmp_path: Path
) -> None:
    """150 bundles with something changed or left out give answers, or an error message."""
    from served import shop

    rng, frame, whole = random.Random(0), shop(3), 0
    for trial in range(150):
        name = true_bundles[trial % 2]
        files = parts_of(name)
        part = rng.choice([FACTS, FACTS, FACTS, WORDS])
        said = json.loads(files[part])
        path = rng.choice([place for place in places(said) if place])
        files[part] = json.dumps(changed(said, path, rng.choice([*LIES, ..., ...]))).encode()
        lying = written(tmp_path / "lying", files, zipfile.ZIP_STORED)
        try:
            served = load(lying)
            served.predict(frame)
            served.recommend(k=3, client="u1")
            served.evaluate(frame)
        except FedrowsError:
            continue
        whole += 1
    assert 5 < whole < 145


@pytest.mark.parametrize(
    ("path", "lie"),
    [
        (("tables", "user", "rows"), 10**12),
        (("features", "user", "width"), 10**12),
        (("features", "user", "length"), 10**12),
        (("numbers",), {"price": 10**12}),
    ],
)
def test_a_small_bundle_cannot_ask_for_a_large_memory(
    true_bundles: list[Path], tmp_path: Path, path: tuple[str, ...], lie: Any
) -> None:
    files = parts_of(true_bundles[1])
    facts = json.loads(files[FACTS])
    files[FACTS] = json.dumps(changed(facts, ("encoder", *path), lie)).encode()
    lying = written(tmp_path / "lying", files, zipfile.ZIP_STORED)
    with pytest.raises(BundleError, match=r"has not the rows of any weights|has no right width"):
        load(lying)


def test_json_without_an_end_is_refused(true_bundles: list[Path], tmp_path: Path) -> None:
    files = parts_of(true_bundles[0])
    for part in (FACTS, WORDS):
        deep = written(tmp_path / "deep", {**files, part: b"[" * 10**6}, zipfile.ZIP_STORED)
        with pytest.raises(BundleError):
            load(deep)


def test_a_file_that_is_no_onnx_is_refused(true_bundles: list[Path], tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    files = {**parts_of(true_bundles[0]), ONNX: b"junk"}
    with pytest.raises(BundleError, match=r"The ONNX file in .* cannot be used"):
        load(written(tmp_path / "odd", files, zipfile.ZIP_STORED), onnx=True)


def test_an_onnx_file_of_something_else_is_refused(
    true_bundles: list[Path], tmp_path: Path
) -> None:
    pytest.importorskip("onnxruntime")
    onnx = pytest.importorskip("onnx")
    ends = [onnx.helper.make_tensor_value_info(name, 1, [4]) for name in ("secret", "score")]
    node = onnx.helper.make_node("Identity", ["secret"], ["score"])
    graph = onnx.helper.make_graph([node], "odd", ends[:1], ends[1:])
    opset = [onnx.helper.make_opsetid("", 17)]
    model = onnx.helper.make_model(graph, opset_imports=opset, ir_version=9)
    files = {**parts_of(true_bundles[0]), ONNX: model.SerializeToString()}
    with pytest.raises(BundleError, match="does not give scores of its columns"):
        load(written(tmp_path / "odd", files, zipfile.ZIP_STORED), onnx=True)
