"""A deployed fleet whose nodes do not fit, lie or send what nobody asked for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("safetensors")

from deployed import CONFIG, difference, examples, run, shards_of, task_of
from loopback import federation, fresh

from fedrows.flower.node.node import ClientNode
from fedrows.flower.node.state import NodeState
from fedrows.flower.wire.codings import ids_to_bytes
from fedrows.flower.wire.contract import make_contract
from fedrows.flower.wire.message import Message, pack, unpack
from fedrows.rows.params import Params
from fedrows.server import begin, rounds


def test_a_node_that_does_not_fit_is_told_why(tmp_path: Path) -> None:
    data, smaller = examples(), examples(rows=20)
    said: list[str] = []
    fleet, loopback = federation(task_of(data), CONFIG, shards_of(data), tmp_path)
    fleet._log = said.append  # type: ignore[assignment]
    loopback.here[9] = fresh(task_of(smaller), CONFIG, smaller, tmp_path / "odd", "odd")
    run(fleet, data)
    assert "odd" not in fleet.registry.nodes
    [line] = [line for line in said if "not let in" in line]
    assert "tables" in line
    assert "tables" in (tmp_path / "odd" / "refused.txt").read_text()


def test_nobody_speaks_for_anothers_clients(tmp_path: Path) -> None:
    """A name belongs to its node: who takes another's names has clients of its own, no more."""
    data = examples()
    fleet, loopback = federation(task_of(data), CONFIG, shards_of(data), tmp_path)
    loopback.here[8] = fresh(task_of(data), CONFIG, data.select([0, 3]), tmp_path / "x", "thief")
    loopback.here[9] = fresh(task_of(data), CONFIG, data.select([0, 3]), tmp_path / "y", "n0")
    run(fleet, data)
    assert set(fleet.registry.nodes) == {"n0", "n1", "n2", "thief"}
    assert fleet.rejected["registration"] == 1  # the second n0 has another secret
    taken = [(one.node, one.name) for one in fleet.registry.clients if one.name in (0, 3)]
    assert sorted(taken) == [("n0", 0), ("n0", 3), ("thief", 0), ("thief", 3)]


def test_a_name_that_moves_a_terminal_is_refused(tmp_path: Path) -> None:
    data = examples()
    fleet, loopback = federation(task_of(data), CONFIG, shards_of(data), tmp_path)
    loopback.here[8] = fresh(task_of(data), CONFIG, data, tmp_path / "x", "n9\x1b[2J")
    run(fleet, data)
    assert set(fleet.registry.nodes) == {"n0", "n1", "n2"}
    assert fleet.rejected["registration"] == 1


def test_names_that_are_taken_first_lock_nobody_out(tmp_path: Path) -> None:
    """A hostile node registers the names of all honest clients before they come."""
    data = examples()
    fleet, loopback = federation(task_of(data), CONFIG, shards_of(data), tmp_path)
    honest = dict(loopback.here)
    loopback.here.clear()
    loopback.here[7] = fresh(task_of(data), CONFIG, data, tmp_path / "first", "first")
    fleet.gather()
    loopback.here |= honest
    run(fleet, data)
    assert set(fleet.registry.nodes) == {"first", "n0", "n1", "n2"}
    assert not fleet.rejected


def hostile(message: Message, kind: str, draw: np.random.Generator) -> bytes:
    """An honest answer made into one that must be refused."""
    facts, parts = dict(message.facts), dict(message.parts)
    name = "update/item"
    count = len(parts[name]) // 8
    if kind == "tag":
        facts["tag"] = int(draw.integers(1, 2**40))
    elif kind == "nan":
        values = np.frombuffer(parts[name], dtype="<f8").copy()
        values[draw.integers(count)] = draw.choice([np.nan, np.inf, -np.inf])
        parts[name] = values.tobytes()
    elif kind == "huge":
        parts[name] = (np.frombuffer(parts[name], dtype="<f8") * 1e12 + 1e9).tobytes()
    elif kind == "shape":
        parts[name] = parts[name][:-8] if draw.random() < 0.5 else parts[name] + bytes(8)
    elif kind == "ids":
        parts[f"{name}/at"] = ids_to_bytes(torch.arange(10**6, 10**6 + count))
    elif kind == "missing":
        del parts[name]
    elif kind == "strange":
        parts["model/item"] = bytes(8)
    elif kind == "kind":
        return pack(Message("enrolled", facts, parts))
    elif kind == "losses":
        parts["losses"] = b"abc"  # no whole number of floats
    elif kind == "steps":
        parts["steps"] = ids_to_bytes(torch.tensor([10**6]))
    whole = bytearray(pack(Message(message.kind, facts, parts)))
    if kind == "truncated":
        return bytes(whole[: draw.integers(0, len(whole))])
    if kind == "version":
        whole[4] ^= int(draw.integers(1, 255))
    elif kind == "noise":
        return draw.bytes(int(draw.integers(0, 2_000)))
    elif kind == "large":
        return bytes(whole) + bytes(4_000_000)
    return bytes(whole)


KINDS = ["tag", "nan", "huge", "shape", "ids", "missing", "strange", "kind", "steps", "losses",
         "truncated", "version", "noise", "large", "replay"]  # fmt: skip


@pytest.mark.parametrize("count", [8, pytest.param(130, marks=pytest.mark.slow)])
def test_a_thousand_hostile_uploads_change_nothing(tmp_path: Path, count: int) -> None:
    """Eight nodes of twelve are hostile; the model is that of a run in which they are silent."""
    data, draw = examples(), np.random.default_rng(5)
    config = CONFIG | {"rounds": count, "min-answers": 1, "local-steps": 1, "clients-per-round": 12}
    results, old = [], list[bytes]()
    for evil in (True, False):
        shards = shards_of(data, 12)
        fleet, loopback = federation(task_of(data), config, shards, tmp_path / str(evil))
        for place, (name, shard) in enumerate(shards.items(), start=1):
            # Nodes live on in this test, for speed; Flower starts a process for each message.
            folder = NodeState(tmp_path / str(evil) / name)
            node = ClientNode(make_contract(task_of(data), config), shard, folder, name)
            loopback.here[place] = node.answer

        def meddle(node: int, answer: bytes, evil: bool = evil) -> bytes | str:
            message = unpack(answer)
            if node > 8 or message.kind != "trained":
                return answer
            if not evil:
                return "it did not answer in time"
            old.append(answer)
            kind = KINDS[len(old) % len(KINDS)]
            if kind == "replay" and len(old) > 20:
                return old[int(draw.integers(len(old) - 12))]
            return hostile(message, "tag" if kind == "replay" else kind, draw)

        loopback.meddle = meddle
        its = fleet.contract
        progress = begin(its.model(data), its.algorithm, its.plan)
        memory = {}
        for at in rounds(fleet, its.plan, progress):
            memory[at.round] = _resident()
            loopback.sent.clear()
            assert fleet.last is not None
            assert fleet.last.answered == 4
        results.append(progress.whole())
        if evil:
            assert sum(fleet.rejected.values()) == len(old) == 8 * count
            assert len(fleet.rejected) >= 5
            assert memory[count] < memory[count // 2] + 16 * 2**20
    assert difference(*results) == 0


def _resident() -> int:
    """Bytes of memory that this process really has."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


UNBOUNDED = {"row-clip": "", "weight-quantile": ""}


@pytest.mark.parametrize(
    "rule",
    [
        {"row-clip": 0.9},
        {"robust": "clip", "clip-norm": 0.3},
        {"robust": "trim", "trim-share": 0.3},
    ],
)
def test_robust_rules_bound_what_a_liar_does(tmp_path: Path, rule: dict[str, Any]) -> None:
    """A lie that is small enough to pass the checks moves the model less with a rule."""
    data = examples(rows=6)
    plain = CONFIG | UNBOUNDED | {"algorithm": "fedavg", "clients-per-round": 12, "rounds": 2}

    def moved(name: str, config: dict[str, Any], lies: bool) -> Params:
        fleet, loopback = federation(task_of(data), config, shards_of(data, 12), tmp_path / name)

        def meddle(node: int, answer: bytes) -> bytes:
            message = unpack(answer)
            if node != 3 or message.kind != "trained" or not lies:
                return answer
            values = np.frombuffer(message.parts["update/item"], dtype="<f8") * -40
            return pack(
                Message(
                    "trained", message.facts, {**message.parts, "update/item": values.tobytes()}
                )
            )

        loopback.meddle = meddle
        found = run(fleet, data).whole()
        assert not fleet.rejected
        return found

    honest, lied = moved("a", plain, False), moved("b", plain, True)
    bounded = difference(moved("c", plain | rule, False), moved("d", plain | rule, True))
    assert bounded < 0.5 * difference(honest, lied)


def test_a_node_leaves_no_clients_behind_by_taking_other_names(tmp_path: Path) -> None:
    """Clients that never answer would else be most of every cohort, and no round would be done."""
    data, config, turn = examples(), CONFIG | {"rounds": 8}, 0
    shards = shards_of(data, 3)
    fleet, loopback = federation(task_of(data), config, shards, tmp_path)

    def renaming(message: bytes) -> bytes:
        nonlocal turn
        if unpack(message).kind == "train":
            turn += 1
            return pack(Message("state-lost", {}, {}))
        name = f"n2-{turn}"
        return fresh(task_of(data), config, shards["n2"], tmp_path / name, name)(message)

    loopback.here[3] = renaming
    assert run(fleet, data).round == 8
    assert turn > 3
    assert len(fleet.registry.nodes) == 3
    assert len(fleet.registry.clients) == data.clients
