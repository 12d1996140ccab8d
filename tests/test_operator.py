"""What an operator sees and asks: progress, lost nodes, runs that are stopped or made longer."""

from __future__ import annotations

import asyncio
import json
import stat
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("flwr")
from deployed import CONFIG, difference, examples, shards_of, task_of
from loopback import Loopback, fresh

from fedrows.errors import RunFolderError
from fedrows.flower.deployment import Deployment
from fedrows.flower.journal import Journal, carry_out
from fedrows.flower.launch import control_token, gate
from fedrows.flower.launch.control import ControlError
from fedrows.flower.launch.following import RoundLines, in_words, span
from fedrows.flower.launch.operator_folder import KEPT, OperatorFolder
from fedrows.flower.run_progress import ProgressWriter
from fedrows.flower.server.node_records import LATE, NOT_CONNECTED, NodeRecords
from fedrows.flower.wire.contract import make_contract
from fedrows.runs.folder import RunFolder
from fedrows.watch import Observers, RoundReport, RunInfo, Watching, opened

DATA = examples()
TOKEN = "a" * 64


class Seen:
    """An observer that keeps what it is told."""

    def __init__(self) -> None:
        self.events: list[tuple[str, dict[str, Any]]] = []
        self.rounds: list[RoundReport] = []
        self.done: bool | None = None

    def begin(self, run: RunInfo) -> None: ...
    def measured(self, line: Any) -> None: ...
    def close(self) -> None: ...

    def round(self, report: RoundReport) -> None:
        self.rounds.append(report)

    def event(self, name: str, fields: Any) -> None:
        self.events.append((name, dict(fields)))

    def end(self, done: bool) -> None:
        self.done = done


def deployed(nodes: Path, **more: object) -> tuple[Deployment, Loopback]:
    """A server whose three nodes live in this process."""
    config = {**CONFIG, "device": "cpu", "evaluate-every": 1, "min-answers": 1, **more}
    task, loopback = task_of(DATA), Loopback()
    for number, (name, shard) in enumerate(shards_of(DATA).items(), start=1):
        loopback.here[number] = fresh(task, config, shard, nodes / name, name)
    return Deployment(make_contract(task, config), loopback, config, lambda text: None), loopback


def run(
    path: Path, nodes: Path, stop_after: int = 0, observers: Sequence[Any] = (), **more: object
) -> tuple[Deployment, Seen]:
    seen, (deployment, _) = Seen(), deployed(nodes, **more)
    with Journal.opened(path, deployment) as journal:
        stopping = lambda: deployment.progress.round == stop_after  # noqa: E731
        carry_out(deployment, journal, Observers([seen, *observers]), stopping)
    return deployment, seen


# Runs that are made longer, and runs that are stopped


def test_a_finished_run_is_made_longer(tmp_path: Path) -> None:
    whole, _ = run(tmp_path / "whole", tmp_path / "nodes of the whole", rounds=6)
    run(tmp_path / "run", tmp_path / "nodes", rounds=3)
    longer, seen = run(tmp_path / "run", tmp_path / "nodes", rounds=6)
    assert [report.round for report in seen.rounds] == [4, 5, 6]
    assert difference(longer.progress.whole(), whole.progress.whole()) == 0
    config = RunFolder.open(tmp_path / "run").config
    assert config["plan"]["rounds"] == 6
    _, seen = run(tmp_path / "run", tmp_path / "nodes", rounds=6)
    assert not seen.rounds  # it is finished
    with pytest.raises(RunFolderError, match="ask for at least 6"):
        run(tmp_path / "run", tmp_path / "nodes", rounds=5)
    assert RunFolder.open(tmp_path / "run").config["plan"]["rounds"] == 6
    with pytest.raises(RunFolderError, match="another model, plan or algorithm"):
        run(tmp_path / "run", tmp_path / "nodes", rounds=6, lr=0.9)


def test_a_run_that_is_stopped_before_its_first_evaluation_has_not_failed(tmp_path: Path) -> None:
    more = {"rounds": 6, "evaluate-every": 5}
    whole, _ = run(tmp_path / "whole", tmp_path / "nodes of the whole", **more)
    _, seen = run(tmp_path / "run", tmp_path / "nodes", stop_after=2, **more)
    assert seen.done is False
    assert not (tmp_path / "run" / "report.html").exists()
    longer, seen = run(tmp_path / "run", tmp_path / "nodes", **more)
    assert difference(longer.progress.whole(), whole.progress.whole()) == 0


def test_a_run_that_is_asked_to_stop_is_saved_and_goes_on_later(tmp_path: Path) -> None:
    whole, _ = run(tmp_path / "whole", tmp_path / "nodes of the whole")
    _, seen = run(tmp_path / "run", tmp_path / "nodes", stop_after=2)
    assert (len(seen.rounds), seen.done) == (2, False)
    assert (tmp_path / "run" / "report.html").exists()
    again, seen = run(tmp_path / "run", tmp_path / "nodes")
    assert ([report.round for report in seen.rounds], seen.done) == ([3, 4], True)
    assert difference(again.progress.whole(), whole.progress.whole()) == 0


# Nodes that are lost, and nodes that are revoked


def test_a_lost_node_is_named_with_how_long(tmp_path: Path) -> None:
    now = [100.0]
    records, events = NodeRecords(lambda: now[0]), list[tuple[str, Any]]()
    records.event = lambda name, fields: events.append((name, fields))
    nodes = {"north": 1, "south": 2}
    records.connected(nodes, {1, 2})
    records.asked(nodes, [1, 2], {1: b"", 2: b""})
    now[0] = 130.0
    records.asked(nodes, [1, 2], {1: b""})
    records.connected(nodes, {1})
    assert events == [("node-lost", {"node": "south", "why": LATE, "away": 30.0})]
    now[0] = 145.0
    assert records.away() == f"south for 45 s ({NOT_CONNECTED})"
    records.refuse("north", "too long")
    south, north = records.reports()["south"], records.reports()["north"]
    assert (south.away, south.last_answer, north.away) == (45.0, 100.0, None)
    assert north.refused == {"too long": 1}
    records.asked(nodes, [2], {2: b""})
    assert events[-1] == ("node-back", {"node": "south", "away": 45.0})
    records.connected({"north": 1}, {1})
    assert events[-1] == ("node-left", {"node": "south"})
    assert list(records.reports()) == ["north"]


def test_a_run_names_the_node_that_went_away(tmp_path: Path) -> None:
    deployment, loopback = deployed(tmp_path / "nodes")
    metrics, seen = tmp_path / "run.prom", Seen()
    original = seen.round

    def leave(report: RoundReport) -> None:
        original(report)
        loopback.here.pop(2, None)

    seen.round = leave  # type: ignore[method-assign]
    with (
        opened(Watching(metrics_file=str(metrics))) as writers,
        Journal.opened(tmp_path / "run", deployment) as journal,
    ):
        carry_out(deployment, journal, Observers([seen, writers]))
    lost = [fields for name, fields in seen.events if name == "node-lost"]
    assert [(one["node"], one["why"]) for one in lost] == [("n1", NOT_CONNECTED)]
    assert seen.rounds[-1].nodes["n1"].away is not None
    text = metrics.read_text("utf-8")
    assert 'fedrows_node_up{node="n1",run="run"} 0.0' in text
    assert 'fedrows_node_up{node="n0",run="run"} 1.0' in text
    assert 'fedrows_events_total{event="node-lost",run="run"} 1.0' in text
    assert 'fedrows_node_last_answer_timestamp_seconds{node="n1",run="run"}' in text


def test_a_run_goes_on_without_a_revoked_node(tmp_path: Path) -> None:
    deployment, _ = deployed(tmp_path / "nodes", **{"clients-per-round": 4})
    revoked: set[int] = set()
    deployment.fleet.revoked = lambda: revoked
    seen = Seen()
    original = seen.round

    def revoke(report: RoundReport) -> None:
        original(report)
        revoked.add(3)

    seen.round = revoke  # type: ignore[method-assign]
    loopback = deployment.fleet.transport
    with Journal.opened(tmp_path / "run", deployment) as journal:
        loopback.nodes = lambda: [x for x in sorted(loopback.here) if x not in revoked]  # type: ignore[attr-defined]
        carry_out(deployment, journal, Observers([seen]))
    assert deployment.progress.round == 4
    assert sorted(deployment.registry.nodes) == ["n0", "n1"]
    assert ("node-left", {"node": "n2"}) in seen.events
    assert all(report.dropped == 0 for report in seen.rounds)  # its clients are not drawn any more
    assert all(sent != 3 for sent, _ in loopback.sent[-4:])  # type: ignore[attr-defined]


# What operators are told


def test_the_folder_is_the_users_alone_and_forgets_old_runs(tmp_path: Path) -> None:
    folder = OperatorFolder(tmp_path / "operator")
    for number in range(1, KEPT + 5):
        folder.write_progress(number, {"run": str(number)})
    assert len(folder.progress()) == KEPT
    folder.ask_to_stop(7)
    folder.revoke(2**64 - 1)
    folder.revoke(5)
    folder.set_watching({"metrics_port": 9109, "writer": "evil.py:Run"})
    assert (folder.is_to_stop(7), folder.is_to_stop(8)) == (True, False)
    assert folder.revoked() == {5, 2**64 - 1}
    assert folder.watching() == {"metrics_port": 9109}
    modes = {stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "operator").iterdir()}
    assert modes == {0o600}
    assert stat.S_IMODE((tmp_path / "operator").stat().st_mode) == 0o700
    (tmp_path / "operator" / "9.json").write_text("{half")
    (tmp_path / "operator" / "revoked.json").write_text("{}")
    assert folder.revoked() == set()
    assert len(folder.progress()) >= KEPT - 1  # what cannot be read is left out
    nowhere = OperatorFolder.named(None)
    nowhere.write_progress(1, {})
    nowhere.revoke(1)
    assert (nowhere.progress(), nowhere.revoked(), nowhere.watching()) == ([], set(), {})


def ask(
    folder: OperatorFolder, method: str, path: str, body: bytes = b"", **who: Any
) -> tuple[int, bytes]:
    """The gate's answer to a request."""
    sent = list[dict[str, Any]]()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        raise AssertionError("flwr must not see this")

    async def receive() -> Any:
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    token = who.get("token", TOKEN)
    scope = {
        "type": "http",
        "method": method,
        "path": f"/v1/fedrows/{path}",
        "client": (who.get("client", "127.0.0.1"), 1),
        "headers": [(control_token.HEADER, token.encode())] if token else [],
        "app": SimpleNamespace(),
    }
    here = gate.Gate(app, gate.networks(gate.THIS_MACHINE), TOKEN, operator=folder)
    asyncio.run(here(scope, receive, send))
    return int(sent[0]["status"]), sent[1]["body"]


def test_only_operators_with_the_token_are_told_anything(tmp_path: Path) -> None:
    folder = OperatorFolder(tmp_path / "operator")
    folder.write_progress(17, {"run": "17", "folder": "/secret/place"})
    folder.write_progress(18, {"run": "18"})
    for method, path in (("GET", "runs"), ("GET", "runs/17"), ("POST", "stop"), ("POST", "revoke")):
        body = b'{"run": "17", "node": "17"}'
        for status, who in (
            (401, {"token": ""}),
            (401, {"token": "b" * 64}),
            (403, {"client": "198.51.100.9"}),
        ):
            got, text = ask(folder, method, path, body, **who)
            assert (got, b"secret" in text) == (status, False)
    assert not folder.is_to_stop(17)
    assert folder.revoked() == set()
    status, text = ask(folder, "GET", "runs")
    assert (status, len(json.loads(text)["runs"])) == (200, 2)
    status, text = ask(folder, "GET", "runs/17")
    assert [one["folder"] for one in json.loads(text)["runs"]] == ["/secret/place"]
    assert ask(folder, "POST", "stop", b'{"run": "17"}')[0] == 200
    assert ask(folder, "POST", "revoke", b'{"node": "9"}')[0] == 200
    assert (folder.is_to_stop(17), folder.revoked()) == (True, {9})


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("stop", b""),
        ("stop", b"[]"),
        ("stop", b'{"run": "../x"}'),
        ("stop", b'{"run": "' + b"1" * 30 + b'"}'),
        ("revoke", b"{}"),
        ("revoke", b'{"node": -1}'),
        ("watching", b'{"writer": "evil.py:Run"}'),
        ("watching", b'{"metrics_port": "9109"}'),
        ("watching", b'{"metrics_port": 70000}'),
        ("watching", b'{"metrics_host": 1}'),
        ("watching", b" " * 5000),
    ],
)
def test_a_malformed_request_changes_nothing(tmp_path: Path, path: str, body: bytes) -> None:
    folder = OperatorFolder(tmp_path / "operator")
    status, text = ask(folder, "POST", path, body)
    assert status == 400
    assert text.endswith(b".")
    assert not (tmp_path / "operator").exists()
    assert ask(folder, "POST", "nothing", b"{}")[0] == 404
    assert ask(folder, "DELETE", "runs")[0] == 404


def test_progress_has_rounds_nodes_and_time_left(tmp_path: Path) -> None:
    folder, deployment = OperatorFolder(tmp_path / "operator"), deployed(tmp_path / "nodes")[0]
    writer = ProgressWriter(folder, 17, deployment)
    with Journal.opened(tmp_path / "run", deployment) as journal:
        carry_out(deployment, journal, Observers([writer]))
    (told,) = folder.progress()
    assert (told["run"], told["status"], told["round"], told["rounds"]) == ("17", "finished", 4, 4)
    assert told["folder"] == str(tmp_path / "run")
    assert sorted(told["nodes"]) == ["n0", "n1", "n2"]
    assert told["nodes"]["n0"]["address"] == "1"
    assert told["nodes"]["n0"]["answered"] >= 1
    assert [line["round"] for line in told["recent"]] == [1, 2, 3, 4]
    assert all(line["loss"] is not None for line in told["recent"])
    assert told["left"] == 0
    assert told["last_event"]["event"] == "end"


class Told:
    """A SuperLink that says how a run stands."""

    def __init__(self, *answers: dict[str, Any] | None) -> None:
        self.answers = list(answers)

    def progress(self, run: int | None = None) -> list[dict[str, Any]]:
        if (answer := self.answers.pop(0)) is None:
            raise ControlError("gone")
        return [answer] if answer else []


LINE = {
    "round": 1, "asked": 6, "answered": 5, "dropped": 1, "rejected": {}, "nodes": ["n0"],
    "away": {"n1": 240.0}, "loss": 0.5, "seconds": 1.25,
}  # fmt: skip


def test_rounds_are_said_once_as_they_are_finished() -> None:
    said: list[str] = []
    first = {"round": 1, "rounds": 20, "left": 38.0, "status": "running", "recent": [LINE]}
    both = [LINE, {**LINE, "round": 2, "away": {}, "loss": None, "rejected": {"too long": 2}}]
    second = {**first, "round": 2, "left": 36.0, "status": "stopped", "recent": both}
    follow = RoundLines(Told({}, first, first, None, second), said.append)
    assert [follow(17) for _ in range(5)] == ["", "running", "running", "", "stopped"]
    assert said == [
        "round  1/20  5 of 6 clients  of n0  away: n1 for 4 min  loss 0.5000  1.2 s  "
        "about 38 s left",
        "round  2/20  5 of 6 clients  of n0  refused: 2 too long  1.2 s  about 36 s left",
    ]
    many = in_words({**LINE, "nodes": [f"n{i}" for i in range(9)]}, 20)
    assert "of n0, n1, n2, n3, n4, n5 and 3 more" in many
    spans = [span(seconds) for seconds in (0, 99, 100, 5 * 3600, 3 * 86400)]
    assert spans == ["0 s", "99 s", "2 min", "5 h 0 min", "3 days"]
