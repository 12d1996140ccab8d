"""What goes wrong is said within seconds, on both sides, and nodes are started again."""

from __future__ import annotations

import asyncio
import importlib
import itertools
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr")
import httpx

from fedrows.flower.launch import certificates, flwr_patches, supervising
from fedrows.flower.launch.flwr_calls import sign_off
from fedrows.flower.launch.notices import MARK, FailedRequests, Notices, leave_notice, notices_in
from fedrows.flower.launch.processes import LaunchError, ProcessGroup, end_marked, environment
from fedrows.flower.launch.starting import wait_for, why_ended


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_notice_is_said_every_few_seconds_and_forgotten_when_it_is_over() -> None:
    said, clock = list[str](), Clock()
    notices = Notices(said.append, clock)
    for _ in range(30):
        notices.add("disk", "The disk\nis full.")
        clock.now += 0.5
    assert said == [f"{MARK}The disk is full."] * 3
    assert notices.recent() == ["The disk\nis full."]
    clock.now += 15
    assert notices.recent() == []


def test_what_a_run_waits_for_reaches_operators_while_it_is_new(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    left = tmp_path / "notice"
    notices = Notices(left=str(left))
    assert notices.recent() == []
    leave_notice("Waiting for nodes.", str(left))
    assert notices.recent() == notices_in(capsys.readouterr().out) == ["Waiting for nodes."]
    os.utime(left, (time.time() - 60, time.time() - 60))
    assert notices.recent() == []


def test_small_troubles_are_said_when_there_are_many() -> None:
    said, clock = list[str](), Clock()
    notices = Notices(said.append, clock)
    for seconds in (0.0, 6.0, 6.0, 1.0):
        clock.now += seconds
        notices.count("breaks", "{n} broke off.")
    assert notices_in("\n".join(said)) == ["3 broke off."]


def test_why_a_request_failed_is_said() -> None:
    said: list[str] = []
    failed = FailedRequests(Notices(said.append))
    request = httpx.Request("POST", "https://superlink/v1/fleet/pull-messages")
    reason = "The clock of this node is 3600 s ahead of the SuperLink's."
    again, other = reason.replace("3600", "3601"), "The SuperLink's database cannot be used."
    for status, text in ((503, reason), (503, again), (404, "x"), (503, other)):
        answer = httpx.Response(status, text=text, request=request)
        failed(httpx.HTTPStatusError("no", request=request, response=answer))
    for _ in range(3):
        failed(httpx.ReadError("reset {by} peer"))
    failed(httpx.ConnectError("[Errno 111] Connection refused"))
    assert notices_in("\n".join(said)).pop() == (
        "The server does not answer ([Errno 111] Connection refused): it is tried again."
    )
    assert notices_in("\n".join(said))[:3] == [
        reason,
        other,
        "3 connections to the SuperLink broke off within 10 s (reset {by} peer): they are tried "
        "again.",
    ]


@pytest.fixture
def group(tmp_path: Path) -> Iterator[ProcessGroup]:
    mark = os.urandom(8).hex()
    made = ProcessGroup(tmp_path / "logs", environment(tmp_path, mark))
    yield made
    made.kill()
    end_marked(mark)


def test_notices_in_logs_are_repeated_once(group: ProcessGroup) -> None:
    said: list[str] = []
    repeat = supervising.Repeater(group, said.append)
    group.start("node", ["sleep", "60"])
    log = group.log("node")
    assert not repeat()
    log.write_text(f"other\n{MARK}One.\n{MARK}Tw")
    assert repeat()
    log.write_text(f"other\n{MARK}One.\n{MARK}Two.\nmore")
    assert repeat()
    assert not repeat()
    log.write_text(f"{MARK}New.\n")  # another start
    assert repeat()
    assert said == ["One.", "Two.", "New."]


def test_a_full_disk_is_said_although_the_log_is_on_it(tmp_path: Path) -> None:
    said: list[str] = []
    assert not supervising.DiskWatch(tmp_path, said.append)()
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").write_text("")
    watch = supervising.DiskWatch(tmp_path / "file", said.append)
    assert watch()
    assert not watch()  # it was just said
    assert "rounds stand still until there is room" in said[0]


def test_a_database_that_was_deleted_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervising, "EVERY", 0.0)
    said: list[str] = []
    watch = supervising.DatabaseWatch(tmp_path / "superlink.db", said.append)
    assert not watch()  # it is not there yet
    (tmp_path / "superlink.db").write_text("")
    assert not watch()
    (tmp_path / "superlink.db").rename(tmp_path / "moved")
    assert watch()
    assert "was deleted or replaced" in said[0]
    (tmp_path / "moved").rename(tmp_path / "superlink.db")
    assert not watch()


def test_a_node_that_ends_is_started_again(
    group: ProcessGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervising, "_pauses", lambda: itertools.repeat(0.01))
    said, starts = list[str](), itertools.count(1)
    code = "import sys; print('begun', flush=True); sys.exit('Connection attempt failed.')"

    def begin() -> None:
        if next(starts) == 3:
            raise LaunchError("The SuperLink is away.")
        group.log("node").unlink(missing_ok=True)
        group.start("node", [sys.executable, "-c", code])
        group.processes["node"].wait()

    def look() -> str | None:
        return "enough" if len(said) == 4 else None

    with pytest.raises(LaunchError, match="enough"):
        supervising.supervise(group, begin, look, again=said.append)
    assert said[0].startswith("node has ended (Connection attempt failed): look into ")
    assert said[0].endswith("It is started again in 0.01 s.")
    assert said[2] == "The SuperLink is away. It is started again in 0.01 s."
    assert list(itertools.islice(supervising._pauses(), 3)) == [0.01] * 3


def test_a_process_that_was_killed_is_said_to_be(group: ProcessGroup) -> None:
    group.start("node", ["sleep", "60"]).kill()
    group.processes["node"].wait()
    assert why_ended(group, "node").startswith("node has ended (killed by signal 9): look into ")


def test_pauses_grow_to_half_a_minute() -> None:
    assert list(itertools.islice(supervising._pauses(), 7)) == [1, 2, 4, 8, 16, 30, 30]


def test_a_start_is_waited_for_as_long_as_there_is_a_reason(group: ProcessGroup) -> None:
    code = "import time; time.sleep(0.6); print('begun', flush=True); time.sleep(60)"
    group.start("node", [sys.executable, "-c", code])
    assert wait_for(group, {"node": "begun"}, 0.3, repeat=lambda: True)


# What flwr does about it


def test_a_connection_that_breaks_in_its_handshake_is_tried_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    module: Any = importlib.import_module("flwr.supercore.retry.http_retry")
    monkeypatch.setattr(module, "RetryInvoker", module.RetryInvoker)
    monkeypatch.setattr(module, "MAX_RETRY_DELAY", 0.01)
    failed: list[Exception] = []
    flwr_patches.retry_more_often(failed=failed.append)
    errors = [
        httpx.ConnectError("[SSL: UNEXPECTED_EOF_WHILE_READING] EOF occurred"),
        httpx.ReadError("reset"),
        httpx.ConnectError("[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed"),
    ]

    def call() -> None:
        raise errors[len(failed)]

    with pytest.raises(httpx.ConnectError, match="certificate verify failed"):
        module.make_simple_http_retry_invoker().invoke(call)
    assert failed == errors


@pytest.mark.parametrize("ends", [True, False])
def test_a_refused_proof_may_be_tried_again(monkeypatch: pytest.MonkeyPatch, ends: bool) -> None:
    module: Any = importlib.import_module("flwr.supercore.retry.http_retry")
    monkeypatch.setattr(module, "RetryInvoker", module.RetryInvoker)
    monkeypatch.setattr(module, "MAX_RETRY_DELAY", 0.01)
    monkeypatch.setattr(module, "FORCE_EXIT_TIMEOUT_SECONDS", -1)
    interrupted: list[int] = []
    monkeypatch.setattr(module.os, "kill", lambda pid, number: interrupted.append(number))
    flwr_patches.retry_more_often(refusals_end=lambda: ends)
    request = httpx.Request("POST", "https://node/v1/runtime/acquire-task")
    answers = [httpx.Response(401, request=request), httpx.Response(200, request=request)]

    def call() -> str:
        answers.pop(0).raise_for_status()
        return "done"

    assert module.make_simple_http_retry_invoker().invoke(call) == "done"
    assert len(interrupted) == int(ends)


@pytest.mark.parametrize(
    ("answers", "done", "asked"),
    [
        ([httpx.ReadError("reset"), httpx.ConnectError("reset"), None], True, 3),
        ([httpx.ReadError("reset")] * 4, False, 4),
        ([ValueError("refused"), None], False, 1),
    ],
)
def test_a_node_is_signed_off_although_connections_break(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    answers: list[Exception | None],
    done: bool,
    asked: int,
) -> None:
    certificates.make_authority(tmp_path)
    certificates.make_server(tmp_path, ["localhost"])
    certificates.make_node_key(tmp_path, "a")
    keys = certificates.open_certificates(tmp_path, ["a"])
    left = list(answers)

    def deactivate(client: object, request: object) -> None:
        if (error := left.pop(0)) is not None:
            raise error

    fleet: Any = importlib.import_module("flwr.supernode.fleet_http_client")
    monkeypatch.setattr(fleet.FleetHttpClient, "DeactivateNode", deactivate)
    assert sign_off("localhost:1", keys.ca, keys.node_keys["a"], 7, tries=4, pause=0) == done
    assert len(answers) - len(left) == asked


def test_a_database_that_cannot_be_written_asks_to_try_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    module: Any = importlib.import_module("flwr.superlink.main")
    sql: Any = importlib.import_module("sqlalchemy.exc")
    monkeypatch.setattr(module, "http_error_translator", module.http_error_translator)
    flwr_patches.excuse_database(lambda why: f"excused: {why}")

    async def fails(request: object) -> None:
        raise sql.OperationalError("INSERT", {}, Exception("database or disk is full"))

    answer = asyncio.run(module.http_error_translator(None, fails))
    assert (answer.status_code, answer.body) == (503, b"excused: database or disk is full")
