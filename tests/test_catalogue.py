"""Things by name, and what a task presets."""

import dataclasses
import subprocess
import sys
from pathlib import Path

import pytest

from fedrows import catalogue
from fedrows.algorithm import Algorithm
from fedrows.data.federation import FederatedData
from fedrows.errors import PlanError, UnknownNameError
from fedrows.options import options
from fedrows.plan import Plan
from fedrows.runs.settings import presets
from fedrows.task import Task

SYNTHETIC = catalogue.task("synthetic")


def test_the_folders_are_the_registers() -> None:
    assert {"fedavg", "fedsubavg", "centralsgd"} <= set(catalogue.names("algorithm"))
    assert "logistic" in catalogue.names("model")
    assert {"movielens", "synthetic"} <= set(catalogue.names("task"))


@pytest.mark.parametrize("name", catalogue.names("algorithm"))
def test_every_algorithm_is_called_like_its_file(name: str) -> None:
    found = catalogue.algorithm(name)
    assert issubclass(found, Algorithm)
    assert found().name == name


@pytest.mark.parametrize("name", catalogue.names("task"))
def test_every_task_is_called_like_its_file_and_is_complete(name: str) -> None:
    task = catalogue.task(name)
    assert task.name == name
    assert task.summary.endswith(".")
    assert callable(catalogue.model(task.model))
    assert all(item.metadata["help"].endswith(".") for item in options(task.options))
    assert len(list(options(task.options))) == len(dataclasses.fields(task.options))


@pytest.mark.parametrize("name", catalogue.names("task"))
@pytest.mark.parametrize("algorithm", catalogue.names("algorithm"))
def test_every_preset_is_an_option_of_the_plan_or_the_algorithm(name: str, algorithm: str) -> None:
    plan, own = presets(catalogue.task(name), algorithm)
    Plan(**plan)
    catalogue.algorithm(algorithm)(**own)


@pytest.mark.parametrize("name", catalogue.names("task"))
def test_presets_name_only_algorithms_that_exist(name: str) -> None:
    assert set(catalogue.task(name).algorithms) <= set(catalogue.names("algorithm"))


def test_an_algorithms_presets_come_apart_and_override_the_tasks() -> None:
    task = dataclasses.replace(
        SYNTHETIC,
        plan={"lr": 0.1, "batch_size": 5},
        algorithms={"fedadam": {"lr": 1.0, "server_lr": 0.001}},
    )
    assert presets(task, "fedadam") == ({"lr": 1.0, "batch_size": 5}, {"server_lr": 0.001})
    assert presets(task, "fedavg") == ({"lr": 0.1, "batch_size": 5}, {})


def test_a_preset_that_nothing_takes_is_refused() -> None:
    task = dataclasses.replace(SYNTHETIC, algorithms={"fedavg": {"server_lr": 1.0}})
    with pytest.raises(PlanError, match=r"Task synthetic presets 'server_lr' for fedavg"):
        presets(task, "fedavg")


def test_an_unknown_name_gets_a_suggestion() -> None:
    with pytest.raises(UnknownNameError, match=r"no algorithm called 'fedsubavgg'.*fedsubavg\?"):
        catalogue.algorithm("fedsubavgg")
    with pytest.raises(UnknownNameError, match=r"no model called 'x': choose one of"):
        catalogue.model("x")
    with pytest.raises(UnknownNameError, match=r"no task called 'movielen'"):
        catalogue.task("movielen")
    with pytest.raises(UnknownNameError, match=r"no kind of thing called 'tasks'"):
        catalogue.names("tasks")


def test_a_name_is_a_file_and_nothing_else() -> None:
    for name in ("__init__", "../plan", "fedavg.x", ""):
        with pytest.raises(UnknownNameError):
            catalogue.algorithm(name)


def test_a_new_file_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import fedrows.datasets

    (tmp_path / "newcomer.py").write_text(
        "from fedrows.datasets.synthetic import TASK as OTHER\n"
        "from dataclasses import replace\n"
        "TASK = replace(OTHER, name='newcomer')\n"
    )
    (tmp_path / "_shared.py").write_text("")
    monkeypatch.setattr(fedrows.datasets, "__path__", [*fedrows.datasets.__path__, str(tmp_path)])
    assert "newcomer" in catalogue.names("task")
    assert "_shared" not in catalogue.names("task")
    task: Task = catalogue.task("newcomer")
    assert task.name == "newcomer"


def test_listing_names_imports_nothing() -> None:
    code = (
        "import sys; from fedrows import catalogue\n"
        "for kind in catalogue.FOLDERS: catalogue.names(kind)\n"
        "assert 'torch' not in sys.modules, 'torch was imported'"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_heat_over_all_counts_a_client_once_in_train_and_test(toy: FederatedData) -> None:
    heat = toy.heat_over_all()["item"]
    assert heat.ids.tolist() == [0, 1, 2]
    assert heat.counts.tolist() == [3, 2, 1]
    assert heat.total == 3
    assert heat.dispersion == 3


@pytest.fixture
def toy() -> FederatedData:
    """Client 0 holds 0 and 1, client 1 holds 0 twice and 2, client 2 tests 0 and 1 only."""
    import numpy as np

    return FederatedData.build(
        client=np.array([0, 0, 1, 1, 1, 2, 2]),
        ids={"item": np.array([0, 1, 0, 0, 2, 0, 1])},
        label=np.array([0, 1, 0, 1, 0, 1, 0]),
        test=np.array([False, True, False, True, True, True, True]),
        tables={"item": 4},
    )
