"""What may leave the folder of a run under privacy full, and who may read the rest."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch
from commands import SMALL, Capture
from safetensors.torch import load_file

from fedrows.cli import main

FULL = ["--privacy", "full", "--secure-sum", "arithmetic", "--index-epsilon", "none"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("released") / "r"
    assert main(["run", "synthetic", *SMALL, *FULL, "--rounds", "3", "--out", str(path)]) == 0
    return path


def test_the_release_has_the_model_the_noisy_heat_and_epsilon(folder: Path) -> None:
    names = {path.name for path in (folder / "release").iterdir()}
    assert names == {"model.safetensors", "heat.safetensors", "privacy.json"}
    model = load_file(folder / "release/model.safetensors")
    kept = load_file(folder / "checkpoint.safetensors")
    assert set(model) == {"table/weight", "dense/bias"}
    for name, x in model.items():
        assert torch.equal(x, kept[f"model/{name}"])
    heat = load_file(folder / "release/heat.safetensors")
    assert heat["heat/weight/id"].tolist() == list(range(len(model["table/weight"])))
    spent = json.loads((folder / "release/privacy.json").read_text())
    last = json.loads((folder / "metrics.jsonl").read_text().splitlines()[-1])
    wanted = last["epsilon"]["model/user-replaced"]
    assert spent["epsilon"] == {"model/user-replaced": wanted}
    assert spent["delta"] == 1e-6
    assert spent["mechanism"]["name"] == "gaussian"
    readme = (folder / "README.md").read_text()
    for path in folder.iterdir():
        assert path.name in (*re.findall(r"[\w.-]+", readme), "README.md", "config.json"), path


def test_only_its_owner_reads_what_is_private(folder: Path) -> None:
    assert folder.stat().st_mode & 0o777 == 0o700
    private = ["metrics.jsonl", "summary.json", "data.json", "checkpoint.safetensors"]
    for name in [*private, "ledger.jsonl", "status.json"]:
        assert (folder / name).stat().st_mode & 0o777 == 0o600, name


def test_a_report_has_no_private_numbers_unless_asked(folder: Path, capsys: Capture) -> None:
    lines = [json.loads(text) for text in (folder / "metrics.jsonl").read_text().splitlines()]
    losses = {f"{line[key]:.4f}" for line in lines for key in ("train_loss", "test_loss")}
    page = (folder / "report.html").read_text()
    assert "model/user-replaced" in page
    assert "fedrows report --private" in page
    assert not [loss for loss in losses if loss in page]
    for word in ('id="curves"', 'id="summary"', 'id="heat"', "Training examples", "totals/value"):
        assert word not in page, word
    assert main(["report", str(folder), "--private"]) == 0
    asked = (folder / "report.html").read_text()
    assert any(loss in asked for loss in losses)
    assert 'id="heat"' in asked
    assert (folder / "report.html").stat().st_mode & 0o777 == 0o600
    assert main(["report", str(folder)]) == 0
    assert (folder / "report.html").read_text() == page


def test_an_export_is_made_of_the_release(folder: Path, tmp_path: Path, capsys: Capture) -> None:
    """The checkpoint is not read: without it the model can still be exported."""
    kept = (folder / "checkpoint.safetensors").rename(tmp_path / "kept")
    try:
        assert main(["export", str(folder), "--to", str(tmp_path / "m.safetensors")]) == 0
    finally:
        kept.rename(folder / "checkpoint.safetensors")
    made = load_file(tmp_path / "m.safetensors")
    model = load_file(folder / "release/model.safetensors")
    assert torch.equal(made["weight"], model["table/weight"])
    gone = (folder / "release/model.safetensors").rename(tmp_path / "gone")
    try:
        assert main(["export", str(folder), "--to", str(tmp_path / "n.safetensors")]) == 2
    finally:
        gone.rename(folder / "release/model.safetensors")
    error = capsys.readouterr().err
    assert "is missing or damaged" in error
    assert error.count("\n") == 1


def test_other_runs_have_no_release(tmp_path: Path) -> None:
    out = tmp_path / "clear"
    assert main(["run", "synthetic", *SMALL, "--rounds", "1", "--out", str(out)]) == 0
    assert not (out / "release").exists()
    assert not (out / "README.md").exists()
    assert 'id="curves"' in (out / "report.html").read_text()


def test_an_overwritten_folder_keeps_nothing_of_the_release(tmp_path: Path) -> None:
    out, words = tmp_path / "r", ["run", "synthetic", *SMALL, "--rounds", "1", "--out"]
    assert main([*words, str(out), *FULL]) == 0
    assert (out / "release").is_dir()
    assert main([*words, str(out), "--overwrite"]) == 0
    assert not (out / "release").exists()
    assert not (out / "README.md").exists()
