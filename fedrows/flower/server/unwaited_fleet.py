"""A fleet that is not waited for: nodes come, get work and leave while the run goes on."""

from __future__ import annotations

import time
from collections.abc import Collection
from typing import Any

import torch
from torch import Tensor

from fedrows.flower.server.exchange import Exchange
from fedrows.flower.server.fleet import POLL, FlowerFleet
from fedrows.flower.server.update_log import BufferedUpdate, NodeClient, UpdateLog
from fedrows.flower.wire.clients import ClientName

LEFT = "its node has left, or has enrolled again"
FIRST_PAUSE, LONGEST_PAUSE = 0.5, 60.0  # seconds without work after useless answers
MOST_PAUSED = 10_000  # remembered; beyond, pauses that are over are forgotten


class UnwaitedFleet(FlowerFleet):
    """The clients of all nodes that have enrolled, and who of them is free."""

    def __init__(self, *parts: Any, **more: Any) -> None:
        super().__init__(*parts, **more)
        self.log = UpdateLog()
        self.moves: dict[str, Tensor] = {}  # of every row, if its staleness counts
        self._connected: Collection[int] = ()
        self._next_look = 0.0
        # A node, or a client of a gateway → when it gets work again, after a pause of …
        self._paused: dict[str | NodeClient, tuple[float, float]] = {}
        self._places: tuple[int, dict[tuple[str, ClientName], int], Tensor] | None = None

    @property
    def under_way(self) -> dict[str, int]:
        """How many clients train now, by node."""
        raise NotImplementedError

    def collect(self, step: int, wait: bool) -> list[BufferedUpdate]:
        """The updates that have come in; each is on the disk. What has taken too long is given up.

        wait: for the next answer, if none is there; not for long.
        """
        raise NotImplementedError

    def gather(self) -> None:
        """Asks nodes that are new to enrol; waits only if the run has just begun, or goes on."""
        if self.last is None:
            super().gather()
            self._connected = set(self.transport.nodes())
        elif time.monotonic() >= self._next_look:
            self._next_look = time.monotonic() + POLL
            self._look()

    def _look(self) -> None:
        """Takes in who has come and who has left."""
        self._remove_nodes()
        for name in self._enrolment.poll(self.run):
            self._row_cache.forget(name)
        self._connected = set(self.transport.nodes())
        self.records.connected(self.registry.addresses(), self._connected)
        self._say_left_out()

    def numbers(self) -> dict[tuple[str, ClientName], int]:
        """The number of every client that is registered now, by its node and its name."""
        return self._placed()[0]

    def occupied(self) -> Tensor:
        """Which clients cannot begin, as their node is at work, or away, or has to pause: (N,)."""
        now = time.monotonic()
        paused = {who for who, (until, _) in self._paused.items() if until > now}
        working = paused | {*self._working()}
        away = [name in working or not self._is_here(name) for name in self.registry.nodes]
        numbers, nodes = self._placed()
        busy = torch.tensor(away, dtype=torch.bool)[nodes]
        own = [numbers[who] for who in paused if isinstance(who, tuple) and who in numbers]
        busy[torch.tensor(own, dtype=torch.int64)] = True
        return busy

    def _working(self) -> Collection[str]:
        """The nodes that are at work, and can be sent nothing."""
        return self.under_way.keys()

    def _is_here(self, node: str) -> bool:
        """Whether a node can be sent a message."""
        return self.registry.nodes[node].address in self._connected

    def _placed(self) -> tuple[dict[tuple[str, ClientName], int], Tensor]:
        """Numbers of clients, and the position of each client's node (N,); once for a registry."""
        if self._places is None or self._places[0] != self.registry.version:
            at = {name: i for i, name in enumerate(self.registry.nodes)}
            clients = self.registry.clients
            numbers = {(client.node, client.name): i for i, client in enumerate(clients)}
            nodes = torch.tensor([at[client.node] for client in clients], dtype=torch.int64)
            self._places = self.registry.version, numbers, nodes
        return self._places[1:]

    def exchange(self, step: int) -> Exchange:
        """The record of the step that is under way."""
        if self.last is None or self.last.round != step:
            self.answers, self.last = {}, Exchange(step)
        return self.last

    def applied(self, updates: Collection[BufferedUpdate]) -> None:
        """Takes note of updates that a step takes: their nodes pause no longer."""
        for update in updates:
            for who in update.clients:
                self._paused.pop(who, None)
                self._paused.pop(who[0], None)

    def _pause_(self, who: str | NodeClient) -> None:
        """Gives a node, or a client of a gateway, no work for a while, each time for longer."""
        now, (_, before) = time.monotonic(), self._paused.get(who, (0.0, 0.0))
        if len(self._paused) >= MOST_PAUSED:
            self._paused = {one: x for one, x in self._paused.items() if x[0] > now}
        seconds = min(max(2 * before, FIRST_PAUSE), LONGEST_PAUSE)
        self._paused[who] = now + seconds, seconds

    def _heard(self, address: int, answer: bytes | str) -> None:
        self.records.asked(self.registry.addresses(), [address], {address: answer})
