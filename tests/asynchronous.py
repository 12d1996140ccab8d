"""Asynchronous deployments in one process: answers that come when a test says so."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from deployed import CONFIG, shards_of, task_of
from loopback import Loopback, fresh

from fedrows.data.federation import FederatedData
from fedrows.flower.deployment import Deployment
from fedrows.flower.server import update_log
from fedrows.flower.server.update_log import ARRIVALS, BufferedUpdate, UpdateLog
from fedrows.flower.wire.contract import make_contract
from fedrows.flower.wire.signing import own_key, write_peers
from fedrows.runs import checkpoint

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
    if "privacy" in config:
        config["peers"] = str(nodes / "peers.json")
        write_peers(nodes / "peers.json", {name: own_key(nodes / name).public for name in shards})
    for number, (name, shard) in enumerate(shards.items(), start=1):
        transport.here[number] = fresh(task, config, shard, nodes / name, name)
    made = Deployment(make_contract(task, config), transport, config, lambda text: None)
    made.fleet.run = "0" * 16  # until it has a folder
    return made


class KilledError(Exception):
    """Ends a server in the middle of something."""


class Killer:
    """Ends the server before or after some of the calls that keep updates and checkpoints."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, seed: int, odds: float = 0.06) -> None:
        self.accepted: dict[Any, BufferedUpdate] = {}  # that were on the disk, by key
        self._offered: dict[Any, BufferedUpdate] = {}
        self._draw, self._odds, self.kills = random.Random(seed), odds, 0
        for of, name in (
            (UpdateLog, "accept"), (UpdateLog, "settle"), (UpdateLog, "saved"),
            (checkpoint, "save"), (update_log, "write_private"),
        ):  # fmt: skip
            monkeypatch.setattr(of, name, self._dying(getattr(of, name), name))

    def _dying(self, real: Any, name: str) -> Any:
        def dying(*args: Any) -> Any:
            if name == "accept":
                self._offered = {one.key: one for one in args[1]}
            self._perhaps()
            result = real(*args)
            if name == "write_private" and args[0].parent.name == ARRIVALS:
                self.accepted |= self._offered
            self._perhaps()
            return result

        return dying

    def _perhaps(self) -> None:
        if self._draw.random() < self._odds:
            self.kills += 1
            raise KilledError


def replay(
    run: Deployment, updates: list[tuple[int, BufferedUpdate]], rule: str, each: int
) -> torch.Tensor:
    """The table after all steps of so many updates each, worked out row by row."""
    table = run.model.start().tables["item"].clone()
    history = list[set[int]]()  # the rows that each step moved
    for step in range(1, max(at for at, _ in updates) + 1):
        now = [one for at, one in updates if at == step]
        for one in now:
            update = one.update.parts["update"]
            for m, change in zip(
                update.index["item"].ids.tolist(), update.rows["item"], strict=True
            ):
                since = history[one.began - 1 :]
                late = {"none": 0, "version": len(since), "row": sum(m in x for x in since)}[rule]
                table[m] += change / each / math.sqrt(1 + late)
        history.append(
            {m for x in now for m in x.update.parts["update"].index["item"].ids.tolist()}
        )
    return table
