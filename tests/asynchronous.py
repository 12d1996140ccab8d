"""Asynchronous deployments in one process: answers that come when a test says so."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from deployed import CONFIG, shards_of, task_of
from loopback import Loopback, fresh

from fedrows.data.federation import FederatedData
from fedrows.flower.deployment import Deployment
from fedrows.flower.wire.contract import make_contract

ASYNC: dict[str, Any] = {
    **CONFIG, "mode": "async", "buffer": 3, "concurrency": 6, "device": "cpu", "rounds": 6
}  # fmt: skip


class Held(Loopback):
    """Holds answers back; `release` picks some of those that wait, by message id → node."""

    def __init__(self) -> None:
        super().__init__()
        self.waiting: dict[str, int] = {}
        self.release: Callable[[Mapping[str, int]], Iterable[str]] = list
        self.waits = 0

    def send(self, messages: Mapping[int, bytes], seconds: float, round_: int) -> dict[str, int]:
        sent = super().send(messages, seconds, round_)
        self.waiting |= {x: node for x, node in sent.items() if x in self._answers}
        return sent

    def wait(self, seconds: float) -> None:
        self.waits += 1
        assert self.waits < 2000, "nothing comes any more"

    def receive(self, message_ids: Iterable[str]) -> dict[str, bytes | str]:
        asked = set(message_ids)
        enrolled = {x for x in asked if x not in self.waiting}
        chosen = [x for x in self.release(dict(self.waiting)) if x in asked]
        for message_id in chosen:
            del self.waiting[message_id]
        return super().receive([*enrolled, *chosen])


def one_by_one(waiting: Mapping[str, int]) -> list[str]:
    """The answer that has waited longest."""
    return list(waiting)[:1]


def deployment(
    data: FederatedData, nodes: Path, transport: Loopback | None = None, **more: Any
) -> Deployment:
    """A server whose nodes live in this process, three of them unless `shards` says how many."""
    shards = shards_of(data, more.pop("shards", 3))
    transport = transport or Held()
    task, config = task_of(data), {**ASYNC, **{x.replace("_", "-"): y for x, y in more.items()}}
    for number, (name, shard) in enumerate(shards.items(), start=1):
        transport.here[number] = fresh(task, config, shard, nodes / name, name)
    made = Deployment(make_contract(task, config), transport, config, lambda text: None)
    made.fleet.run = "0" * 16  # until it has a folder
    return made
