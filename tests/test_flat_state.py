"""Folders of nodes and servers are no larger after a thousand rounds than after a few."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("cryptography")

from deployed import CONFIG, examples, shards_of, task_of
from loopback import Loopback, federation

from fedrows.flower.deployment import Deployment
from fedrows.flower.journal import ROUNDS, Journal, carry_out
from fedrows.flower.node.node import ClientNode
from fedrows.flower.node.state import NodeState
from fedrows.flower.wire.contract import make_contract
from fedrows.server import begin, rounds
from fedrows.watch import Observers

GROWS = {ROUNDS, "metrics.jsonl"}  # a line per round, or per evaluation
# Clients with a state, what rounding left, and rows that nodes keep: all that a clear node stores.
STATES: dict[str, Any] = CONFIG | {
    "algorithm": "scaffold", "coding": "int8", "row-cache": True, "rounds": 1_000,
    "local-steps": 1, "clients-per-round": 4, "evaluate-every": 500, "device": "cpu",
}  # fmt: skip


def sizes(folder: Path) -> dict[str, int]:
    """The files below a folder, with their sizes."""
    return {
        str(path.relative_to(folder)): path.stat().st_size
        for path in folder.rglob("*")
        if path.is_file()
    }


@pytest.mark.slow
def test_a_thousand_rounds_leave_the_folders_of_nodes_and_server_as_large(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.fsync", lambda handle: None)  # it is the files that count
    data, loopback, task = examples(clients=6), Loopback(), task_of(examples(clients=6))
    for place, (name, shard) in enumerate(shards_of(data, 2).items(), start=1):
        state = NodeState(tmp_path / "nodes" / name)
        loopback.here[place] = ClientNode(make_contract(task, STATES), shard, state, name).answer
    deployment = Deployment(make_contract(task, STATES), loopback, STATES, lambda _: None)
    seen: dict[int, tuple[dict[str, int], dict[str, int]]] = {}
    with Journal.opened(tmp_path / "run", deployment) as journal:
        note = journal.note

        def noted(report: Any) -> None:
            note(report)
            loopback.sent.clear()
            if report.round in (50, 999):
                seen[report.round] = sizes(tmp_path / "nodes"), sizes(tmp_path / "run")

        journal.note = noted  # type: ignore[method-assign]
        carry_out(deployment, journal, Observers())
    (nodes, run), (later_nodes, later_run) = seen[50], seen[999]
    assert len(later_nodes) <= len(nodes) + 6  # a version of what a client keeps, beside another
    assert sum(later_nodes.values()) <= 1.25 * sum(nodes.values())
    assert later_run.keys() == run.keys()
    for name in run.keys() - GROWS:
        assert later_run[name] <= run[name] + 64, name
    lines = (tmp_path / "run" / ROUNDS).read_text().splitlines()
    assert [json.loads(line)["round"] for line in lines] == list(range(1, 1_001))
    assert len(lines[-1]) < 1.2 * len(lines[20])


@pytest.mark.slow
def test_a_private_node_keeps_no_more_after_forty_rounds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whole state folders: answers, rows held back, sums, and what is used of the policy."""
    monkeypatch.setattr("os.fsync", lambda handle: None)
    data = examples(clients=3)
    config = CONFIG | {
        "privacy": "index", "index-epsilon": 2.0, "index-epsilon-for-ever": 6.0, "rounds": 40,
        "min-contributors": 2, "timeout": 60.0, "clients-per-round": 3, "local-steps": 1,
    }  # fmt: skip
    fleet, loopback = federation(task_of(data), config, shards_of(data, 3), tmp_path)
    agreed, files, totals = fleet.contract, list[int](), list[int]()
    for _ in rounds(fleet, agreed.plan, begin(agreed.model(data), agreed.algorithm, agreed.plan)):
        loopback.sent.clear()
        found = sizes(tmp_path)
        files.append(len(found))
        totals.append(sum(found.values()))
    assert max(files[20:37]) <= max(files[3:20])
    assert max(totals[20:37]) <= 1.1 * max(totals[3:20])
    assert files[-1] < min(files[3:37])  # and nothing of the sums stays
