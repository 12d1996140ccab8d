"""A node's policy while a run goes on: bad ones end nothing, and every message is held to it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("cryptography")

from deployed import CONFIG, examples, run, shards_of, task_of
from loopback import federation, with_policy

from fedrows.flower.node.policy import NodePolicy
from fedrows.flower.node.state import DECLINED
from fedrows.flower.wire.message import Message, pack, unpack

INDEX: dict[str, Any] = {"privacy": "index", "timeout": 5.0, "threshold": 0.7}
BAD: dict[str, Any] = {
    "missing": None,
    "malformed": "privacy = index",
    "stricter than the run": NodePolicy(privacy="full"),
    "of another task": replace(NodePolicy.open(), task="another"),
    "of another federation": replace(NodePolicy.open(), peers="0" * 64),
}
SLOW = ("missing", "of another task", "of another federation")
CASES = [
    *(("clear", case) for case in BAD),
    *(pytest.param("index", case, marks=pytest.mark.slow if case in SLOW else ()) for case in BAD),
]


@pytest.mark.parametrize(("privacy", "case"), CASES)
def test_a_run_goes_on_without_a_node_whose_policy_forbids_it(
    tmp_path: Path, privacy: str, case: str
) -> None:
    """One sentence on the node, one on the server, which learns nothing else and asks once."""
    data = examples()
    shards = shards_of(data, 4)
    config = CONFIG | {"rounds": 2, "clients-per-round": 4}
    if privacy == "index":
        config |= INDEX
    fleet, loopback = federation(task_of(data), config, shards, tmp_path)
    policy = tmp_path / "own.toml"
    if BAD[case] is not None:
        policy.write_text(BAD[case] if isinstance(BAD[case], str) else BAD[case].text())
    loopback.here[4] = with_policy(
        task_of(data), config, shards["n3"], tmp_path / "n3", "n3", policy
    )
    answers, said, noticed = list[bytes](), list[str](), list[str]()
    fleet._log, fleet.notice = said.append, noticed.append

    def listen(node: int, answer: bytes) -> bytes:
        answers.extend([answer] if node == 4 else [])
        return answer

    loopback.meddle = listen
    assert run(fleet, data).round == 2
    assert sorted(fleet.registry.nodes) == ["n0", "n1", "n2"]
    assert [unpack(answer) for answer in answers] == [Message("declined", {}, {})]
    declined = [text for text in said if "declines" in text]
    assert declined == ["Node 4 declines to take part: its own log says why."]
    assert noticed == ["The run goes on without node 4: the node's own log says why."]
    why = (tmp_path / "n3" / DECLINED).read_text().rstrip("\n")
    assert "\n" not in why
    assert why.endswith(".")


def test_every_message_of_a_run_is_held_to_the_policy(tmp_path: Path) -> None:
    """A policy that is made stricter while a run goes on holds from the next message on."""
    data = examples()
    shards = shards_of(data, 4)
    config = CONFIG | INDEX | {"rounds": 1, "clients-per-round": 4}
    fleet, loopback = federation(task_of(data), config, shards, tmp_path)
    run(fleet, data)
    sent = [message for node, message in loopback.sent if node == 4]
    assert {unpack(message).kind for message in sent} >= {"enrol", "sum", "sums"}
    policy = tmp_path / "own.toml"
    policy.write_text(NodePolicy(privacy="full").text())
    node = with_policy(task_of(data), config, shards["n3"], tmp_path / "n3", "n3", policy)
    before = sorted(tmp_path.glob("n3/**/*"))
    assert {node(message) for message in sent} == {pack(Message("declined", {}, {}))}
    assert sorted(set(tmp_path.glob("n3/**/*")) - set(before)) == [tmp_path / "n3" / DECLINED]
