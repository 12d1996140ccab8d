"""Messages carried within one process: what fleet tests use in place of a network."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import count
from pathlib import Path
from typing import Any

from fedrows.data.federation import FederatedData
from fedrows.flower.node.node import ClientNode
from fedrows.flower.node.private_node import PrivateNode
from fedrows.flower.node.state import NodeState
from fedrows.flower.server.fleet import FlowerFleet
from fedrows.flower.server.private_fleet import PrivateFlowerFleet
from fedrows.flower.server.registry import EnrolmentLimits, Registry
from fedrows.flower.wire.contract import DeployedTask, make_contract
from fedrows.flower.wire.signing import own_key, write_peers


class Loopback:
    """Answers every message at once; `meddle` may change or swallow an answer (node, answer)."""

    def __init__(self) -> None:
        self.here: dict[int, Callable[[bytes], bytes]] = {}
        self.meddle: Callable[[int, bytes], bytes | str | None] = lambda node, answer: answer
        self.sent: list[tuple[int, bytes]] = []
        self._answers: dict[str, bytes | str] = {}
        self._number = count()

    def nodes(self) -> list[int]:
        return sorted(self.here)

    def send(self, messages: Mapping[int, bytes], seconds: float, round_: int) -> dict[str, int]:
        found = {}
        for node, message in messages.items():
            self.sent.append((node, message))
            id_ = f"m{next(self._number)}"
            found[id_] = node
            answer = self.meddle(node, self.here[node](message))
            if answer is not None:
                self._answers[id_] = answer
        return found

    def receive(self, message_ids: Iterable[str]) -> dict[str, bytes | str]:
        return {m: self._answers.pop(m) for m in list(message_ids) if m in self._answers}


def federation(
    task: DeployedTask, config: Mapping[str, Any], shards: Mapping[str, FederatedData], folder: Path
) -> tuple[FlowerFleet, Loopback]:
    """A fleet whose nodes live in this process, a shard each."""
    agreed = make_contract(task, config)
    data = task.server(config)
    model = agreed.model(data)
    loopback = Loopback()
    for place, (name, shard) in enumerate(shards.items(), start=1):
        loopback.here[place] = fresh(task, config, shard, folder / name, name)
    registry = Registry(
        model.schema,
        agreed.plan.weighting,
        EnrolmentLimits(10_000, 10**6),
        frozenset(data.local),
        sets_known=not agreed.secret,
    )
    fingerprint = agreed.fingerprint(model, data)
    parts = (agreed, model.schema, registry, loopback, fingerprint, "0" * 16, _quiet)
    if not agreed.secret:
        return FlowerFleet(*parts), loopback
    write_peers(folder / "peers.json", {name: own_key(folder / name).public for name in shards})
    return PrivateFlowerFleet(*parts, peers=folder / "peers.json"), loopback


def fresh(
    task: DeployedTask, config: Mapping[str, Any], shard: FederatedData, folder: Path, name: str
) -> Callable[[bytes], bytes]:
    """A node that is made anew for every message, as Flower does."""

    def answer(message: bytes) -> bytes:
        parts = (make_contract(task, config), shard, NodeState(folder), name)
        if not parts[0].secret:
            return ClientNode(*parts).answer(message)
        return PrivateNode(*parts, peers=folder.parent / "peers.json").answer(message)

    return answer


def _quiet(_: str) -> None:
    """Says nothing."""
