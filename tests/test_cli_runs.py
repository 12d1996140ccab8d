"""What commands leave: run folders, and comparisons with their tables and reports."""

import json
import re
from pathlib import Path

import pytest
from commands import COMPARE, RUN, Capture, assert_same, fedrows, interrupted, metrics
from commands import own_folder as own_folder

from fedrows import catalogue
from fedrows.cli import main
from fedrows.runs import checkpoint
from fedrows.runs.folder import RunFolder

pytestmark = pytest.mark.usefixtures("own_folder")

KEYS = {
    *("algorithm", "seed", "round", "bytes_down", "bytes_up", "seconds", "buckets"),
    *("train_loss", "test_loss", "test_accuracy", "test_auc", "test_gauc"),
}
THREE = ["--algorithms", "fedavg,fedsubavg,centralsgd", "--seeds", "0,1"]


# One run


def test_a_run_leaves_its_folder(capsys: Capture) -> None:
    fedrows(*RUN, "--seed", "3", "--data-seed", "7", "--cap", "9", "--threads", "1")
    folder = Path("runs/synthetic-fedsubavg-3")
    names = "checkpoint.safetensors config.json data.json metrics.jsonl report.html "
    names += "status.json summary.json"
    assert sorted(p.name for p in folder.iterdir()) == names.split()
    config = json.loads((folder / "config.json").read_text())
    assert config["format"] == 1
    assert (config["kind"], config["task"]["name"]) == ("run", "synthetic")
    assert config["task"]["seed"] == 7
    assert config["algorithm"] == {"name": "fedsubavg", "cap": 9.0, "alpha": 1.0}
    plan = config["plan"]
    assert (plan["seed"], plan["device"], plan["chunk"], plan["threads"]) == (3, "cpu", None, 1)
    lines = [json.loads(text) for text in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [line["round"] for line in lines] == [5, 10, 12]
    assert all(line.keys() == KEYS for line in lines)
    assert all((line["algorithm"], line["seed"]) == ("fedsubavg", 3) for line in lines)
    assert checkpoint.standing(folder / "checkpoint.safetensors").round == 12
    said = capsys.readouterr().out
    assert said.rstrip().endswith("Report: runs/synthetic-fedsubavg-3/report.html")
    assert len(re.findall(r"round +\d+/12", said)) == 3


def test_presets_come_before_defaults_and_after_what_is_typed() -> None:
    task = catalogue.task("synthetic")
    preset = task.algorithms["fedadam"]["server_lr"]
    fedrows(*RUN, "--algorithm", "fedadam", "--out", "preset")
    fedrows(*RUN, "--algorithm", "fedadam", "--out", "typed", "--server-lr", "0.5")
    used = [RunFolder.open(Path(f)).config["algorithm"]["server_lr"] for f in ("preset", "typed")]
    assert used == [preset, 0.5]


def test_the_same_seed_gives_the_same_run_and_another_does_not() -> None:
    fedrows(*RUN, "--out", "one")
    fedrows(*RUN, "--out", "two")
    fedrows(*RUN, "--out", "three", "--seed", "1")
    assert_same("one", "two")
    assert metrics("one")[-1]["train_loss"] != metrics("three")[-1]["train_loss"]


def test_overwrite_replaces_a_run_and_keeps_what_is_not_its_own() -> None:
    fedrows(*RUN, "--out", "done")
    fedrows(*RUN, "--out", "run", "--seed", "1")
    Path("run/mine.txt").write_text("mine")
    fedrows(*RUN, "--out", "run", "--overwrite")
    assert_same("run", "done")
    assert Path("run/mine.txt").read_text() == "mine"


def test_a_run_without_test_examples_works(capsys: Capture) -> None:
    fedrows(*RUN, "--test-share", "0", "--out", "run")
    assert RunFolder.open(Path("run")).lines()[-1]["test_auc"] is None
    assert "nan" not in capsys.readouterr().out


# Comparing


def test_a_comparison_leaves_table_files_and_report(capsys: Capture) -> None:
    fedrows(*COMPARE, *THREE, "--target-rounds", "10", "--cap", "5", "--out", "all")
    said = capsys.readouterr().out
    assert said.endswith("Report: all/report.html\n")
    for word in ("FedAvg", "FedSubAvg", "CentralSGD", "Speed-up", "±", "Rounds to train loss"):
        assert word in said
    names = "config.json data.json metrics.jsonl report.html runs summary.json"
    assert sorted(p.name for p in Path("all").iterdir()) == names.split()
    runs = sorted(p.name for p in Path("all/runs").iterdir())
    assert runs == [
        f"{name}-seed{seed}" for name in ("centralsgd", "fedavg", "fedsubavg") for seed in (0, 1)
    ]
    assert len(metrics("all")) == 6 * 3
    assert metrics("all") == [
        line
        for seed in (0, 1)
        for name in ("fedavg", "fedsubavg", "centralsgd")
        for line in metrics(f"all/runs/{name}-seed{seed}")
    ]
    config = RunFolder.open(Path("all"), "compare").config
    assert config["seeds"] == [0, 1]
    assert {entry["name"]: entry.get("cap") for entry in config["algorithms"]} == {
        "fedavg": None,
        "fedsubavg": 5.0,
        "centralsgd": None,
    }
    summary = json.loads(Path("all/summary.json").read_text())
    assert summary["target"]["rounds"] == 10
    fedrows(*RUN, "--seed", "1", "--cap", "5", "--out", "alone")
    assert_same("all/runs/fedsubavg-seed1", "alone")


@pytest.mark.slow
def test_an_interrupted_comparison_does_what_is_missing(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    fedrows(*COMPARE, *THREE, "--out", "straight")
    with interrupted(monkeypatch, 8):
        assert main([*COMPARE, *THREE, "--out", "all"]) == 130
    said = capsys.readouterr().out
    assert "Stopped in fedavg seed 0, and saved. Go on with: fedrows compare --resume all" in said
    assert not Path("all/report.html").exists()
    fedrows("compare", "--resume", "all")
    finished = Path("all/runs/fedavg-seed0/checkpoint.safetensors").stat().st_mtime_ns
    assert metrics("straight") == metrics("all")
    fedrows("compare", "--resume", "all", "--seeds", "0,1,2")
    assert Path("all/runs/fedavg-seed0/checkpoint.safetensors").stat().st_mtime_ns == finished
    assert {line["seed"] for line in metrics("all")} == {0, 1, 2}
    fedrows("compare", "--resume", "all", "--rounds", "14")
    assert metrics("all/runs/fedavg-seed0")[-1]["round"] == 14
    capsys.readouterr()
    for words, wanted in (
        (["--lr", "0.5"], "--lr 0.5 would change"),
        (["--rounds", "3"], "--rounds 3 would change"),
        (["--seeds", "0,1"], "--seeds without 2 would change"),
        (["--algorithms", "fedavg"], "--algorithms fedavg would change"),
    ):
        assert main(["compare", "--resume", "all", *words]) == 2
        said = capsys.readouterr().err
        assert wanted in said
        assert said.count("\n") == 1


def test_all_algorithms_are_compared_by_default() -> None:
    fedrows(*COMPARE, "--seeds", "0", "--out", "all")
    assert {line["algorithm"] for line in metrics("all")} == set(catalogue.names("algorithm"))
    fedrows(*COMPARE, "--algorithms", "fedavg", "--seeds", "1", "--out", "all", "--overwrite")
    assert [p.name for p in Path("all/runs").iterdir()] == ["fedavg-seed1"]
