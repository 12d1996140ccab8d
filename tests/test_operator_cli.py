"""What operators type: status, nodes, revoke, stop, export, run; and the JSON events of a run."""

from __future__ import annotations

import json
import re
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr")
from test_operator import LINE, run

from fedrows import cli
from fedrows.cli import deploy_operator, deploy_status
from fedrows.flower.launch.control import AdmittedNode, ControlClient, Heard, RunState
from fedrows.flower.launch.federation import LocalFederation
from fedrows.watch import Watching, logs, opened

ROOT = Path(__file__).parent.parent


class Link:
    """A SuperLink that is here, with two nodes and a run."""

    address: str = "localhost:8000"

    def __init__(self, **progress: Any) -> None:
        self.heard = Heard("The disk is full.")
        self.state = RunState(17, "running", began="2026-11-18T09:30:00.5")
        self.asked: list[Any] = []
        now, south = time.time(), {"answered": 0, "last_answer": None, "refused": {"too long": 2}}
        nodes = {
            "north": {"address": "1", "answered": 12, "last_answer": now - 2, "away": None,
                      "why": "", "refused": {}},
            "south": {"address": "2", "away": 250.0, "why": "it is not connected", **south},
        }  # fmt: skip
        self.known: dict[str, Any] = {
            "run": "17", "status": "running", "task": "ratings", "algorithm": "fedavg",
            "folder": "runs/shop", "round": 12, "rounds": 40, "rate": 0.5, "left": 56.0,
            "waiting": "", "nodes": nodes, "turned_away": {"3": "its plan differs"},
            "recent": [{**LINE, "round": 12}], "last_event": {"event": "round", "time": now},
            **progress,
        }  # fmt: skip

    def check(self) -> None: ...

    def progress(self, run: int | None = None) -> list[dict[str, Any]]:
        return [self.known] if run in (None, 17) else []

    def look(self, run: int) -> RunState:
        return self.state

    def runs(self) -> list[RunState]:
        return [self.state]

    def nodes(self) -> list[AdmittedNode]:
        names = {1: ("north", "online"), 2: ("", "offline"), 3: ("east", "registered")}
        return [AdmittedNode(node, *about) for node, about in names.items()]

    def revoke(self, node: int) -> None:
        self.asked.append(node)

    def ask_to_stop(self, run: int) -> None:
        self.asked.append(("stop", run))

    def stop(self, run: int) -> None:
        self.asked.append(("kill", run))


@pytest.fixture
def link(monkeypatch: pytest.MonkeyPatch) -> Link:
    link = Link()
    for module in (deploy_operator, deploy_status):
        monkeypatch.setattr(module, "connect", lambda typed: link)
    return link


def deploy(*words: str) -> int:
    return cli.main(["deploy", *words])


def test_status_says_where_a_run_is(link: Link, capsys: pytest.CaptureFixture[str]) -> None:
    assert deploy("status") == 0
    said = capsys.readouterr().out
    for wanted in (
        "run 17  running             since 2026-11-18 09:30:00",
        "round 12 of 40  0.5 rounds/s  about 56 s left  ratings, fedavg, in runs/shop",
        "last: round 12/40  5 of 6 clients  of n0  away: n1 for 4 min  loss 0.5000",
        "last event: round, 0 s ago",
        "node 1  online      north  last answer 2 s ago",
        "node 2  offline     south  no answer yet  away for 4 min (it is not connected)  "
        "refused: 2 × too long",
        "node 3  registered  east  no answer yet  takes no part (its plan differs)",
        "Trouble: The disk is full.",
    ):
        assert wanted in said


def test_status_says_who_is_under_way_in_an_asynchronous_run(
    link: Link, capsys: pytest.CaptureFixture[str]
) -> None:
    buffer = {"wanted": 4, "waiting": 1, "under_way": {"n0": 3, "n1": 2}, "ages": [0, 2]}
    link.known |= {"buffer": buffer, "recent": [{**LINE, "round": 12, "buffer": buffer}]}
    assert deploy("status") == 0
    said = capsys.readouterr().out
    assert "buffer: 1 of 4 updates have come in; under way: n0 3, n1 2" in said
    assert "ages 0 to 2, 5 under way" in said


def test_status_and_nodes_as_json(link: Link, capsys: pytest.CaptureFixture[str]) -> None:
    assert deploy("status", "--json") == 0
    told = json.loads(capsys.readouterr().out)
    (one,) = told["runs"]
    assert (one["run"], one["round"], one["flower_status"]) == ("17", 12, "running")
    assert [node["name"] for node in told["nodes"]] == ["east", "north", "south"]
    assert told["trouble"] == "The disk is full."
    assert deploy("nodes", "--json") == 0
    assert json.loads(capsys.readouterr().out)["nodes"] == told["nodes"]
    assert deploy("nodes") == 0
    assert len(capsys.readouterr().out.splitlines()) == 3


def test_a_node_is_revoked_by_name_or_id(link: Link, capsys: pytest.CaptureFixture[str]) -> None:
    for text in ("north", "2", "south"):
        assert deploy("revoke", text) == 0
    assert link.asked == [1, 2, 2]
    assert deploy("revoke", "nrth") == 2
    assert "north" in capsys.readouterr().err  # did you mean
    assert link.asked == [1, 2, 2]


def test_no_name_of_a_node_hides_another_from_operators(link: Link) -> None:
    """A node calls itself by another's id, and by another's name."""
    for alias in ("1", "north"):
        link.known["nodes"] = {alias: {**link.known["nodes"].popitem()[1], "address": "2"}}
        link.asked.clear()
        assert deploy("revoke", alias) == 0
        assert link.asked == [1]


def test_a_run_is_stopped_in_order_and_broken_off_if_it_hangs(
    link: Link, capsys: pytest.CaptureFixture[str]
) -> None:
    assert deploy("stop", "--wait", "1") == 0
    assert link.asked == [("stop", 17), ("kill", 17)]
    assert "broken off" in capsys.readouterr().out
    link.asked.clear()
    link.known["status"] = "stopped"
    assert deploy("stop", "17") == 0
    assert link.asked == [("stop", 17)]
    assert "after a whole round" in capsys.readouterr().out
    link.state = replace(link.state, status="finished:completed")
    assert deploy("stop", "17") == 0
    assert "has ended already" in capsys.readouterr().out
    assert deploy("stop") == 2
    assert "No run is going on" in capsys.readouterr().err


def test_a_model_elsewhere_is_not_exported(
    link: Link, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    link.known["folder"] = str(tmp_path / "none")
    assert deploy("export", "--to", str(tmp_path / "m.fedrows")) == 2
    assert "on the SuperLink's machine" in capsys.readouterr().err
    assert deploy("export", "18", "--to", str(tmp_path / "m.fedrows")) == 2
    assert "Run 18 at localhost:8000 has not begun" in capsys.readouterr().err
    link.known["folder"], link.address = str(tmp_path), "192.0.2.1:8000"
    assert deploy("export", "--to", str(tmp_path / "m.fedrows")) == 2
    assert "on the SuperLink's machine, which is not here" in capsys.readouterr().err
    assert not (tmp_path / "m.fedrows").exists()


def test_every_event_is_a_line_of_json_with_documented_fields(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "operations.md").read_text("utf-8")
    table = page[page.index("| event | when |") :].split("\n\n")[0]
    rows = [line.split("|")[1:-1] for line in table.splitlines()[2:]]
    known = {
        event: set(re.findall(r"`([a-z_]+)`", row[2]))
        for row in rows
        for event in re.findall(r"`([a-z -]+)`", row[0])
    }
    file = tmp_path / "events.jsonl"
    handler = logs.start("json", file)
    try:
        with opened(Watching(log="text", log_file=str(tmp_path / "text.log"))) as writers:
            run(tmp_path / "run", tmp_path / "nodes", observers=[writers])
    finally:
        logs.stop(handler)
    text = file.read_text("utf-8")
    assert "\x1b" not in text
    lines = [json.loads(line) for line in text.splitlines()]
    assert {line["event"] for line in lines} >= {"begin", "round", "measured", "report", "end"}
    for line in lines:
        assert set(line) >= {"time", "level", "event", "run", "round"}
        own = {name for name in line if "/" not in name}  # heat/1-3/loss and the like
        allowed = {"time", "level", "event", "run", "round"} | known[line["event"]]
        if line["event"] != "measured":  # whose fields are the metrics that were measured
            assert own <= allowed, line


@pytest.mark.usefixtures("quick_starts")
@pytest.mark.slow(minutes=1)
def test_operators_commands_work_against_a_live_federation(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from test_deploy import settings_of

    from fedrows import catalogue
    from fedrows.flower.demo import federate, write_project
    from fedrows.flower.launch import certificates

    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "home"))
    keys = tmp_path / "keys"
    assert deploy("keys", str(keys), "--host", "localhost", "--nodes", "node-0,node-1,node-2") == 0
    settings = settings_of("synthetic", "fedsubavg", rounds=300, clients_per_round=6)
    task = catalogue.task("synthetic")
    data = task.load(task.options(clients=60, items=40))
    out = tmp_path / "run"
    project = write_project(
        tmp_path / "project", settings, {"min_nodes": 3, "timeout": 20.0}, out, tmp_path / "data"
    )
    plain = federate(tmp_path, data, 3)
    security = certificates.open_certificates(keys, ["node-0", "node-1", "node-2"])
    with LocalFederation(tmp_path, plain.nodes, security) as federation:
        where = ["--superlink", federation.address, "--certificates", str(keys)]
        where += ["--token", str(federation.token)]
        number = federation.control.submit(project, {})
        _until(federation.control, number, 3)
        capsys.readouterr()
        assert deploy("nodes", "--json", *where) == 0
        listed = json.loads(capsys.readouterr().out)["nodes"]
        assert [(one["name"], one["status"]) for one in listed] == [
            (f"node-{i}", "online") for i in range(3)
        ]
        assert all(one["last_answer"] for one in listed)
        assert deploy("revoke", "node-1", *where) == 0
        at = federation.control.progress(number)[0]["round"]
        told = _until(federation.control, number, at + 3)
        assert sorted(told["nodes"]) == ["node-0", "node-2"]
        assert [one.name for one in federation.control.nodes()] == ["node-0", "node-2"]
        assert deploy("export", "--to", str(tmp_path / "m.fedrows"), *where) == 0
        assert deploy("rotate", str(keys), "--server") == 0
        assert deploy("stop", *where) == 0
        assert "after a whole round" in capsys.readouterr().out
        stopped = federation.control.progress(number)[0]
        assert stopped["status"] == "stopped"
        assert deploy("status", *where) == 0
        assert f"round {stopped['round']} of 300  stopped" in capsys.readouterr().out
        rounds = stopped["round"] + 2
        assert (
            deploy("run", str(project), "--rounds", str(rounds), "--metrics-port", "0", *where) == 0
        )
        said = capsys.readouterr().out
        assert f"round {rounds}/{rounds}  6 of 6 clients  of node-0, node-2" in said
    text = (federation.logs / "events.jsonl").read_text("utf-8")
    events = [json.loads(line) for line in text.splitlines()]
    assert "node-left" in {one["event"] for one in events}
    assert not [log.name for log in federation.logs.iterdir() if b"\x1b" in log.read_bytes()]
    secret = federation.token.read_text().strip()
    assert not [log.name for log in federation.logs.iterdir() if secret in log.read_text()]


def _until(control: ControlClient, run: int, round_: int) -> dict[str, Any]:
    """How a run stands when it has finished a round."""
    until = time.monotonic() + 300
    while time.monotonic() < until:
        if (known := control.progress(run)) and known[0].get("round", 0) >= round_:
            return known[0]
        time.sleep(0.3)
    raise AssertionError(f"round {round_} is not reached")
