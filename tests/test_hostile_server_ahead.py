"""A server that has keys exchanged ahead, and then says nothing, or two things, to add up."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("cryptography")

from deployed import CONFIG, examples, shards_of, task_of
from loopback import federation

from fedrows.flower.server.private_fleet import PrivateFlowerFleet
from fedrows.flower.wire.message import Message, pack, unpack
from fedrows.flower.wire.names import tag_of
from fedrows.flower.wire.sums import VECTORS
from fedrows.server import begin, rounds

PRIVATE: dict[str, Any] = CONFIG | {
    "privacy": "index", "index-epsilon": "", "index-epsilon-for-ever": "", "min-contributors": 1,
    "timeout": 5.0, "clients-per-round": 12, "rounds": 2, "min-answers": 1,
}  # fmt: skip
VICTIM = 2


def nothing_to_add_up(message: Message) -> None:
    for fact in ("union", "tag", "coding", "model", "places"):
        del message.facts[fact]


def another_phase(message: Message) -> None:
    """The vector is asked for, but the message is not the one that says what is added up."""
    message.facts["phase"] = VECTORS + 1


def another_round(message: Message) -> None:
    message.facts["tag"] = tag_of(7)


def no_client(message: Message) -> None:
    message.facts["places"] = []


class Ahead:
    """A run of two rounds, in whose second one node's message that asks for a vector is altered."""

    def __init__(self, folder: Path, alter: Callable[[Message], None], again: bool = False) -> None:
        data = examples()
        fleet, self.post = federation(task_of(data), PRIVATE, shards_of(data, 4), folder)
        assert isinstance(fleet, PrivateFlowerFleet)
        self.fleet, self.data, self.alter, self.again = fleet, data, alter, again
        self.answers: list[Message] = []
        self._answer, self.post.here[VICTIM] = self.post.here[VICTIM], self._altered

    def _altered(self, request: bytes) -> bytes:
        outer = unpack(request)
        parts = {n: unpack(part) for n, part in outer.parts.items()} if outer.kind == "sums" else {}
        parts = parts or {"": outer}
        work = [n for n, one in parts.items() if "coding" in one.facts and one.facts["phase"]]
        if not work:
            return self._answer(request)
        (name,) = work
        first = self._answer(request) if self.again else b""
        self.alter(parts[name])
        packed = {n: pack(one) for n, one in parts.items()}
        sent = pack(Message("sums", outer.facts, packed)) if name else packed[""]
        answer = unpack(self._answer(sent))
        self.answers.append(unpack(answer.parts[name]) if name else answer)
        return first or pack(answer)

    def run(self) -> list[int]:
        """How many clients are in the sum of each round."""
        its, answered = self.fleet.contract, []
        progress = begin(its.model(self.data), its.algorithm, its.plan)
        for _ in rounds(self.fleet, its.plan, progress):
            assert self.fleet.last is not None
            answered.append(self.fleet.last.answered)
        return answered


@pytest.mark.parametrize("alter", [nothing_to_add_up, another_phase, another_round, no_client])
@pytest.mark.slow
def test_without_something_to_add_up_there_is_no_vector(
    tmp_path: Path, alter: Callable[[Message], None]
) -> None:
    server = Ahead(tmp_path, alter)
    assert server.run() == [12, 9]
    assert [(one.kind, dict(one.parts)) for one in server.answers] == [("silent", {})]
    assert not list((tmp_path / "n2").glob("*/sums/*/inputs.npz"))


def test_a_node_answers_for_one_thing_to_add_up(tmp_path: Path) -> None:
    """It has sent its vector; the difference of two under the same masks would show it."""

    def another_range(message: Message) -> None:
        message.facts["coding"] = {**message.facts["coding"], "correction": 2.0}

    server = Ahead(tmp_path, another_range, again=True)
    server.run()
    assert [(one.kind, dict(one.parts)) for one in server.answers] == [("silent", {})]


def test_junk_requests_to_a_sum_fill_no_disk(tmp_path: Path) -> None:
    """The first one that the node refuses ends its part in the sum, and no other is kept."""
    data = examples()
    fleet, post = federation(task_of(data), PRIVATE, shards_of(data, 4), tmp_path)
    answer, halves, kinds = post.here[VICTIM], list[int](), list[str]()

    def flooded(request: bytes) -> bytes:
        outer = unpack(request)
        if outer.kind != "sum" or outer.facts["phase"] != 1 or halves:
            return answer(request)
        for _ in range(20):
            facts = {**outer.facts, "phase": 2}
            kinds.append(
                unpack(answer(pack(Message("sum", facts, {"request": bytes(2**20)})))).kind
            )
            folder = (tmp_path / "n1").glob("*/sums/**/*")
            halves.append(sum(path.stat().st_size for path in folder if path.is_file()))
        return answer(request)

    post.here[VICTIM] = flooded
    its = fleet.contract
    progress = begin(its.model(data), its.algorithm, its.plan)
    next(iter(rounds(fleet, its.plan, progress)))
    assert kinds == ["silent"] * 20
    assert max(halves) < 2**20
