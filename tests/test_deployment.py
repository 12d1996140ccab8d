"""A deployed run in its folder: what is written, and going on after its process was killed."""

from __future__ import annotations

from pathlib import Path

import pytest
from deployed import CONFIG, difference, examples, shards_of, task_of
from loopback import Loopback, fresh

from fedrows.errors import PluginError, RunFolderError
from fedrows.flower import journal as module
from fedrows.flower.deployment import Deployment
from fedrows.flower.journal import ROUNDS, Journal, carry_out
from fedrows.flower.wire.contract import make_contract
from fedrows.report.exchange import read_rounds
from fedrows.runs.folder import RunFolder
from fedrows.runs.status_file import STATUS, read_status
from fedrows.watch import Observers

DATA = examples()
EVERY = {**CONFIG, "evaluate-every": 1, "device": "cpu"}


class KilledError(Exception):
    """Ends a server between two rounds."""


def deployed(nodes: Path, **more: object) -> Deployment:
    """A server whose nodes live in this process; they remember in a folder."""
    task, config, loopback = task_of(DATA), {**EVERY, **more}, Loopback()
    for number, (name, shard) in enumerate(shards_of(DATA).items(), start=1):
        loopback.here[number] = fresh(task, config, shard, nodes / name, name)
    return Deployment(make_contract(task, config), loopback, config, lambda text: None)


def run(path: Path, nodes: Path, killed_after: int | None = None) -> Deployment:
    deployment = deployed(nodes)
    with Journal.opened(path, deployment) as journal:
        note = journal.note

        def noted(report: object) -> None:
            note(report)
            if deployment.progress.round == killed_after:
                raise KilledError

        journal.note = noted
        carry_out(deployment, journal, Observers())
    return deployment


def test_a_run_that_was_killed_goes_on_to_the_same_model(tmp_path: Path) -> None:
    whole = run(tmp_path / "whole", tmp_path / "nodes of the whole")
    with pytest.raises(KilledError):
        run(tmp_path / "run", tmp_path / "nodes", killed_after=2)
    again = run(tmp_path / "run", tmp_path / "nodes")
    assert difference(again.progress.whole(), whole.progress.whole()) == 0
    lines = RunFolder.open(tmp_path / "run").lines()
    assert [line["round"] for line in lines] == [1, 2, 3, 4]
    rounds = read_rounds(tmp_path / "run" / ROUNDS)
    assert [(line["round"], line["asked"], line["answered"]) for line in rounds] == [
        (number, 6, 6) for number in (1, 2, 3, 4)
    ]
    assert {"evaluate", "save"} <= rounds[0]["seconds"].keys()
    assert (tmp_path / "run" / "summary.json").exists()


def test_the_status_names_the_nodes_and_how_they_answered(tmp_path: Path) -> None:
    run(tmp_path / "run", tmp_path / "nodes")
    status = read_status(tmp_path / "run")
    assert (status["round"], status["rounds"], status["failed"]) == (4, 4, "")
    assert status["nodes"].keys() == shards_of(DATA).keys()
    for node in status["nodes"].values():
        assert (node["said"], node["answered"]) == ("", node["asked"])
        assert node["heard"] <= status["time"]
    assert (tmp_path / "run" / STATUS).stat().st_mode & 0o077 == 0


def test_a_folder_is_one_servers_until_it_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LOCK_SECONDS", 0.0)
    path, nodes = tmp_path / "run", tmp_path / "nodes"
    with (
        Journal.opened(path, deployed(nodes)),
        pytest.raises(RunFolderError, match="Another fedrows is at work"),
    ):
        Journal.opened(path, deployed(nodes))
    with Journal.opened(path, deployed(nodes)):
        pass
    with pytest.raises(RunFolderError, match="a run of another model, plan or algorithm"):
        Journal.opened(path, deployed(nodes, seed=4))


def test_metrics_of_the_users_own_are_measured_on_the_servers_data(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        "def liked(scores, label, client):\n    return label.mean()\n\n"
        "def people(scores, label, client):\n    return len(set(client))\n"
    )
    own = {"metric": f"{file}:liked, {file}:people"}
    deployment = deployed(tmp_path / "nodes", **own)
    with Journal.opened(tmp_path / "run", deployment) as journal:
        carry_out(deployment, journal, Observers())
    folder = RunFolder.open(tmp_path / "run")
    assert folder.config["metrics"] == [f"{file}:liked", f"{file}:people"]
    for line in folder.lines():
        assert line["test_liked"] == pytest.approx(DATA.test.label.mean().item())
        assert line["test_people"] == len(DATA.test.owner.unique())
    with pytest.raises(RunFolderError, match="a run with other metrics of its own"):
        Journal.opened(tmp_path / "run", deployed(tmp_path / "nodes"))
    with pytest.raises(PluginError, match="names no object"):
        deployed(tmp_path / "nodes", metric="nothing")
