"""Asynchronous deployments when something is late, old, hostile, new or not allowed."""

from __future__ import annotations

import itertools
import json
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("safetensors")

from asynchronous import ASYNC, Held, deployment, one_by_one
from deployed import examples, task_of, with_local_users
from loopback import fresh

from fedrows.errors import PlanError
from fedrows.flower.deployment import Deployment
from fedrows.flower.journal import ROUNDS, Journal, carry_out
from fedrows.flower.launch.following import in_words
from fedrows.flower.launch.operator_folder import OperatorFolder
from fedrows.flower.node.state import NodeState
from fedrows.flower.run_progress import ProgressWriter
from fedrows.flower.server import async_fleet, unwaited_fleet
from fedrows.flower.server.node_records import LATE
from fedrows.flower.server.update_log import (
    ARRIVALS,
    UPDATES,
    BufferedUpdate,
    UpdateLog,
    read_updates,
)
from fedrows.flower.server.uploads import ClientUpdate
from fedrows.flower.wire.contract import make_contract
from fedrows.flower.wire.message import Message, pack, unpack
from fedrows.report.exchange import read_rounds
from fedrows.rows.index import Index
from fedrows.rows.params import Submodels
from fedrows.runs.status_file import read_status
from fedrows.watch import Observers, Watching
from fedrows.watch import opened as watching

DATA = examples()


def lines_of(run: Deployment) -> list[Any]:
    """What happened in every step."""
    return list(run)


def test_who_does_not_answer_is_given_up_after_the_time_out_and_nobody_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Node 2 does not answer its first message; the time-out passes after the fifth step."""
    transport, passed = Held(), [0.0]
    run = deployment(DATA, tmp_path, transport, timeout=1000.0, rounds=12, buffer=2)
    swallowed = list[bytes]()

    def meddle(node: int, answer: bytes) -> bytes | None:
        if node == 2 and not swallowed and unpack(answer).kind == "trained":
            swallowed.append(answer)
            return None
        return answer

    def now() -> float:
        return time.monotonic() + passed[0]

    transport.meddle = meddle
    later = SimpleNamespace(monotonic=now, perf_counter=time.perf_counter, sleep=time.sleep)
    monkeypatch.setattr(async_fleet, "time", later)
    dropped = {}
    for exchange in run:
        dropped[exchange.round] = exchange.dropped.get(LATE, [])
        if exchange.round == 5:
            assert run.fleet.records.reports()["n1"].answered == 0
            passed[0] = 2000.0
    assert [step for step, clients in dropped.items() if clients] == [6]
    assert run.fleet.records.reports()["n1"].answered > 0  # it is back at work
    tag = unpack(swallowed[0]).facts["tag"]
    assert tag not in {one.accepted for one in run.registry.clients}


def test_an_answer_to_a_tag_that_is_not_known_is_refused(tmp_path: Path) -> None:
    """A node that sends its first answer again, as an answer to its next message."""
    transport, first = Held(), list[bytes]()
    run = deployment(DATA, tmp_path, transport, rounds=6)

    def meddle(node: int, answer: bytes) -> bytes:
        if node != 1 or unpack(answer).kind != "trained":
            return answer
        first.append(answer)
        return first[0]

    transport.meddle = meddle
    lines = lines_of(run)
    assert len(first) > 1
    assert run.fleet.rejected["stale"] >= len(first) - 2  # the last may be under way
    assert {who for x in lines for names in x.refused.values() for who in names} == {"node 'n0'"}


@pytest.mark.parametrize("oldest", [0, 1])
def test_an_update_older_than_max_age_is_dropped(tmp_path: Path, oldest: int) -> None:
    transport = Held()
    transport.release = slow_first()
    run = deployment(DATA, tmp_path / "nodes", transport, max_age=oldest, buffer=2, rounds=9)
    with Journal.opened(tmp_path / "run", run) as journal:
        carry_out(run, journal, Observers())
    updates = read_updates(tmp_path / "run" / UPDATES)
    ages = [x["age"] for x in updates if "step" in x and "dropped" not in x]
    old = [x for x in updates if x.get("dropped") == "too old"]
    assert max(ages) <= oldest
    assert old
    assert all(x["age"] > oldest for x in old)
    dropped = [x["dropped"] for x in read_rounds(tmp_path / "run" / ROUNDS)]
    assert any("its update is too old" in x for x in dropped)


def slow_first() -> Callable[[Mapping[str, int]], list[str]]:
    """Answers of node 1 wait for every sixth look; the rest come one by one."""
    looks = itertools.count(1)

    def release(waiting: Mapping[str, int]) -> list[str]:
        others = [x for x, node in waiting.items() if node != 1]
        return list(waiting) if next(looks) % 6 == 0 else others[:1]

    return release


def test_updates_that_are_not_finite_or_too_long_are_refused(tmp_path: Path) -> None:
    transport = Held()
    transport.release = one_by_one
    run = deployment(DATA, tmp_path / "nodes", transport, rounds=5, buffer=6)
    lies = {1: 1e200, 2: 1e6}  # the norm of the first is infinite

    def meddle(node: int, answer: bytes) -> bytes:
        message = unpack(answer)
        if message.kind != "trained" or node not in lies:
            return answer
        parts = dict(message.parts)
        numbers = np.frombuffer(parts["update/item"], dtype="<f8").copy()
        numbers[:1] = lies.pop(node)
        parts["update/item"] = numbers.tobytes()
        return pack(Message(message.kind, message.facts, parts))

    transport.meddle = meddle
    with Journal.opened(tmp_path / "run", run) as journal:
        carry_out(run, journal, Observers())
    assert not lies
    assert run.fleet.rejected == {"not finite": 1, "too long": 1}
    assert bool(run.progress.params.tables["item"].isfinite().all())
    assert float(run.progress.params.tables["item"].abs().max()) < 100
    updates = read_updates(tmp_path / "run" / UPDATES)
    assert [x["dropped"] for x in updates if "dropped" in x] == ["too long"]
    assert len([x for x in updates if "step" in x and "dropped" not in x]) == 5 * 6


def test_a_node_whose_updates_are_all_refused_fills_no_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unwaited_fleet, "FIRST_PAUSE", 0.0)  # or it would send few
    transport, most = Held(), 0
    run = deployment(DATA, tmp_path / "nodes", transport, rounds=2, buffer=3, max_norm=100.0)

    def lying_first(waiting: Mapping[str, int]) -> list[str]:
        nonlocal most
        most = max(most, len(list((tmp_path / "run" / ARRIVALS).iterdir())))
        liars = [x for x, node in waiting.items() if node == 1]
        return liars if transport.waits < 60 else list(waiting)

    def meddle(node: int, answer: bytes) -> bytes:
        message = unpack(answer)
        if message.kind != "trained" or node != 1:
            return answer
        lie = np.full(len(message.parts["update/item"]) // 8, 1e3).tobytes()
        return pack(Message(message.kind, message.facts, {**message.parts, "update/item": lie}))

    transport.release, transport.meddle = lying_first, meddle
    with Journal.opened(tmp_path / "run", run) as journal:
        carry_out(run, journal, Observers())
    assert run.fleet.rejected["too long"] > 20
    assert most <= 4
    updates = read_updates(tmp_path / "run" / UPDATES)
    assert len([x for x in updates if "dropped" in x]) == run.fleet.rejected["too long"]


@pytest.mark.parametrize("lie", ["nonsense", "another tag", "not finite"])
def test_a_node_that_answers_nonsense_at_once_does_not_keep_the_server_busy(
    tmp_path: Path, lie: str
) -> None:
    """It gets few messages while two others take their time: each costs the server a model."""
    transport = Held()
    run = deployment(DATA, tmp_path, transport, rounds=1, buffer=6)

    def meddle(node: int, answer: bytes) -> bytes:
        message = unpack(answer)
        if message.kind != "trained" or node != 1:
            return answer
        facts, parts = dict(message.facts), dict(message.parts)
        if lie == "another tag":
            facts["tag"] = 1
        elif lie != "nonsense":
            parts["update/item"] = np.full(len(parts["update/item"]) // 8, np.inf).tobytes()
        kind = "nonsense" if lie == "nonsense" else message.kind
        return pack(Message(kind, facts, parts))

    def liar_first(waiting: Mapping[str, int]) -> list[str]:
        liars = [x for x, node in waiting.items() if node == 1]
        here = len(run.registry.nodes) == 3
        return liars if here and transport.waits < 200 else list(waiting)

    transport.meddle, transport.release = meddle, liar_first
    lines_of(run)
    assert run.progress.round == 1
    told = [message for node, message in transport.sent if node == 1]
    assert 2 <= len(told) < 10


def test_a_node_does_not_fill_a_buffer_by_giving_its_client_other_names(tmp_path: Path) -> None:
    """It has two clients at a time; who has sent an update is gone with the next answer."""
    data = examples(clients=24)
    mine, turn = [0, *range(12, 24)], 0
    transport = Held()
    others = data.select(range(1, 12))
    terms = {"rounds": 2, "buffer": 6, "concurrency": 12, "min-nodes": 3}
    run = deployment(others, tmp_path, transport, shards=2, **terms)
    config = {**ASYNC, **terms}

    def renaming(message: bytes) -> bytes:
        nonlocal turn
        turn += unpack(message).kind == "train"
        shard = data.select(mine[max(turn - 1, 0) : turn + 1])
        return fresh(task_of(data), config, shard, tmp_path / "n2", "n2")(message)

    transport.here[3] = renaming

    def liar_first(waiting: Mapping[str, int]) -> list[str]:
        liars = [x for x, node in waiting.items() if node == 3]
        here = len(run.registry.nodes) == 3
        return liars if here and transport.waits < 100 else list(waiting)

    transport.release = liar_first
    steps = list[Counter[str]]()
    accept = run.fleet.log.accept
    accepted = list[BufferedUpdate]()

    def note(updates: Sequence[BufferedUpdate]) -> None:
        accepted.extend(updates)
        accept(updates)

    run.fleet.log.accept = note  # type: ignore[method-assign]
    for _ in run:
        steps.append(Counter(one.node for one in accepted))
        accepted.clear()
    assert steps[0]["n2"] <= 2


def test_what_was_dropped_stays_dropped_after_a_restart(tmp_path: Path) -> None:
    def arrived(client: int, sequence: int) -> BufferedUpdate:
        index = {"item": Index.of([torch.tensor([client])])}
        update = Submodels(index, {"item": torch.ones(1, 2)}, {})
        own = ClientUpdate({"update": update}, 1.0, None, None)
        return BufferedUpdate("node", client, 7, 4, sequence, 1.0, own, {})

    first, second, long = arrived(1, 1), arrived(2, 1), arrived(3, 2)
    log = UpdateLog()
    log.keep_in(tmp_path)
    log.accept([first, second])
    log.accept([long])
    log.settle(5, [first])
    log.settle(5, [long], "too long")
    again = UpdateLog()  # killed before the checkpoint of step 5
    again.keep_in(tmp_path)
    assert [one.client for one in again.restore(4)] == [1, 2]
    again.settle(5, [first])
    again.settle(5, [second], "too long")
    assert len(list((tmp_path / ARRIVALS).iterdir())) == 1  # the first is not in a checkpoint yet
    again.saved()
    assert not list((tmp_path / ARRIVALS).iterdir())
    assert {x.stat().st_mode & 0o777 for x in tmp_path.iterdir() if x.is_file()} == {0o600}


def test_what_clients_remember_follows_the_update_that_counts(tmp_path: Path) -> None:
    """Rows that never leave: each client's equal those of the update that was last applied."""
    data = with_local_users()
    transport = Held()
    transport.release = slow_first()
    run = deployment(data, tmp_path, transport, shards=4, rounds=12, buffer=2, concurrency=5)
    lines_of(run)
    counted = [one for one in run.registry.clients if one.accepted]
    assert len({one.node for one in counted}) > 1
    for one in counted:
        memory = NodeState(tmp_path / one.node).of_run(run.fleet.run).of(one.name)
        stored = memory.get(one.accepted)
        assert stored is not None
        assert bool(stored["local/user"].any())


def test_nodes_come_change_and_go_while_others_train(tmp_path: Path) -> None:
    data = examples(clients=13)
    transport = Held()
    transport.release = one_by_one
    some = data.select(range(8))
    run = deployment(some, tmp_path, transport, shards=2, rounds=30, buffer=2, concurrency=4)
    config = {**ASYNC, "rounds": 30, "buffer": 2, "concurrency": 4}
    for exchange in run:
        if exchange.round == 5:  # a node comes
            late = data.select([8, 9, 10])
            transport.here[3] = fresh(task_of(data), config, late, tmp_path / "n2", "n2")
        if exchange.round == 12:  # node 1: one client leaves, one comes
            moved = data.select([2, 4, 6, 12])
            transport.here[1] = fresh(task_of(data), config, moved, tmp_path / "n0", "n0")
        if exchange.round == 20:  # a node goes
            del transport.here[2]
    names = {(one.node, one.name) for one in run.registry.clients}
    assert ("n2", 8) in names
    assert ("n0", 12) in names
    assert ("n0", 0) not in names
    took_part = {one.node for one in run.registry.clients if one.accepted}
    assert took_part == {"n0", "n1", "n2"}
    assert run.progress.round == 30


@pytest.mark.parametrize(
    ("terms", "says"),
    [
        ({"algorithm": "scaffold"}, "scaffold keeps a state at its clients"),
        ({"algorithm": "centralsgd"}, "needs all data in one place"),
        ({"privacy": "index", "buffer": 2}, "buffer is 2, but a secure sum needs clients of at le"),
        ({"privacy": "full"}, "noise is made for rounds that follow one another"),
        ({"min-answers": 2}, "min-answers is 2, but in mode async"),
        ({"buffer": 9}, "buffer is 9, but only 6 clients train at a time"),
        ({"clock": "constant"}, "only simulations have a virtual time"),
        ({"mode": "sync"}, "buffer is 3, but it is for mode async"),
    ],
)
def test_runs_that_cannot_be_asynchronous(terms: dict[str, Any], says: str) -> None:
    with pytest.raises(PlanError, match=says):
        make_contract(task_of(DATA), {**ASYNC, **terms})


def test_operators_see_the_buffer_who_is_under_way_and_ages(tmp_path: Path) -> None:
    transport = Held()
    transport.release = one_by_one
    run = deployment(DATA, tmp_path / "nodes", transport, rounds=8, buffer=2)
    assert run.schedule is not None
    folder = OperatorFolder(tmp_path / "operators")
    (tmp_path / "operators").mkdir()
    writer = ProgressWriter(folder, 17, run)
    log, meters = tmp_path / "log", tmp_path / "metrics.prom"
    seen = Watching(log="json", log_file=str(log), metrics_file=str(meters))
    with Journal.opened(tmp_path / "run", run) as journal, watching(seen) as observer:
        carry_out(run, journal, Observers([observer, writer]))
    (progress,) = folder.progress()
    assert progress["buffer"].keys() == {"wanted", "waiting", "under_way", "ages"}
    assert progress["buffer"]["wanted"] == 2
    assert sum(progress["buffer"]["under_way"].values()) > 0
    ages = [age for x in progress["recent"] for age in x["buffer"]["ages"]]
    assert len(ages) == 16
    assert max(ages) > 0
    assert "under way" in in_words(progress["recent"][-1], 8)
    assert read_status(tmp_path / "run")["buffer"] == progress["recent"][-1]["buffer"]
    rounds = [x for x in map(json.loads, log.read_text().splitlines()) if x["event"] == "round"]
    assert [x["buffer"] for x in rounds] == [x["buffer"] for x in progress["recent"]]
    text = meters.read_text()
    for name in ("buffered_updates", "update_age_max_steps", "update_age_mean_steps"):
        assert f'fedrows_{name}{{run="run"}}' in text
    assert 'fedrows_node_clients_under_way{node="n0",run="run"}' in text
    kept = read_rounds(tmp_path / "run" / ROUNDS)
    assert [x["buffer"] for x in kept] == [x["buffer"] for x in progress["recent"]]
