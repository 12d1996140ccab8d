"""The options of a task's model: flags, kept with the run, used on resume, export and load."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from commands import Capture, assert_same, fedrows
from commands import own_folder as own_folder
from safetensors.torch import load_file
from test_plugins import _as_in_a_new_process  # noqa: F401

import fedrows as package
from fedrows import catalogue
from fedrows.cli import main
from fedrows.runs.folder import RunFolder
from fedrows.runs.settings import from_config
from fedrows.serving.rebuild import TorchScorer

TINY = """
from dataclasses import dataclass
import numpy as np
from fedrows import FederatedData
from fedrows.options import check, option
from fedrows.task import Task

@dataclass(frozen=True)
class Options:
    width: int = option(1, "Nothing.")

    def __post_init__(self):
        check(self)

def load(options):
    rng = np.random.default_rng(0)
    user, item = np.repeat(np.arange(8), 12), rng.integers(0, 15, 96)
    return FederatedData.build(
        name="tiny", client=user, ids={"user": user, "item": item}, label=rng.random(96) < 0.5,
        test=rng.random(96) < 0.2, tables={"user": 8, "item": 15}, local=["user"],
        target=("item", None),
    )

TASK = Task(
    name="tiny", summary="Small.", options=Options, load=load, model="mf",
    plan={"rounds": 4, "clients_per_round": 4, "evaluate_every": 2},
)
"""
TASK = "tiny.py:TASK"
GIVEN = ["--factors", "3", "--ridge", "0.5"]

pytestmark = pytest.mark.usefixtures("own_folder", "_as_in_a_new_process")


@pytest.fixture(autouse=True)
def _tiny(own_folder: None) -> None:
    Path("tiny.py").write_text(TINY)


def ridge_of(folder: str) -> Any:
    [settings] = from_config(RunFolder.open(Path(folder)).config, Path(folder)).values()
    _, model = settings.made(settings.task.load(settings.options))
    return model.schema.tables["item"].width, model.ridge


def test_they_are_flags_and_stay_with_the_run(capsys: Capture) -> None:
    fedrows("run", TASK, *GIVEN, "--out", "whole")
    assert RunFolder.open(Path("whole")).config["model"] == {"factors": 3, "ridge": 0.5}
    assert ridge_of("whole") == (4, 0.5)
    fedrows("run", TASK, *GIVEN, "--rounds", "2", "--out", "parts")
    fedrows("run", "--resume", "parts", "--rounds", "4", "--factors", "3")
    assert_same("whole", "parts")
    capsys.readouterr()
    assert main(["run", "--resume", "parts", "--rounds", "5", "--ridge", "0.1"]) == 2
    assert "--ridge 0.1 would change the run in parts, which has 0.5" in capsys.readouterr().err
    fedrows("run", TASK, "--out", "plain")
    assert ridge_of("plain") == (17, 0.03)


def test_a_bundle_is_loaded_with_them() -> None:
    fedrows("run", TASK, *GIVEN, "--out", "run")
    fedrows("export", "run", "--to", "m.fedrows", "--no-onnx")
    served = package.load("m.fedrows")
    assert isinstance(served.scorer, TorchScorer)
    assert served.scorer.model.ridge == 0.5  # type: ignore[attr-defined]
    mine = pd.DataFrame({"user": 5, "item": [1, 2, 3], "label": [1, 0, 1]})
    assert served.adapt(mine).predict(mine).scores.shape == (3,)


def test_a_comparison_has_them_in_all_its_runs() -> None:
    fedrows("compare", TASK, *GIVEN, "--algorithms", "fedavg,fedsubavg", "--seeds", "0", "--out=c")
    assert RunFolder.open(Path("c")).config["model"] == {"factors": 3, "ridge": 0.5}
    assert ridge_of("c/runs/fedsubavg-seed0") == (4, 0.5)
    fedrows("compare", "--resume", "c", "--rounds", "6")
    assert ridge_of("c/runs/fedavg-seed0") == (4, 0.5)


def test_what_cannot_be_is_refused(capsys: Capture) -> None:
    for words, said in {
        ("run", TASK, "--factors", "0"): "factors is 0, but must be at least 1",
        ("run", TASK, "--ridge", "much"): "ridge is 'much', but must be a number",
        ("run", TASK, "--blocks", "2"): "--blocks is not an option of tiny",
        ("run", "synthetic", "--factors", "3"): "--factors is not an option of synthetic",
    }.items():
        assert main(words) == 2
        assert said in capsys.readouterr().err
    assert not Path("runs").exists()


def test_one_that_is_called_like_an_option_of_the_task_has_model_in_front() -> None:
    Path("tiny.py").write_text(
        TINY.replace('model="mf"', 'model="two.py:build"').replace("width", "factors")
    )
    Path("two.py").write_text(
        "from fedrows.models import mf\nfrom fedrows.options import takes\n\n"
        "@takes(mf.MatrixFactorisationOptions)\n"
        "def build(data, seed, **own):\n    return mf.build(data, seed, **own)\n"
    )
    fedrows("run", TASK, "--factors", "7", "--model-factors", "2", "--out", "run")
    config = RunFolder.open(Path("run")).config
    assert config["task"]["factors"] == 7
    assert config["model"] == {"factors": 2, "ridge": None}
    assert ridge_of("run") == (3, 0.03)


def test_personal_parts_by_a_flag(capsys: Capture) -> None:
    """The same numbers as in Python, resumed to the bit, and adapted from a bundle."""
    fedrows("run", TASK, "--personal", "bias", "--out", "whole")
    fedrows("run", TASK, "--personal", "bias", "--rounds", "2", "--out", "parts")
    fedrows("run", "--resume", "parts", "--rounds", "4", "--personal=bias")
    assert_same("whole", "parts")
    saved = load_file("whole/checkpoint.safetensors")
    [settings] = from_config(RunFolder.open(Path("whole")).config, Path("whole")).values()
    data = settings.task.load(settings.options)
    wanted = package.simulate(
        package.with_personal(data), settings.made(data)[1], rounds=4, clients_per_round=4,
        device="cpu", evaluate_every=2,
    )  # fmt: skip
    own = wanted.params.tables["personal"]
    assert len(own.unique()) > 1
    assert torch.equal(saved["model/table/personal"], own)
    fedrows("export", "whole", "--to", "m.fedrows", "--no-onnx")
    mine = pd.DataFrame({"user": 5, "item": [1, 2, 3], "label": [1, 0, 1]})
    served = package.load("m.fedrows")
    assert "personal parts bias stay with their clients" in served.predict(mine).notes[-1]
    assert served.adapt(mine).evaluate(mine)["loss"] < served.evaluate(mine)["loss"]
    capsys.readouterr()
    for words, said in {
        ("run", TASK, "--personal", "head"): "names 'head', but the module's parameters are",
        ("run", TASK, "--personal", "item_bias"): "has table 'item' in it",
        ("run", "synthetic", "--personal", "bias"): "the model is Logistic, which is no torch",
        ("run", "--resume", "whole", "--rounds=9", "--personal=item_bias"): "would change the run",
    }.items():
        assert main(words) == 2
        assert said in capsys.readouterr().err
    assert not Path("runs").exists()


@pytest.mark.slow
def test_a_comparison_leaves_out_what_cannot_be(capsys: Capture) -> None:
    """Scaffold has no rows to keep a state for; by name it stays an error, and leaves no folder."""
    Path("tiny.py").write_text(
        TINY.replace("label=rng.random(96) < 0.5", 'label=np.ones(96), labels="ranking"')
    )
    words = ["compare", TASK, "--seeds", "0", "--rounds", "1", "--negatives-pool", "3"]
    assert main([*words, "--algorithms", "fedavg,scaffold"]) == 2
    assert "scaffold keeps a state for the rows" in capsys.readouterr().err
    assert not Path("runs").exists()
    fedrows(*words, "--out", "all", "--optimizer", "adam")
    out = capsys.readouterr().out
    assert out.count("Left out") == 2
    assert "Left out scaffold: " in out
    assert "Left out scaffoldapprox: " in out  # it assumes plain SGD
    named = [entry["name"] for entry in RunFolder.open(Path("all")).config["algorithms"]]
    assert named == [x for x in catalogue.built_in("algorithm") if not x.startswith("scaffold")]
    fedrows(*words, "--out", "own", "--personal", "bias")
    assert "Left out centralsgd: centralsgd trains on pooled data" in capsys.readouterr().out


@pytest.mark.parametrize("name", catalogue.built_in("model"))
def test_a_builder_takes_what_it_says(name: str) -> None:
    import inspect

    taken = inspect.signature(catalogue.builder(name)).parameters
    own = catalogue.model_options(name)()
    assert {key: taken[key].default for key in vars(own)} == vars(own)
