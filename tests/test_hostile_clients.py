"""Nodes that answer with anything at all: an answer costs its node that answer, and no run ends."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("safetensors")

from deployed import CONFIG, difference, examples, run, shards_of, task_of
from loopback import Loopback, federation

from fedrows.errors import FedrowsError
from fedrows.flower.node.node import ClientNode
from fedrows.flower.node.state import NodeState
from fedrows.flower.server import enrolment
from fedrows.flower.server import fleet as fleet_module
from fedrows.flower.server.fleet import FlowerFleet
from fedrows.flower.server.registry import EnrolmentLimits, Registry
from fedrows.flower.server.uploads import RoundUploads
from fedrows.flower.wire.codings import ids_to_bytes
from fedrows.flower.wire.contract import make_contract
from fedrows.flower.wire.message import Message, WireError, pack, unpack
from fedrows.flower.wire.upload_checks import UploadRefused
from fedrows.rows.schema import Schema, Table
from fedrows.server import begin, rounds

VALUES: list[Any] = [None, True, -1, 0, 1, 2**63, 1e308, "", "x" * 300, "\0\n\x1b[2J", [], {},
                     [1, "a"], [[]], {"a": 1}, list(range(50)), ["n0"] * 3, [True, 2]]  # fmt: skip
KINDS = ["enrolled", "trained", "sum", "silent", "state-lost", "refused", "", "x" * 200]


def mutated(answer: bytes, draw: np.random.Generator) -> bytes:
    """An honest answer with one thing about it changed, of every kind that there is."""
    message = unpack(answer)
    kind, facts, parts = message.kind, dict(message.facts), dict(message.parts)
    what = draw.integers(9)
    some = str(draw.choice(sorted(parts))) if parts else ""
    if what <= 2 and parts:
        data = bytearray(parts[some])
        way = draw.integers(5)
        if way == 0:
            parts[some] = bytes(data[: draw.integers(len(data) + 1)])
        elif way == 1:
            parts[some] = bytes(data) + draw.bytes(int(draw.integers(1, 40)))
        elif way == 2:
            parts[some] = draw.bytes(len(data))
        elif way == 3:
            parts[some] = bytes([255]) * len(data)
        else:
            for at in draw.integers(0, max(len(data), 1), 3):
                data[at : at + 1] = draw.bytes(1)
            parts[some] = bytes(data)
    elif what == 3 and parts:
        other = str(
            draw.choice([*parts, "reply", "asked", "losses", "strange", "changed/examples"])
        )
        parts[other] = parts.pop(some)
    elif what == 4:
        name = str(draw.choice([*facts, "left", "changes", "clients", "why", "newest", "version"]))
        facts[name] = VALUES[draw.integers(len(VALUES))]
    elif what == 5 and facts:
        del facts[str(draw.choice(sorted(facts)))]
    elif what == 6:
        kind = KINDS[draw.integers(len(KINDS))]
    whole = bytearray(pack(Message(kind, facts, parts)))
    if what == 7:
        return bytes(whole[: draw.integers(len(whole) + 1)])
    if what == 8:
        for at in draw.integers(0, len(whole), int(draw.integers(1, 9))):
            whole[at : at + 1] = draw.bytes(1)
    return bytes(whole)


def heard(fleet: FlowerFleet, loopback: Loopback, data: Any) -> dict[str, list[tuple[int, bytes]]]:
    """Honest answers by kind, of a short run: each with the number of its node."""
    answers: dict[str, list[tuple[int, bytes]]] = {}

    def listen(node: int, answer: bytes) -> bytes:
        answers.setdefault(unpack(answer).kind, []).append((node, answer))
        return answer

    loopback.meddle = listen
    run(fleet, data)
    return answers


@pytest.mark.parametrize("count", [400, pytest.param(30_000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("algorithm", ["fedsubavg", "scaffold"])
def test_fuzzed_updates_are_refused_or_have_the_right_form(
    tmp_path: Path, algorithm: str, count: int
) -> None:
    data, draw = examples(), np.random.default_rng(1)
    config = CONFIG | {"rounds": 1, "algorithm": algorithm}
    fleet, loopback = federation(task_of(data), config, shards_of(data), tmp_path)
    node, answer = heard(fleet, loopback, data)["trained"][0]
    tag = unpack(answer).facts["tag"]
    cohort = fleet.draw(1, 6)
    hosts = fleet.registry.clients
    positions = [i for i, x in enumerate(cohort.tolist()) if hosts[x].node == f"n{node - 1}"]
    said, refused = Counter[str](), list[str]()
    for _ in range(count):
        refused.clear()
        uploads = RoundUploads(
            fleet.contract, fleet.registry, cohort, tag, lambda why, *_: refused.append(why)
        )
        try:
            uploads.add(positions, mutated(answer, draw))
        except UploadRefused as error:
            said[error.reason] += 1
            continue
        upload = uploads.joined(fleet.heat())
        assert len(upload.clients) + len(refused) == len(positions)
        assert bool(upload.update.rows["item"].isfinite().all())
        said["taken"] += 1
    assert said["taken"] < count
    assert len(said) >= 5, said


@pytest.mark.parametrize("count", [200, pytest.param(5_000, marks=pytest.mark.slow)])
def test_fuzzed_registrations_are_refused_or_have_the_right_form(
    tmp_path: Path, count: int
) -> None:
    data, draw = examples(), np.random.default_rng(2)
    fleet, loopback = federation(task_of(data), CONFIG | {"rounds": 1}, shards_of(data), tmp_path)
    answer = heard(fleet, loopback, data)["enrolled"][0][1]
    message = unpack(answer)
    changes = {f"changed/{name}": part for name, part in message.parts.items()}
    facts = {"clients": message.facts["clients"], "left": [0], "changes": True}
    change = pack(Message("trained", facts, changes))
    taken = 0
    for i in range(count):
        registry = Registry(fleet.schema, "examples", EnrolmentLimits(20, 100), weight_quantile=0.9)
        registry.register(1, 1, message)
        try:
            if i % 2:
                registry.register(2, 1, unpack(mutated(answer, draw)))
            else:
                registry.change("n0", unpack(mutated(change, draw)))
        except WireError:
            continue
        taken += 1
        assert all(1 <= one.examples <= 100 for one in registry.clients)
        assert all(0 < x <= 128 for x in registry.weights.tolist())
        assert all(len(node.clients) <= 20 for node in registry.nodes.values())
        registry.sort()
        for heat in registry.heat.values():
            assert bool((heat.counts > 0).all())
            assert len(heat.ids) == 0 or int(heat.ids[-1]) < 30
    assert 0 < taken < count


def lively(loopback: Loopback, data: Any, config: Any, folder: Path) -> None:
    """Lets nodes live on from message to message, for speed; one that fails says something else."""
    for place, (name, shard) in enumerate(shards_of(data, 12).items(), start=1):
        own = make_contract(task_of(data), config)
        node = ClientNode(own, shard, NodeState(folder / name), name)

        def answer(message: bytes, node: ClientNode = node) -> bytes:
            try:
                return node.answer(message)
            except (FedrowsError, KeyError):  # it was registered with what it did not send
                return pack(Message("silent", {}, {}))

        loopback.here[place] = answer


@pytest.mark.parametrize("count", [10, pytest.param(600, marks=pytest.mark.slow)])
def test_fuzzed_answers_end_no_run_and_move_no_row_far(
    tmp_path: Path, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three nodes of twelve answer every message of every kind wrongly, enrolment included."""
    monkeypatch.setattr(enrolment, "SECONDS", 0.01)  # who is not let in is soon asked again
    monkeypatch.setattr(enrolment, "LONGEST", 0.02)
    data, draw = examples(), np.random.default_rng(3)
    config = CONFIG | {"rounds": count, "local-steps": 1, "clients-per-round": 8, "min-answers": 2}
    fleet, loopback = federation(task_of(data), config, shards_of(data, 12), tmp_path)
    lively(loopback, data, config, tmp_path)
    sent = 0

    def meddle(node: int, answer: bytes) -> bytes:
        nonlocal sent
        if node > 3:
            return answer
        sent += 1
        return mutated(answer, draw)

    loopback.meddle = meddle
    its = fleet.contract
    progress = begin(its.model(data), its.algorithm, its.plan)
    before = progress.whole().copy()
    moves = []
    for at in rounds(fleet, its.plan, progress):
        loopback.sent.clear()
        moves.append(difference(at.whole(), before))
        before = at.whole().copy()
    assert progress.round == count
    assert sent >= 2 * count
    assert max(moves) < 1.0  # an honest round moves a row by up to .3


@pytest.mark.parametrize("count", [2, pytest.param(40, marks=pytest.mark.slow)])
def test_fuzzed_sums_end_no_private_run(
    tmp_path: Path, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One node of five mutates each of its answers in heat, union and update sums."""
    monkeypatch.setattr(enrolment, "SECONDS", 0.01)
    monkeypatch.setattr(enrolment, "LONGEST", 0.02)
    monkeypatch.setattr(fleet_module, "POLL", 0.001)
    data, draw = examples(), np.random.default_rng(4)
    config = CONFIG | {"rounds": count, "local-steps": 1, "clients-per-round": 10, "timeout": 0.2}
    config |= {"privacy": "index", "index-epsilon": "", "index-epsilon-for-ever": ""}
    config |= {"min-answers": 2}
    fleet, loopback = federation(task_of(data), config, shards_of(data, 5), tmp_path)
    sent = Counter[str]()

    def meddle(node: int, answer: bytes) -> bytes:
        if node > 1 or (unpack(answer).kind == "enrolled" and not sent["enrolled"]):
            return answer
        sent[unpack(answer).kind] += 1
        return mutated(answer, draw)

    loopback.meddle = meddle
    progress = run(fleet, data)
    assert progress.round == count
    assert sent["sum"] >= 2
    largest = max(float(x.abs().max()) for x in progress.whole().tables.values())
    assert largest <= count * fleet.contract.privacy.update_range


PRIVATE = {"privacy": "index", "index-epsilon": "", "index-epsilon-for-ever": ""}


def test_a_private_run_waits_for_nodes_that_left_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two of four nodes leave; a secure sum that bears one colluding node needs three."""
    data, said = examples(), list[str]()
    config = CONFIG | PRIVATE | {"clients-per-round": 8, "rounds": 2, "local-steps": 1}
    fleet, loopback = federation(task_of(data), config, shards_of(data, 4), tmp_path)
    away: dict[int, Callable[[bytes], bytes]] = {}
    clock = iter(range(0, 10**6, 3))

    def say(text: str) -> None:
        said.append(text)
        if "Waiting" in text:
            loopback.here |= away

    monkeypatch.setattr(fleet, "_log", say)
    its = fleet.contract
    progress = begin(its.model(data), its.algorithm, its.plan)
    for at in rounds(fleet, its.plan, progress):
        if at.round == 1:
            away |= {place: loopback.here.pop(place) for place in (1, 2)}
            monkeypatch.setattr(fleet_module.time, "monotonic", lambda: float(next(clock)))
    assert progress.round == 2
    [line] = [text for text in said if "Waiting" in text]
    assert "2 are here and at least 3 are needed" in line


def test_a_node_whose_key_nobody_knows_is_not_let_in(tmp_path: Path) -> None:
    data = examples()
    config = CONFIG | PRIVATE | {"clients-per-round": 6, "rounds": 1, "local-steps": 1}
    fleet, loopback = federation(task_of(data), config, shards_of(data, 4), tmp_path)
    loopback.here[9] = lambda message: pack(
        Message(
            "enrolled", {"node": "stranger", "secret": "s", "clients": [1]}, {"examples": b"\7"}
        )
    )
    run(fleet, data)
    assert "stranger" not in fleet.registry.nodes
    assert fleet.rejected["registration"] == 1


def test_a_stranger_cannot_take_a_name_first_in_a_private_run(tmp_path: Path) -> None:
    data, said = examples(), list[str]()
    config = CONFIG | PRIVATE | {"rounds": 1}
    fleet, loopback = federation(task_of(data), config, shards_of(data, 4), tmp_path)
    fleet._log = said.append  # type: ignore[assignment]
    honest, heard = loopback.here.pop(1), list[bytes]()
    loopback.here[7] = lambda message: pack(  # it knows the name alone
        Message("enrolled", {"node": "n0", "secret": "s", "clients": [1]}, {"examples": b"\7"})
    )
    loopback.here[8] = lambda message: _changed(honest(message))  # it is between node and server
    loopback.here[9] = lambda message: heard[0]  # it repeats what the node said to another request
    heard.append(honest(pack(_request(fleet, 5))))
    fleet._enrolment.poll(fleet.run)
    assert sorted(fleet.registry.nodes) == ["n1", "n2", "n3"]
    assert sum("is not signed" in text for text in said) == fleet.rejected["registration"] == 3
    loopback.here[1] = honest
    fleet._enrolment.poll(fleet.run)
    assert fleet.registry.nodes["n0"].address == 1


def _request(fleet: FlowerFleet, version: int) -> Message:
    facts = {"contract": fleet._fingerprint, "run": fleet.run, "version": version}
    return Message("enrol", facts, {})


def _changed(enrolled: bytes) -> bytes:
    """A registration with a client's name changed."""
    message = unpack(enrolled)
    message.facts["clients"][0] = "somebody else"
    return pack(message)


def test_a_registration_is_weighed_before_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, said = examples(), list[str]()
    fleet, loopback = federation(task_of(data), CONFIG | {"rounds": 1}, shards_of(data), tmp_path)
    fleet._log = said.append  # type: ignore[assignment]
    most = fleet.registry.limits.bytes
    parsed: list[int] = []

    def read(answer: bytes, most: int = 2**30) -> Message:
        parsed.append(len(answer))
        return unpack(answer, most)

    monkeypatch.setattr(enrolment, "unpack", read)
    loopback.here[9] = lambda message: bytes(most + 1)
    run(fleet, data)
    assert max(parsed) <= most
    assert any("raise max-registration" in text for text in said)


def test_a_node_has_as_many_clients_as_it_may_have() -> None:
    """Neither at once nor by changes."""
    registry = Registry(Schema({"t": Table(9, 1)}, {}), "examples", EnrolmentLimits(3, 100))

    def clients(*names: int, prefix: str = "", **facts: Any) -> Message:
        counts = ids_to_bytes(torch.arange(1, len(names) + 1))
        parts = {f"{prefix}examples": counts, f"{prefix}index/t": b""}
        return Message("x", {"node": "n", "secret": "s", "clients": list(names), **facts}, parts)

    with pytest.raises(WireError, match="has 4 clients, but max-clients is 3"):
        registry.register(1, 1, clients(1, 2, 3, 4))
    registry.register(1, 1, clients(1, 2))
    registry.change("n", clients(3, prefix="changed/"))
    with pytest.raises(WireError, match="has 4 clients, but max-clients is 3"):
        registry.change("n", clients(4, prefix="changed/"))
    registry.change("n", clients(4, prefix="changed/", left=[0]))
    assert registry.nodes["n"].clients == [2, 3, 4]


SCRIPT = """
import resource, torch
from fedrows.flower.server.registry import EnrolmentLimits, Registry
from fedrows.flower.wire.codings import ids_to_bytes
from fedrows.flower.wire.message import Message
from fedrows.rows.schema import Schema, Table

clients, ids = 10_000, 8_000_000  # as many as 8 MiB can name
counts = ids_to_bytes(torch.arange(1, clients + 1))
facts = {"node": "n", "secret": "s", "clients": list(range(clients))}
message = Message("enrolled", facts, {"examples": counts, "index/t": bytes(ids)})
schema = Schema({"t": Table(ids // clients, 1)}, {})
registry = Registry(schema, "examples", EnrolmentLimits(clients, 9))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
registry.register(1, 1, message)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


@pytest.mark.slow
def test_the_largest_registration_takes_little_memory() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True
    )
    assert int(done.stdout) < 300 * 1024  # kB; it was 588 MB, and 1.3 GB at 17 MB
