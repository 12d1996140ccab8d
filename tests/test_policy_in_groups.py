"""What bounds a private asynchronous run: nodes' policies, the ledger, and who is in a group."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("cryptography")

from asynchronous import ASYNC, deployment
from deployed import examples, shards_of, task_of
from loopback import phases_in, with_policy
from test_async_groups import PRIVATE, at_random

from fedrows.flower.node.policy import NodePolicy
from fedrows.flower.server.group_fleet import GroupFleet
from fedrows.flower.wire.message import Message, unpack

DATA = examples()
TERMS: dict[str, Any] = {**PRIVATE, "buffer": 3, "concurrency": 9, "rounds": 40}


def asked_in_unions(sent: list[tuple[int, bytes]]) -> list[tuple[int, str]]:
    """Which node was asked in which union, once each; every node has one client here."""
    uses, found = dict[str, str](), list[tuple[int, str]]()
    for node, message in sent:
        for one in phases_in(message):
            uses.setdefault(one.facts["sum"], str(one.facts.get("use")))
            if uses[one.facts["sum"]] == "union" and "places" in one.facts:
                found.append((node, one.facts["sum"]))
    assert len(set(found)) == len(found)
    return found


def test_a_ledger_counts_every_group(tmp_path: Path) -> None:
    """Several groups have paid before the first has ended; no client answers beyond the limit."""
    transport = at_random(4)
    noise = {"index-epsilon": 1.0, "index-epsilon-for-ever": 4.0, "max-epsilon": 2.5}
    run = deployment(DATA, tmp_path / "nodes", transport, **{**TERMS, **noise})
    for _ in run:  # which ends in order although its last group comes to nothing
        pass
    assert "max-epsilon of server/value is 2.5" in run.stopped
    assert 0 < run.progress.round < 40
    times = Counter(node for node, _ in asked_in_unions(transport.sent))
    stages, accounts = run.contract.privacy.stages, run.fleet.accounts
    assert stages is not None
    spent = accounts.ledger.spent("server/value")
    assert stages.epsilon_after(max(times.values())) <= spent + 1e-9 <= 2.5
    assert stages.epsilon_after(max(times.values()) + 1) > 2.5  # it went as far as it could


@pytest.mark.slow
def test_a_node_counts_groups_as_rounds_of_its_day(tmp_path: Path) -> None:
    transport = at_random(5)
    run = deployment(DATA, tmp_path / "nodes", transport, **{**TERMS, "rounds": 12})
    policy = tmp_path / "own.toml"
    policy.write_text(replace(NodePolicy.open(), rounds_per_day=2).text(), "utf-8")
    config = {**ASYNC, **{name.replace("_", "-"): x for name, x in TERMS.items()}}
    config |= {"rounds": 12, "peers": str(tmp_path / "nodes" / "peers.json")}
    del config["shards"], config["min-nodes"]
    node, shard = tmp_path / "nodes" / "n0", shards_of(DATA, 12)["n0"]
    real = with_policy(task_of(DATA), config, shard, node, "n0", policy)
    answers: list[Message] = []

    def counted(message: bytes) -> bytes:
        answer = real(message)
        if any("places" in one.facts for one in phases_in(message)):
            outer = unpack(answer)
            answers.extend(map(unpack, outer.parts.values()) if outer.kind == "sums" else [outer])
        return answer

    transport.here[1] = counted
    lines = list(run)
    assert run.progress.round == 12
    joined = {x.facts["sum"] for x in answers if x.kind == "sum"}
    asked = {name for node, name in asked_in_unions(transport.sent) if node == 1}
    assert len(asked & joined) == 2  # the third one is declined, and it leaves the run
    assert any(answer.kind == "declined" for answer in answers)
    assert sum(name == 0 for x in lines for who in x.dropped.values() for name in who) <= 1


@pytest.mark.slow
@pytest.mark.parametrize("seed", [6, 7])
def test_groups_under_way_share_no_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """The sums of two groups with a node in both, which end together, would tell of the others."""
    true, several = GroupFleet.form, 0

    def form(fleet: GroupFleet, number: int, cohort: Any) -> None:
        nonlocal several
        busy = {name for group in fleet.groups for name in group.nodes}
        own = set(fleet._hosts(cohort))
        assert not own & busy
        assert len(own) >= fleet.fewest_nodes
        several += bool(busy)
        true(fleet, number, cohort)

    monkeypatch.setattr(GroupFleet, "form", form)
    run = deployment(DATA, tmp_path / "nodes", at_random(seed), **{**TERMS, "rounds": 12})
    for _ in run:
        pass
    assert several > 5
