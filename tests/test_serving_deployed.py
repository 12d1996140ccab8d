"""A deployed run is exported from its folder: the task is found, or named by the user."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from commands import Capture, fedrows, own_folder  # noqa: F401
from deployed import CONFIG, examples, shards_of
from loopback import Loopback, fresh

from fedrows import load, save_data
from fedrows.cli import main
from fedrows.files.plugins import attribute, import_file
from fedrows.flower.deployment import Deployment
from fedrows.flower.journal import Journal, carry_out
from fedrows.flower.wire.contract import DeployedTask, make_contract
from fedrows.watch import Observers

pytestmark = pytest.mark.usefixtures("own_folder")
DATA = examples()
TASK = """
from fedrows.data.stored.store import open_data
from fedrows.flower.wire.contract import DeployedTask
from fedrows.models.logistic import Logistic

def model(data, seed):
    return Logistic(data)

def server(config):
    return open_data(config["shop-data"])

TASK = DeployedTask("shop", server, model, server)
OTHER = DeployedTask("other", server, model, server)
"""


def run(task: DeployedTask) -> Deployment:
    """A server whose nodes live in this process, and its run in the folder `run`."""
    save_data(DATA, "data")
    config, loopback = {**CONFIG, "device": "cpu", "shop-data": "data"}, Loopback()
    for number, (name, shard) in enumerate(shards_of(DATA).items(), start=1):
        loopback.here[number] = fresh(task, config, shard, Path("nodes").absolute() / name, name)
    deployment = Deployment(make_contract(task, config), loopback, config, lambda text: None)
    with Journal.opened(Path("run"), deployment) as journal:
        carry_out(deployment, journal, Observers())
    return deployment


@pytest.fixture
def deployment() -> Deployment:
    Path("task.py").write_text(TASK)
    task: DeployedTask = attribute(import_file(Path("task.py").absolute(), "It"), "TASK", "It")
    return run(task)


def test_a_bundle_of_a_deployed_run(deployment: Deployment) -> None:
    rows = {"item": np.arange(DATA.tables["item"])}
    wanted = deployment.model.scores(
        deployment.progress.whole(), {"item": torch.arange(DATA.tables["item"])}
    )
    for more in ([], ["--task", "task.py:TASK"]):
        fedrows("export", "run", "--to", "m.fedrows", "--no-onnx", "--overwrite", *more)
        served = load("m.fedrows", "task.py:model")
        assert (served.predict(rows).scores == wanted.numpy()).all()
        assert served.bundle.facts["about"]["round"] == "4"
        assert served.metrics is not None
        assert served.metrics["test_loss"] == pytest.approx(deployment.evaluate()["test_loss"])


@pytest.mark.parametrize(
    ("reference", "more", "sentence"),
    [
        (None, [], "does not say where its task is: name it with --task"),
        ("nowhere:TASK", [], "name it with --task"),
        (None, ["--task", "task.py:model"], "is a function, not a DeployedTask"),
        (None, ["--task", "task.py:OTHER"], "is a run of task shop, but task.py:OTHER is"),
    ],
)
def test_a_task_that_is_not_there_is_one_line(
    deployment: Deployment, reference: str | None, more: list[str], sentence: str, capsys: Capture
) -> None:
    config = json.loads(Path("run/config.json").read_text())
    config["task"]["reference"] = reference
    Path("run/config.json").write_text(json.dumps(config))
    assert main(["export", "run", "--to", "m.fedrows", *more]) == 2
    err = capsys.readouterr().err
    assert sentence in err
    assert err.count("\n") == 1


def test_a_run_under_full_privacy_gives_its_release_alone(
    deployment: Deployment, capsys: Capture
) -> None:
    config = json.loads(Path("run/config.json").read_text())
    assert config["deploy"]["privacy"] == "clear"
    config["deploy"]["privacy"] = "full"
    config["task"]["config"] = {}
    Path("run/config.json").write_text(json.dumps(config))
    assert main(["export", "run", "--to", "m.fedrows", "--no-onnx"]) == 2
    assert "release/model.safetensors is missing or damaged" in capsys.readouterr().err
    config["deploy"]["privacy"] = "clear"
    Path("run/config.json").write_text(json.dumps(config))
    assert main(["export", "run", "--to", "m.fedrows", "--no-onnx"]) == 2
    assert "asks for 'shop-data' of the run's configuration" in capsys.readouterr().err


def test_a_deployed_run_gives_a_device_program_unless_it_is_private(
    deployment: Deployment, capsys: Capture
) -> None:
    config = json.loads(Path("run/config.json").read_text())
    config["plan"]["dtype"] = "float32"  # as devices compute
    Path("run/config.json").write_text(json.dumps(config))
    fedrows("export", "run", "--device", "--to", "program")
    assert Path("program/step.onnx").exists()
    config["deploy"]["privacy"] = "index"
    Path("run/config.json").write_text(json.dumps(config))
    assert main(["export", "run", "--device", "--to", "other"]) == 2
    assert "is a run with privacy index" in capsys.readouterr().err
