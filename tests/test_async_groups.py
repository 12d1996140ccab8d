"""Asynchronous private deployments: the updates of a group are one secure sum."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("cryptography")
pytest.importorskip("flwr")

from asynchronous import Held, KilledError, Killer, deployment, replay
from deployed import difference, examples
from loopback import phases_in

from benchmarks.federation_faults import kill_serverapp
from fedrows import catalogue
from fedrows.cli.settings import choose
from fedrows.flower.demo import federate, write_project
from fedrows.flower.deployment import Deployment
from fedrows.flower.journal import ROUNDS, Journal, carry_out
from fedrows.flower.launch.resubmit import submit_until_done
from fedrows.flower.server import async_fleet
from fedrows.flower.server.update_log import ARRIVALS, UPDATES, read_updates
from fedrows.flower.wire.message import pack, unpack
from fedrows.flower.wire.names import round_of, tag_of
from fedrows.report.exchange import read_rounds
from fedrows.watch import Observers

DATA = examples()
LIMIT = 1500.0  # seconds, which only a failure takes
PRIVATE: dict[str, Any] = {
    "privacy": "index", "index-epsilon": "", "index-epsilon-for-ever": "", "min-contributors": 1,
    "timeout": 60.0, "shards": 12, "min-nodes": 12,
}  # fmt: skip
UNBOUNDED = {"row-clip": "", "weight-quantile": ""}
CLEAR: dict[str, Any] = {"weighting": "uniform", "shards": 12, "min-nodes": 12, **UNBOUNDED}


def slow(*values: Any) -> Any:
    """Parameters of a slow test."""
    return pytest.param(*values, marks=pytest.mark.slow)


def finished(run: Deployment) -> Deployment:
    for _ in run:
        pass
    return run


def at_random(seed: int) -> Held:
    """A transport that delivers one answer at a time, any of those that wait."""
    transport, draw = Held(), random.Random(seed)
    transport.release = lambda waiting: draw.sample(sorted(waiting), min(1, len(waiting)))
    return transport


def kept(path: Path, run: Deployment) -> Deployment:
    """The run, once it has ended in a folder."""
    with Journal.opened(path, run) as journal:
        carry_out(run, journal, Observers())
    return run


def test_without_delay_it_is_the_synchronous_run(tmp_path: Path) -> None:
    whole = {"mode": "sync", "buffer": "", "concurrency": ""}
    waited = finished(deployment(DATA, tmp_path / "sync", **CLEAR, **whole))
    run = finished(deployment(DATA, tmp_path / "async", buffer=6, **PRIVATE))
    assert run.progress.round == 6
    assert difference(run.progress.whole(), waited.progress.whole()) < 2e-5


@pytest.mark.parametrize("staleness", ["row", slow("version"), slow("none")])
def test_in_the_same_order_it_is_the_clear_run(
    tmp_path: Path, staleness: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node for every client. Each step of the clear run takes the answers of one group."""
    terms = {"staleness": staleness, "buffer": 3, "concurrency": 12, "rounds": 8}
    transport = at_random(2)
    run = kept(tmp_path / "run", deployment(DATA, tmp_path / "a", transport, **terms, **PRIVATE))
    lines = [x for x in read_updates(tmp_path / "run" / UPDATES) if "step" in x]
    assert [x["step"] for x in lines] == list(range(1, 9))
    assert {x["step"] - x["began"] for x in lines} >= {0, 1, 2}
    twin = clear_twin(tmp_path / "b", lines, terms, monkeypatch)
    assert difference(run.progress.whole(), twin.progress.whole()) < 2e-5


def clear_twin(
    folder: Path,
    lines: list[dict[str, Any]],
    terms: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> Deployment:
    """The asynchronous run in the clear in which clients begin and arrive as in these lines."""
    transport = Held()
    run = deployment(DATA, folder, transport, **terms, **CLEAR)
    members = {x["step"]: {client for _, client in x["members"]} for x in lines}
    formed = {(x["began"], client): round_of(x["tag"]) for x in lines for _, client in x["members"]}
    rounds: Iterator[int] = iter(())
    begun = set[int]()

    def begin(number: int) -> torch.Tensor:
        nonlocal rounds
        if number in begun:
            return torch.zeros(0, dtype=torch.int64)
        begun.add(number)
        run.schedule._pay_owed()
        clients = sorted(client for began, client in formed if began == number)
        rounds = iter([formed[number, client] for client in clients])
        return torch.tensor(clients, dtype=torch.int64)

    def release(waiting: Mapping[str, int]) -> list[str]:
        if run.fleet.clients < 12:
            return list(waiting)
        now = members[run.progress.round + 1]
        return [x for x, node in waiting.items() if node - 1 in now]

    assert run.schedule is not None
    monkeypatch.setattr(run.schedule, "begin", begin)
    monkeypatch.setattr(async_fleet, "tag_of", lambda number: tag_of(next(rounds)))
    transport.release = release
    return finished(run)


@pytest.mark.parametrize(("seed", "staleness"), [(0, "row"), slow(1, "version")])
def test_a_server_killed_at_any_moment_applies_every_mean_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int, staleness: str
) -> None:
    """By updates.jsonl, and by its sum: the model is replayed from the means that were accepted."""
    killer, path = Killer(monkeypatch, seed, odds=0.15), tmp_path / "run"
    terms = {"algorithm": "fedavg", "dtype": "float32", "staleness": staleness, "rounds": 6}
    for attempt in range(200):
        transport = at_random(attempt)
        nodes = {"shards": 6, "min-nodes": 6}
        run = deployment(DATA, tmp_path / "nodes", transport, **{**PRIVATE, **nodes}, **terms)
        try:
            kept(path, run)
            break
        except KilledError:
            continue
    assert killer.kills > 5
    assert run.progress.round == 6
    lines = read_updates(path / UPDATES)
    applied = [line for line in lines if "step" in line]
    keys = [(line["node"], line["client"], line["tag"]) for line in applied]
    assert [line["step"] for line in applied] == list(range(1, 7))
    assert len(set(keys)) == 6
    assert run.schedule is not None
    waiting = {one.key for one in run.schedule.updates}
    assert {*keys, *waiting} == killer.accepted.keys()  # nothing that was accepted is lost
    listed = [(x["node"], x["client"], x["tag"]) for x in lines if "accepted" in x]
    assert sorted(listed) == sorted(killer.accepted)
    assert len(list((path / ARRIVALS).iterdir())) == len(waiting)
    means = [(line["step"], killer.accepted[key]) for line, key in zip(applied, keys, strict=True)]
    replayed = replay(run, means, staleness, 1)
    torch.testing.assert_close(run.progress.params.tables["item"], replayed, rtol=0, atol=1e-6)


@pytest.mark.parametrize(("use", "phase"), [slow("union", 0), slow("update", 0), ("update", 2)])
def test_a_node_that_falls_silent_is_missing_in_its_group_alone(
    tmp_path: Path, use: str, phase: int
) -> None:
    transport, silent, uses = at_random(3), list[str](), dict[str, str]()

    def meddle(node: int, answer: bytes) -> bytes | str:
        for facts in (one.facts for one in phases_in(transport.sent[-1][1])):
            uses.setdefault(facts["sum"], str(facts.get("use")))
            if node == 2 and not silent and (uses[facts["sum"]], facts["phase"]) == (use, phase):
                silent.append(facts["sum"])
                return "it was killed"
        return answer

    transport.meddle = meddle
    terms = {**PRIVATE, "buffer": 4, "concurrency": 8, "rounds": 5}
    run = deployment(DATA, tmp_path / "nodes", transport, **terms)
    lines = list(run)
    assert len(silent) == 1
    assert run.progress.round == 5
    dropped = [name for x in lines for who in x.dropped.values() for name in who]
    assert len(dropped) == sum(4 - x.answered for x in lines)
    assert dropped in ([], [1]) if (use, phase) == ("update", 0) else dropped == [1]
    assert run.progress.params.tables["item"].isfinite().all()


@pytest.mark.parametrize("what", [slow("message"), "union"])
def test_a_message_of_another_group_is_refused(tmp_path: Path, what: str) -> None:
    """Node 1 is told of another group: by its whole message, or by the union that is trained on."""
    transport, refused = at_random(1), list[bytes]()
    terms = {**PRIVATE, "buffer": 4, "concurrency": 8, "rounds": 4}
    run = deployment(DATA, tmp_path / "nodes", transport, **terms)
    real, trained = transport.here[1], dict[int, bytes]()

    def misled(message: bytes) -> bytes:
        own = [one for one in phases_in(message) if "coding" in one.facts]
        mine = next((x.nodes for x in run.fleet.groups if "n0" in x.nodes), {})
        others = [x for node, x in trained.items() if f"n{node - 1}" not in mine]
        if not own or refused or not others:
            return real(message)
        if what == "union":
            theirs = next(x for x in phases_in(others[0]) if "coding" in x.facts)
            assert own[0].facts["union"] != theirs.facts["union"]
            own[0].facts["union"] = theirs.facts["union"]
            message = pack(own[0])
        else:
            message = others[0]
        refused.append(real(message))
        return refused[0]

    def listening(node: int) -> Any:
        before = transport.here[node]

        def listened(message: bytes) -> bytes:
            if any("coding" in one.facts for one in phases_in(message)):
                trained[node] = message
            return before(message)

        return listened

    transport.here = {1: misled, **{node: listening(node) for node in range(2, 13)}}
    lines = list(run)
    outer = unpack(refused[0])
    answers = list(map(unpack, outer.parts.values())) if outer.kind == "sums" else [outer]
    assert {one.kind for one in answers} == {"silent"}
    assert run.progress.round == 4
    assert [name for x in lines for who in x.dropped.values() for name in who] == [0]


def test_nodes_that_come_later_get_work_once_heat_is_counted_with_them(tmp_path: Path) -> None:
    transport = at_random(0)
    terms = {**PRIVATE, "buffer": 3, "concurrency": 9, "rounds": 500, "min-nodes": 6}
    run = deployment(DATA, tmp_path / "nodes", transport, **terms)
    one = transport.release
    transport.release = lambda waiting: one(waiting) if run.fleet.clients == 12 else list(waiting)
    later = {node: transport.here.pop(node) for node in range(7, 13)}
    totals, accepted = list[float](), set[Any]()
    for exchange in run:
        assert exchange.answered == 3
        totals.append(run.fleet.heat()["item"].total)
        if exchange.round == 2:
            transport.here |= later
        accepted = {x.name for x in run.registry.clients if x.accepted}
        if accepted & set(range(6, 12)):
            break
    assert totals[:2] == [6, 6]
    assert totals[-1] == 12


@pytest.mark.slow(minutes=1)
def test_groups_of_a_real_federation_whose_server_is_killed(tmp_path: Path) -> None:
    steps, out = 4, tmp_path / "run"
    words = {"device": "cpu", "clients": "40", "rounds": str(steps), "mode": "async"}
    words |= {"buffer": "3", "concurrency": "6", "weighting": "uniform"}
    settings = choose(catalogue.task("synthetic"), ["fedsubavg"], words)["fedsubavg"]
    data = settings.task.load(settings.options)
    terms = {"privacy": "index", "index_epsilon": "", "index_epsilon_for_ever": ""}
    terms |= {"min_contributors": 1, "min_nodes": 6, "timeout": 60.0}
    with federate(tmp_path, data, nodes=6) as federation:
        project = write_project(tmp_path / "project", settings, terms, out, tmp_path / "data")
        said, killed = list[str](), False
        submitter = threading.Thread(
            target=lambda: submit_until_done(federation.control, project, {}, 5, said.append),
            daemon=True,
        )
        submitter.start()
        until = time.monotonic() + LIMIT
        while submitter.is_alive() and time.monotonic() < until:
            if not killed and (out / ROUNDS).exists() and read_rounds(out / ROUNDS):
                killed = kill_serverapp(federation)
            time.sleep(0.1)
        assert not submitter.is_alive(), said
    assert killed
    lines = read_updates(out / UPDATES)
    applied = [x["client"] for x in lines if "step" in x]
    accepted = [x["client"] for x in lines if "accepted" in x]
    assert [x["step"] for x in lines if "step" in x] == list(range(1, steps + 1))
    assert len(set(accepted)) == len(accepted)
    assert set(applied) <= set(accepted)
    assert len(set(applied)) == steps
    assert len(list((out / ARRIVALS).iterdir())) == len(set(accepted) - set(applied))
