"""A server that sends a node two messages at once, to get two answers from one state of a sum."""

from __future__ import annotations

import fcntl
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("cryptography")

from deployed import CONFIG, examples, shards_of, task_of
from loopback import with_policy

from fedrows.flower.node.state import DECLINED
from fedrows.flower.wire.contract import digest, make_contract
from fedrows.flower.wire.message import Message, pack, unpack
from fedrows.flower.wire.names import SumNames
from fedrows.flower.wire.signing import own_key, write_peers
from fedrows.flower.wire.sums import row_space, union_terms
from fedrows.privacy import union
from fedrows.privacy.messages import pack as pack_parts
from fedrows.privacy.messages import pack_ids, unpack_ids
from fedrows.privacy.messages import unpack as unpack_parts
from fedrows.privacy.replay import SavedHalf

INDEX: dict[str, Any] = CONFIG | {"privacy": "index", "timeout": 5.0}
MASKED, AGREE = 2, 3  # phases of a union; in the second, a list of survivors or signatures come
SECOND = b"fedrows another list of survivors "  # before a list of survivors that is not that of all


class Union:
    """A union of four nodes, as far as a phase; the nodes have the default policy."""

    def __init__(self, folder: Path) -> None:
        data = examples(clients=12)
        task, contract = task_of(data), make_contract(task_of(data), INDEX)
        model, shards = contract.model(data), shards_of(data, 4)
        peers = {name: own_key(folder / name).public for name in shards}
        write_peers(folder / "peers.json", peers)
        self.nodes = {
            i: with_policy(task, INDEX, shard, folder / name, name, None)
            for i, (name, shard) in enumerate(shards.items(), start=1)
        }
        facts = {"run": "0" * 16, "contract": contract.fingerprint(model, data), "version": 1}
        self.kinds = {
            unpack(node(pack(Message("enrol", facts, {})))).kind for node in self.nodes.values()
        }
        parties = dict(enumerate(shards, start=1))
        self.facts = facts | {
            "contract": digest(facts["contract"]), "sum": SumNames().make(), "use": "union",
            "round": 1, "parties": {str(i): name for i, name in parties.items()},
        }  # fmt: skip
        plan, terms = union_terms(contract, self.facts, row_space(model.schema, ("item",)))
        self.server = union.server(terms, plan, {i: peers[name] for i, name in parties.items()})

    def ask(self, node: int, phase: int, request: bytes) -> Message:
        facts = {**self.facts, "phase": phase, "party": node, "places": [0]}
        return unpack(self.nodes[node](pack(Message("sum", facts, {"request": request}))))

    def until(self, last: int) -> dict[int, bytes]:
        """The requests of a phase, after all phases before it."""
        requests: Any = next(self.server)
        for phase in range(last):
            answers = {i: self.ask(i, phase, request) for i, request in requests.items()}
            requests = self.server.send({i: a.parts["reply"] for i, a in answers.items()})
        return dict(requests)


def two_requests(phase: int, request: bytes) -> tuple[bytes, bytes]:
    """The request of a phase, and another that a node would answer as well."""
    if phase == AGREE:
        return SECOND + pack_ids([1, 2, 3]), request  # which shows signatures under the list of all
    first, *boxes = unpack_parts(request)
    ids = unpack_ids(first)
    return request, pack_parts(pack_ids(ids[:-1]), *boxes[:-1])  # without the last one's mask


@pytest.mark.parametrize("phase", [MASKED, AGREE])
def test_two_messages_at_once_get_one_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, phase: int
) -> None:
    """The difference of two masked vectors is a mask; two lists of survivors open both shares."""
    sums = Union(tmp_path)
    both = two_requests(phase, sums.until(phase)[1])
    write = SavedHalf._write

    def slowly(half: SavedHalf, parts: list[bytes]) -> None:
        time.sleep(0.3)  # the other message comes between the reading of the state and its writing
        write(half, parts)

    monkeypatch.setattr(SavedHalf, "_write", slowly)
    with ThreadPoolExecutor(2) as pool:
        answers = list(pool.map(lambda request: sums.ask(1, phase, request), both))
    assert [len(answer.parts) for answer in sorted(answers, key=lambda a: a.kind)] == [0, 1]


@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.parametrize("phase", [MASKED, AGREE])
def test_each_of_the_two_would_get_an_answer(tmp_path: Path, phase: int, which: int) -> None:
    sums = Union(tmp_path)
    request = two_requests(phase, sums.until(phase)[1])[which]
    assert set(sums.ask(1, phase, request).parts) == {"reply"}


def test_without_locks_a_node_declines_private_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_locks(handle: int, operation: int) -> None:
        raise OSError("no locks available")

    monkeypatch.setattr(fcntl, "flock", no_locks)
    assert Union(tmp_path).kinds == {"declined"}
    assert "cannot be locked" in (tmp_path / "n0" / DECLINED).read_text("utf-8")
