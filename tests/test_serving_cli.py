"""Bundles from the command line: of simulated and of deployed runs, and what they predict."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch
from commands import Capture, fedrows, own_folder  # noqa: F401
from served import shop, trained, write_builder
from served_module import build

from fedrows import load
from fedrows.cli import main
from fedrows.cli.export import read
from fedrows.runs.folder import RunFolder
from fedrows.serving.bundle import save_bundle

SMALL = ["--clients=30", "--items=20", "--examples-per-client=8", "--clients-per-round=5"]
RUN = ["run", "synthetic", *SMALL, "--rounds", "2", "--out", "a"]

pytestmark = pytest.mark.usefixtures("own_folder")


def written(rows: pd.DataFrame, path: str) -> str:
    """The rows in a file, its lists as text with spaces in a CSV file."""
    if path.endswith(".csv"):
        lists = {c: rows[c].map(lambda x: " ".join(map(str, x))) for c in ("past",) if c in rows}
        rows.assign(**lists).to_csv(path, index=False)
    else:
        rows.to_parquet(path)
    return path


def test_a_simulated_run_is_served(capsys: Capture) -> None:
    fedrows(*RUN)
    fedrows("export", "a", "--to", "m.fedrows", "--no-onnx")
    assert "Load it with fedrows.load('m.fedrows')" in capsys.readouterr().out
    one = read(Path("a"))
    test = one.data.test
    fields = test.fields(torch.arange(len(test)))
    wanted = one.model.scores(one.params, fields)
    names = one.data.client_names[test.owner.numpy()]
    rows = pd.DataFrame(
        {"client": names, "features": fields["features"].tolist(), "label": test.label.numpy()}
    )
    rows.to_parquet("rows.parquet")
    fedrows("predict", "m.fedrows", "--data", "rows.parquet", "--out", "scores.parquet")
    scores = pd.read_parquet("scores.parquet")
    assert (scores["score"].to_numpy(np.float32) == wanted.numpy()).all()
    fedrows("evaluate", "m.fedrows", "--data", "rows.parquet")
    said = capsys.readouterr().out
    kept = RunFolder.open(Path("a")).lines()[-1]
    for name in ("loss", "accuracy", "auc", "gauc"):
        (line,) = [x.split() for x in said.splitlines() if x.startswith(name)]
        assert float(line[1]) == pytest.approx(kept[f"test_{name}"], abs=1e-6)
        assert float(line[2]) == pytest.approx(kept[f"test_{name}"], abs=1e-6)


@pytest.fixture
def bundle() -> str:
    save_bundle(trained(), Path("shop.fedrows"), onnx=False)
    write_builder(Path("own.py"))
    return "shop.fedrows"


@pytest.mark.parametrize("library", ["pandas", "polars"])
@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_files_are_predicted_alike(
    bundle: str, ending: str, library: str, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    rows = shop(seed=3).iloc[:7].assign(colour="red")
    wanted = load(bundle, build).predict(rows)
    data, out = written(rows, f"rows.{ending}"), f"scores.{ending}"
    with monkeypatch.context() as patch:
        if library == "polars":
            patch.setitem(sys.modules, "pandas", None)
        fedrows("predict", bundle, "--module", "own.py:build", "--data", data, "--out", out)
    said = capsys.readouterr().out
    assert "Not used: colour." in said
    assert "start values" in said
    found = pd.read_csv(out) if ending == "csv" else pl.read_parquet(out).to_pandas()
    assert list(found) == ["user", "item", "score", "probability"]
    assert found["user"].tolist() == rows["user"].tolist()
    np.testing.assert_allclose(found["score"], wanted.scores, atol=1e-7)
    np.testing.assert_allclose(found["probability"], wanted.probabilities, atol=1e-7)


def test_lists_in_csv_may_be_json_and_labels_words(bundle: str, capsys: Capture) -> None:
    rows = shop(seed=3).iloc[:6]
    rows.assign(past=rows["past"].map(str), liked=rows["liked"] == 1).to_csv("a.csv", index=False)
    written(rows, "b.csv")
    said = []
    for name in ("a.csv", "b.csv"):
        fedrows("evaluate", bundle, "--module", "own.py:build", "--data", name)
        said.append(capsys.readouterr().out)
    assert said[0] == said[1]
    assert "0." in said[0]


NAMED = ["--module", "own.py:build"]
BAD: dict[str, tuple[list[str], str]] = {
    "nothing": (["predict"], "Name a bundle, its data and a file to write"),
    "nothing to evaluate": (["evaluate", "shop.fedrows"], "Name a bundle and its data"),
    "no module": (
        ["predict", "shop.fedrows", "--data", "rows.csv", "--out", "o.csv"],
        "runs no code that it names",
    ),
    "a place that is taken": (
        ["predict", "shop.fedrows", "--data", "rows.csv", "--out", "rows.csv"], "exists already",
    ),
    "an ending": (
        ["predict", "shop.fedrows", "--data", "rows.csv", "--out", "o.txt"], ".csv or .parquet",
    ),
    "no folder": (
        ["predict", "shop.fedrows", "--data", "rows.csv", "--out", "no/o.csv"], "is no folder",
    ),
    "no file": (["evaluate", "shop.fedrows", "--data", "no.csv", *NAMED], "no file no.csv"),
    "another file": (["evaluate", "shop.fedrows", "--data", "own.py", *NAMED], "neither a .csv"),
    "no Parquet": (["evaluate", "shop.fedrows", "--data", "x.parquet", *NAMED], "cannot be read"),
    "a missing column": (
        ["evaluate", "shop.fedrows", "--data", "short.csv", *NAMED], "no column 'price'",
    ),
    "no list": (["evaluate", "shop.fedrows", "--data", "list.csv", *NAMED], "no JSON list"),
    "cut short": (["evaluate", "cut.fedrows", "--data", "rows.csv", *NAMED], "cut short"),
    "a format": (["export", "a", "--to", "m", "--format", "keras"], "torch, onnx, bundle"),
}  # fmt: skip


@pytest.mark.parametrize(("words", "sentence"), BAD.values(), ids=BAD)
def test_what_cannot_be_done_is_one_line_and_leaves_nothing(
    bundle: str, words: list[str], sentence: str, capsys: Capture
) -> None:
    rows = shop(seed=3).iloc[:3]
    written(rows, "rows.csv")
    written(rows.drop(columns="price"), "short.csv")
    rows.assign(past="['a',").to_csv("list.csv", index=False)
    Path("x.parquet").write_text("x")
    Path("cut.fedrows").write_bytes(Path(bundle).read_bytes()[:-100])
    before = sorted(Path().rglob("*"))
    capsys.readouterr()
    assert main(words) == 2
    err = capsys.readouterr().err
    assert sentence in err
    assert err.count("\n") == 1
    assert [x for x in sorted(Path().rglob("*")) if "__pycache__" not in str(x)] == before


def test_without_pandas_and_polars_it_is_said(
    bundle: str, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    """Parquet needs one of them; CSV does not."""
    for name in ("rows.csv", "rows.parquet"):
        written(shop().iloc[:2], name)
    for name in ("pandas", "polars"):
        monkeypatch.setitem(sys.modules, name, None)
    fedrows("evaluate", bundle, "--data", "rows.csv", *NAMED)
    assert main(["evaluate", bundle, "--data", "rows.parquet", *NAMED]) == 2
    assert "need pandas or polars: install one" in capsys.readouterr().err


@pytest.mark.usefixtures("quick_starts")
@pytest.mark.slow
def test_a_deployed_run_predicts_alike_in_python_in_onnx_and_on_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    """The example project in a real federation: hashed items, and a module of its own."""
    pytest.importorskip("flwr")
    import runpy

    from fedrows.flower.launch.federation import LocalFederation, NodeSpec

    example = Path(__file__).parents[1] / "examples" / "flower"
    data, out = tmp_path / "ratings", tmp_path / "run"
    runpy.run_path(str(example / "make_ratings.py"))["main"](data, 2)
    nodes = [
        NodeSpec(
            f"node-{i}", {"shard": str(data / f"node-{i}.csv"), "state": str(tmp_path / f"s{i}")}
        )
        for i in range(2)
    ]
    with LocalFederation(tmp_path / "federation", nodes) as federation:
        config: dict[str, Any] = {"out": str(out), "rounds": 3}
        run = federation.control.submit(
            example, config | {"ratings-sample": str(data / "sample.csv")}
        )
        assert federation.wait(run, 180) == "finished:completed"
    for name in [name for name in sys.modules if name.split(".")[0] == "ratings"]:
        del sys.modules[name]
    monkeypatch.setattr(sys, "path", [x for x in sys.path if x != str(example)])
    assert main(["export", str(out), "--to", "m.fedrows"]) == 2
    assert "name it with --task" in capsys.readouterr().err
    task = str(example / "ratings" / "task.py")
    fedrows("export", str(out), "--to", "m.fedrows", "--task", f"{task}:TASK", "--onnx")
    rows = pd.read_csv(data / "node-0.csv")
    rows["liked"] = rows["stars"] >= 4
    rows.to_csv("rows.csv", index=False)
    by_torch = load("m.fedrows", f"{task}:model")
    wanted = by_torch.predict(rows).scores
    assert wanted.std() > 0.01
    np.testing.assert_allclose(load("m.fedrows").predict(rows).scores, wanted, atol=1e-5)
    for more in (["--module", f"{task}:model"], ["--onnx"]):
        fedrows(
            "predict", "m.fedrows", "--data", "rows.csv", "--out", "s.csv", "--overwrite", *more
        )
        np.testing.assert_allclose(pd.read_csv("s.csv")["score"], wanted, atol=1e-5)
    assert by_torch.metrics is not None
    sample = pd.read_csv(data / "sample.csv")
    sample["liked"] = sample["stars"] >= 4
    assert 0 < by_torch.evaluate(sample)["loss"] < 1
