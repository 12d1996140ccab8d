"""Letters carried within one process: what tests of a fleet use in place of a network."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import count
from pathlib import Path
from typing import Any

from fedrows.data.federation import FederatedData
from fedrows.flower.fleet import FlowerFleet
from fedrows.flower.job import Job, contract
from fedrows.flower.node import ClientNode
from fedrows.flower.private import PrivateFleet
from fedrows.flower.private_node import PrivateNode
from fedrows.flower.registry import Limits, Registry
from fedrows.flower.signing import own_key, write_peers
from fedrows.flower.state import NodeState


class Loopback:
    """Answers every letter at once; `meddle` may change or swallow an answer (node, answer)."""

    def __init__(self) -> None:
        self.here: dict[int, Callable[[bytes], bytes]] = {}
        self.meddle: Callable[[int, bytes], bytes | str | None] = lambda node, answer: answer
        self.sent: list[tuple[int, bytes]] = []
        self._answers: dict[str, bytes | str] = {}
        self._number = count()

    def nodes(self) -> list[int]:
        return sorted(self.here)

    def send(self, letters: Mapping[int, bytes], seconds: float, round_: int) -> dict[str, int]:
        found = {}
        for node, letter in letters.items():
            self.sent.append((node, letter))
            message = f"m{next(self._number)}"
            found[message] = node
            answer = self.meddle(node, self.here[node](letter))
            if answer is not None:
                self._answers[message] = answer
        return found

    def receive(self, messages: Iterable[str]) -> dict[str, bytes | str]:
        return {m: self._answers.pop(m) for m in list(messages) if m in self._answers}


def federation(
    job: Job, config: Mapping[str, Any], shards: Mapping[str, FederatedData], folder: Path
) -> tuple[FlowerFleet, Loopback]:
    """A fleet whose nodes live in this process, a shard each."""
    terms = contract(job, config)
    data = job.server(config)
    model = terms.model(data)
    post = Loopback()
    for place, (name, shard) in enumerate(shards.items(), start=1):
        post.here[place] = fresh(job, config, shard, folder / name, name)
    registry = Registry(
        model.schema,
        terms.plan.weighting,
        Limits(10_000, 10**6),
        frozenset(data.local),
        told=not terms.secret,
    )
    fingerprint = terms.fingerprint(model, data)
    parts = (terms, model.schema, registry, post, fingerprint, "0" * 16, _quiet)
    if not terms.secret:
        return FlowerFleet(*parts), post
    write_peers(folder / "peers.json", {name: own_key(folder / name).public for name in shards})
    return PrivateFleet(*parts, peers=folder / "peers.json"), post


def fresh(
    job: Job, config: Mapping[str, Any], shard: FederatedData, folder: Path, name: str
) -> Callable[[bytes], bytes]:
    """A node that is made anew for every letter, as Flower does."""

    def answer(letter: bytes) -> bytes:
        parts = (contract(job, config), shard, NodeState(folder), name)
        if not parts[0].secret:
            return ClientNode(*parts).answer(letter)
        return PrivateNode(*parts, peers=folder.parent / "peers.json").answer(letter)

    return answer


def _quiet(_: str) -> None:
    """Says nothing."""
