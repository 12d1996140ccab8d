"""Messages carried within one process: what fleet tests use in place of a network."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

from fedrows.data.federation import FederatedData
from fedrows.flower.node import joining
from fedrows.flower.node.policy import NodePolicy
from fedrows.flower.node.state import NodeState
from fedrows.flower.server.fleet import FlowerFleet
from fedrows.flower.server.noisy_fleet import NoisyFlowerFleet
from fedrows.flower.server.private_fleet import PrivateFlowerFleet
from fedrows.flower.server.registry import EnrolmentLimits, Registry
from fedrows.flower.wire.contract import DeployedTask, make_contract
from fedrows.flower.wire.message import Message, unpack
from fedrows.flower.wire.signing import own_key, write_peers


def phases_in(message: bytes) -> list[Message]:
    """The messages about sums that a message brings."""
    outer = unpack(message)
    if outer.kind == "sums":
        return [unpack(part) for part in outer.parts.values()]
    return [outer] if outer.kind == "sum" else []


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
            if node not in self.here:
                continue
            self.sent.append((node, message))
            id_ = f"m{next(self._number)}"
            found[id_] = node
            answer = self.meddle(node, self.here[node](message))
            if answer is not None:
                self._answers[id_] = answer
        return found

    def wait(self, seconds: float) -> None:
        time.sleep(0 if self._answers else seconds)

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
        weight_quantile=agreed.plan.weight_quantile,
        draws=agreed.draws(data),
    )
    fingerprint = agreed.fingerprint(model, data)
    parts = (agreed, registry, loopback, fingerprint, _quiet)
    if not agreed.secret:
        fleet = FlowerFleet(*parts)
    else:
        write_peers(folder / "peers.json", {n: own_key(folder / n).public for n in shards})
        kind = NoisyFlowerFleet if agreed.privacy.noise_in_sum else PrivateFlowerFleet
        fleet = kind(*parts, peers=folder / "peers.json", groups=data.groups)
    fleet.run = "0" * 16
    return fleet, loopback


def fresh(
    task: DeployedTask, config: Mapping[str, Any], shard: FederatedData, folder: Path, name: str
) -> Callable[[bytes], bytes]:
    """A node that is made anew for every message, as Flower does; its policy allows anything."""
    policy = folder.parent / "policy.toml"
    if not policy.exists():
        policy.parent.mkdir(parents=True, exist_ok=True)
        policy.write_text(NodePolicy.open().text(), "utf-8")
    return with_policy(task, config, shard, folder, name, policy)


def with_policy(
    task: DeployedTask,
    config: Mapping[str, Any],
    shard: FederatedData,
    folder: Path,
    name: str,
    policy: Path | None,
) -> Callable[[bytes], bytes]:
    """A node with a policy of its own, if any; it has a list of peers if there is one."""
    own, peers = {"name": name}, folder.parent / "peers.json"
    if policy is not None:
        own["policy"] = str(policy)

    def answer(message: bytes) -> bytes:
        known = {"peers": str(peers)} if peers.exists() else {}
        here = replace(task, shard=lambda _: shard)
        return joining.answer(here, config, own | known, NodeState(folder), message)

    return answer


def _quiet(_: str) -> None:
    """Says nothing."""
