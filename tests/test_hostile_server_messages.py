"""A server that sends a private node other messages than it may, or sums that are none."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("cryptography")

from deployed import CONFIG, examples, task_of
from loopback import fresh

from fedrows.data.federation import FederatedData
from fedrows.flower.node import joining
from fedrows.flower.node.state import NodeState
from fedrows.flower.wire.codings import ids_to_bytes
from fedrows.flower.wire.contract import digest, make_contract
from fedrows.flower.wire.message import Message, pack, unpack
from fedrows.flower.wire.names import SumNames
from fedrows.flower.wire.signing import own_key, write_peers

INDEX: dict[str, Any] = CONFIG | {"privacy": "index", "timeout": 5.0}
NAMES = ("n0", "n1", "n2", "n3")


def with_peers(folder: Path, *names: str) -> None:
    write_peers(folder / "peers.json", {name: own_key(folder / name).public for name in names})


def enrolment(config: dict[str, Any], data: FederatedData) -> bytes:
    """A server's request to enrol in a run."""
    contract = make_contract(task_of(data), config)
    fingerprint = contract.fingerprint(contract.model(data), data)
    return pack(Message("enrol", {"contract": fingerprint, "run": "0" * 16, "version": 1}, {}))


KINDS = (
    "count-labels", "declined", "enrol", "enrolled", "labels", "refused", "silent", "state-lost",
    "sum", "sums", "terms", "train", "trained", "waiting", "work",
)  # fmt: skip


def test_these_are_all_kinds_of_messages_that_there_are() -> None:
    source = Path(joining.__file__).parents[1]
    used = set()
    for path in source.rglob("*.py"):
        used |= set(re.findall(r"\bMessage\(\s*\"([\w-]*)\"", path.read_text("utf-8")))
    assert used == set(KINDS)


@pytest.mark.parametrize("kind", [*KINDS, "evaluate", "query", "get_parameters", "", "SUM"])
def test_a_private_node_answers_requests_to_enrol_and_sums_alone(tmp_path: Path, kind: str) -> None:
    """Whatever else is asked gets no part of an answer: no update, no row, no size."""
    data = examples(clients=3)
    with_peers(tmp_path, *NAMES)
    node = fresh(task_of(data), INDEX, data, tmp_path / "n0", "n0")
    request = enrolment(INDEX, data)
    assert unpack(node(request)).kind == "enrolled"
    facts: dict[str, Any] = unpack(request).facts
    if kind != "enrol":
        facts |= {"contract": digest(facts["contract"]), "tag": (1 << 31) + 5, "phase": 0}
        facts |= {"parties": {str(i): name for i, name in enumerate(NAMES, start=1)}, "party": 1}
        facts |= {"sum": SumNames().make(), "use": "heat"}
    number = (0).to_bytes(8, "little")
    parts = {
        "positions": ids_to_bytes(torch.zeros(1, dtype=torch.int64)),
        "numbers": number,
        "accepted": number,
    }
    parts |= {"model/item": b"", "model/item/at": b"", "request": b""}
    answer = unpack(node(pack(Message(kind, facts, parts))))
    expected = {"enrol": ("enrolled", {"examples", "signature"}), "sum": ("sum", {"reply"})}
    assert (answer.kind, set(answer.parts)) == expected.get(kind, ("silent", set()))


@pytest.mark.parametrize(
    "change",
    [
        {"use": "index"}, {"use": None}, {"sum": "short"}, {"sum": None}, {"parties": {}},
        {"use": "union"}, {"use": "update"}, {"phase": 7}, {"phase": "0"}, {"run": "../../up"},
        {"run": "f" * 16},
        {"use": "union", "version": 9, "places": [0], "round": 1},
        {"use": "union", "version": 1, "places": [99], "round": 1},
        {"use": "update", "version": 1, "places": [0], "union": "0" * 32, "tag": 5, "held": 0},
    ],
)  # fmt: skip
def test_a_sum_that_is_not_one_gets_nothing(tmp_path: Path, change: dict[str, Any]) -> None:
    data = examples(clients=3)
    with_peers(tmp_path, *NAMES)
    node = fresh(task_of(data), INDEX, data, tmp_path / "n0", "n0")
    request = enrolment(INDEX, data)
    node(request)
    facts: dict[str, Any] = {**unpack(request).facts, "party": 1, "phase": 0, "use": "heat"}
    facts |= {"contract": digest(facts["contract"]), "sum": SumNames().make()}
    facts |= {"parties": {str(i): name for i, name in enumerate(NAMES, start=1)}}
    answer = unpack(node(pack(Message("sum", facts | change, {"request": b""}))))
    assert answer.kind in ("silent", "state-lost")
    assert not answer.parts


@pytest.mark.parametrize("kind", ["enrol", "train", "trained", "sums", "query"])
def test_what_comes_inside_a_message_of_sums_is_a_sum_or_gets_nothing(
    tmp_path: Path, kind: str
) -> None:
    data = examples(clients=3)
    with_peers(tmp_path, *NAMES)
    node = fresh(task_of(data), INDEX, data, tmp_path / "n0", "n0")
    request = unpack(enrolment(INDEX, data))
    node(pack(request))
    facts = {"run": request.facts["run"], "contract": digest(request.facts["contract"])}
    inner = pack(Message(kind, {**facts, "version": 1, "tag": 5, "phase": 0}, {"positions": b""}))
    answer = unpack(node(pack(Message("sums", facts, {"a": inner, "b": inner}))))
    inside = [unpack(part) for part in answer.parts.values()]
    assert len(inside) == 2
    assert all(one.kind == "silent" and not one.parts for one in inside)


def test_the_text_of_an_error_does_not_leave_a_node(tmp_path: Path) -> None:
    """Flower sends an error's text to the server, and it may speak of the node's data."""
    data = examples(clients=3)
    with_peers(tmp_path, *NAMES)

    def broken(_: Any) -> FederatedData:
        raise ValueError("client Ada Lovelace has no examples")

    own = {"name": "n0", "peers": str(tmp_path / "peers.json")}
    task, state = replace(task_of(data), shard=broken), NodeState(tmp_path / "n0")
    answer = unpack(joining.answer(task, INDEX, own, state, enrolment(INDEX, data)))
    assert answer == Message("silent", {"why": "the node could not answer"}, {})
    with pytest.raises(ValueError, match="Ada"):  # a node that takes part in the clear
        joining.answer(task, CONFIG, {"name": "n0"}, state, enrolment(CONFIG, data))


def hostile(draw: np.random.Generator, facts: dict[str, Any]) -> bytes:
    """A message that no honest server sends: at least one fact that matters is another."""
    junk: list[Any] = [
        None,
        -1,
        0,
        7,
        2**63,
        1.5,
        "",
        "0",
        "x" * 40,
        [],
        [1],
        {},
        {"1": "n0"},
        True,
    ]
    changed = dict(facts)
    for name in draw.choice(["sum", "parties", "party", "use", "run"], draw.integers(1, 4)):
        changed[name] = junk[draw.integers(len(junk))]
    for name in draw.choice(["version", "places", "round", "tag", "phase"], 2):
        changed[str(name)] = junk[draw.integers(len(junk))]
    if all(changed.get(name) == facts[name] for name in ("sum", "parties", "party", "use", "run")):
        changed["parties"] = {}
    parts = {name: draw.bytes(draw.integers(40)) for name in ("request", "model/item", "positions")}
    kind = str(draw.choice(["sum", "sum", "sum", "train", "update", "state-lost"]))
    return pack(Message(kind, {str(name): value for name, value in changed.items()}, parts))


@pytest.mark.parametrize("count", [100, pytest.param(1_000, marks=pytest.mark.slow)])
def test_hostile_messages_get_nothing_and_leave_nothing(tmp_path: Path, count: int) -> None:
    data, draw = examples(clients=3), np.random.default_rng(count)
    with_peers(tmp_path, *NAMES)
    node = fresh(task_of(data), INDEX, data, tmp_path / "n0", "n0")
    request = enrolment(INDEX, data)
    node(request)
    before = {path for path in (tmp_path / "n0").rglob("*") if path.is_dir()}
    facts: dict[str, Any] = {"run": "0" * 16, "contract": digest(unpack(request).facts["contract"])}
    facts |= {"parties": {str(i): name for i, name in enumerate(NAMES, start=1)}, "party": 1}
    kinds: Counter[str] = Counter()
    for _ in range(count):
        about = facts | {"sum": SumNames().make(), "use": "heat", "phase": 0}
        answer = unpack(node(hostile(draw, about)))
        assert not answer.parts
        kinds[answer.kind] += 1
    assert kinds.total() == count
    assert kinds.keys() <= {"silent", "state-lost", "declined"}
    after = {path for path in (tmp_path / "n0").rglob("*") if path.is_dir()}
    assert after - before <= {tmp_path / "n0" / ("0" * 16) / "sums"}
    assert unpack(node(request)).kind == "enrolled"  # and the node is as well as before
