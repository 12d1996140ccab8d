"""A fleet that is not waited for: nodes get work, and send their updates when they are done.

A node has at most one message under way, so what it remembers, and what the server counts on that
it remembers, follow one another as in synchronous rounds. The clients of a message come in
together. A message that is not answered within `timeout` is given up: its tag is forgotten, and an
answer to it is refused.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedrows.algorithm import Round
from fedrows.client import Upload
from fedrows.fleet import OpenRound, Traffic
from fedrows.flower.server.exchange import Exchange, short_kind
from fedrows.flower.server.fleet import LOOK, POLL, ClearRound, FlowerFleet
from fedrows.flower.server.node_records import LATE, SILENT
from fedrows.flower.server.registry import RegisteredClient
from fedrows.flower.server.row_cache import RowHashes
from fedrows.flower.server.update_log import BufferedUpdate, UpdateLog
from fedrows.flower.server.uploads import NOT_FINITE, UpdateReader
from fedrows.flower.wire.clients import ClientName
from fedrows.flower.wire.message import pack
from fedrows.flower.wire.tags import tag_of
from fedrows.flower.wire.upload_checks import UploadRefused
from fedrows.rows.index import Index
from fedrows.rows.params import Submodels

LEFT = "its node has left, or has enrolled again"


@dataclass(frozen=True)
class NodeWork:
    """What a node was asked to do, and has not answered yet."""

    node: str
    address: int
    version: int  # of the node's list of clients
    tag: int
    began: int  # the step that it began before
    members: list[RegisteredClient]  # as they were registered then
    read: dict[str, Tensor]  # how often their rows had been moved, by table (R,)
    hashes: RowHashes
    until: float  # when it is given up


class AsyncFlowerFleet(FlowerFleet):
    """The clients of all nodes that have enrolled; `train` sends, and `collect` takes in."""

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        self.log = UpdateLog()
        self.reader = UpdateReader(self.contract, self.registry)
        self.moves: dict[str, Tensor] = {}  # of every row, if its staleness counts
        self._work: dict[str, NodeWork] = {}  # under way, by message id
        self._connected: Collection[int] = ()
        self._next_look = 0.0
        self._up: tuple[float, int] = (0.0, 0)  # bytes of answers, and clients in them
        self._places: tuple[int, dict[tuple[str, ClientName], int], Tensor] | None = None

    @property
    def least(self) -> int:
        return self.contract.plan.buffer_size

    @property
    def under_way(self) -> dict[str, int]:
        """How many clients train now, by node."""
        return dict(Counter[str]({one.node: len(one.members) for one in self._work.values()}))

    @property
    def mean_up(self) -> float:
        """The bytes of an update, mean over those that have come in."""
        return self._up[0] / max(self._up[1], 1)

    def gather(self) -> None:
        """Asks nodes that are new to enrol; waits only if the run has just begun, or goes on."""
        if self.last is None:
            super().gather()
            self._connected = set(self.transport.nodes())
            return
        if time.monotonic() < self._next_look:
            return
        self._next_look = time.monotonic() + POLL
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
        """Which clients cannot begin, because their node is at work or away: (N,)."""
        names = list(self.registry.nodes)
        working = {one.node for one in self._work.values()}
        away = [
            name in working or self.registry.nodes[name].address not in self._connected
            for name in names
        ]
        return torch.tensor(away, dtype=torch.bool)[self._placed()[1]]

    def _placed(self) -> tuple[dict[tuple[str, ClientName], int], Tensor]:
        """Numbers of clients, and the position of each client's node (N,); once for a registry."""
        if self._places is None or self._places[0] != self.registry.version:
            at = {name: i for i, name in enumerate(self.registry.nodes)}
            clients = self.registry.clients
            numbers = {(one.node, one.name): i for i, one in enumerate(clients)}
            nodes = torch.tensor([at[one.node] for one in clients], dtype=torch.int64)
            self._places = self.registry.version, numbers, nodes
        return self._places[1:]

    def exchange(self, step: int) -> Exchange:
        """The record of the step that is under way."""
        if self.last is None or self.last.round != step:
            self.answers, self.last = {}, Exchange(step)
        return self.last

    def open_round(self, round_: Round) -> OpenRound:
        """Finds the nodes of clients that begin."""
        opened = super().open_round(round_)
        assert isinstance(opened, ClearRound)
        return AsyncRound(self, round_, opened.index, opened.hosts)

    def train(self, opened: ClearRound, start: Submodels, sent: Submodels | None) -> Upload:
        """Sends an open round's submodels to the nodes, and waits for nothing."""
        began, round_, seconds = time.perf_counter(), opened.round, self.contract.options.timeout
        exchange, cohort = self.exchange(round_.number), round_.cohort
        messages, works = dict[int, bytes](), dict[int, NodeWork]()
        for name, positions in opened.hosts.items():
            node, tag = self.registry.nodes[name], tag_of(round_.number)
            message = self._request(name, cohort, positions, tag)
            hashes, spared = self._add_download_(message, name, positions, start, sent)
            members = [self.registry.clients[int(cohort[i])] for i in positions]
            read = {
                table: moves[torch.cat([one.index[table] for one in members])]
                for table, moves in self.moves.items()
            }
            exchange.rows_spared += spared
            messages[node.address] = pack(message)
            until = time.monotonic() + seconds
            works[node.address] = NodeWork(
                name, node.address, node.version, tag, round_.number, members, read, hashes, until
            )
        assert isinstance(opened, AsyncRound)
        opened.down = sum(map(len, messages.values()))
        exchange.asked += len(cohort)
        exchange.messages += len(messages)
        exchange.bytes_down += opened.down
        accepted = self.transport.send(messages, seconds, round_.number)
        self._work |= {message_id: works.pop(node) for message_id, node in accepted.items()}
        for work in works.values():
            self._lost(exchange, work, "its node is away")
        _add(exchange, "pack", time.perf_counter() - began)
        return self.reader.joined(torch.zeros(0, dtype=torch.int64), [])

    def collect(self, step: int, wait: bool) -> list[BufferedUpdate]:
        """The updates that have come in; each is on the disk. What has taken too long is given up.

        wait: for the next answer, if none is there; not for long.
        """
        exchange, since = self.exchange(step), time.perf_counter()
        if wait and not self._work:
            time.sleep(POLL)
        elif wait:
            left = min(one.until for one in self._work.values()) - time.monotonic()
            self.transport.wait(max(min(left, LOOK), 0.0))
        _add(exchange, "wait", time.perf_counter() - since)
        since = time.perf_counter()
        answers = self.transport.receive(list(self._work)) if self._work else {}
        updates = list[BufferedUpdate]()
        for message_id, answer in answers.items():
            updates += self._take(exchange, self._work.pop(message_id), answer)
        now, addresses = time.monotonic(), self.registry.addresses()
        for message_id, work in list(self._work.items()):
            if addresses.get(work.node) != work.address:
                self._lost(exchange, self._work.pop(message_id), LEFT)
            elif work.until <= now:
                self._heard(work, LATE)
                self._lost(exchange, self._work.pop(message_id), LATE)
        _add(exchange, "check", time.perf_counter() - since)
        return updates

    def _take(
        self, exchange: Exchange, work: NodeWork, answer: bytes | str
    ) -> list[BufferedUpdate]:
        """The updates of an answer that can be trusted, once they are on the disk."""
        name = work.node
        self._heard(work, answer)
        if isinstance(answer, str):
            self._lost(exchange, work, answer)
            return []
        exchange.bytes_up += len(answer)
        self._up = self._up[0] + len(answer), self._up[1] + len(work.members)
        node, kind = self.registry.nodes.get(name), short_kind(answer)
        if node is None or node.address != work.address:
            self._lost(exchange, work, LEFT)
            return []
        if kind == "declined":
            self._decline_(name)
            self._lost(exchange, work, "its node declines to take part")
            return []
        if kind == "state-lost":
            self._row_cache.forget(name)
            node.address = 0  # it is asked to enrol again
            self._lost(exchange, work, "its node has lost its state")
            return []
        index = {t: Index.of([one.index[t] for one in work.members]) for t in self.registry.tables}
        try:
            reply, updates, silent = self.reader.read(answer, index, work.tag)
        except UploadRefused as error:
            self._refuse(exchange, error.reason, f"node {name!r}", str(error))
            self.answers[name] = f"its upload was refused: {error.reason}"
            return []
        sequence, buffered = self.log.next_sequence(), list[BufferedUpdate]()
        for i, (one, update) in enumerate(zip(work.members, updates, strict=True)):
            if i in silent:
                exchange.dropped.setdefault(SILENT, []).append(one.name)
                continue
            if update is None:
                client = f"client {one.name!r} of node {name!r}"
                self._refuse(exchange, NOT_FINITE[0], client, NOT_FINITE[1])
                continue
            weight = self.registry.weight_of(one)
            read = {
                table: x[index[table].splits[i] : index[table].splits[i + 1]]
                for table, x in work.read.items()
            }
            buffered.append(
                BufferedUpdate(name, one.name, work.tag, work.began, sequence, weight, update, read)
            )
        self.log.accept(buffered)
        self.answers[name] = ""
        self._row_cache.confirm(name, work.hashes, work.tag)
        if reply.facts.get("changes") and node.version == work.version:
            self._changes.append((name, reply))
            self._apply_changes()
        return buffered

    def refuse(self, one: BufferedUpdate, reason: str, why: str) -> None:
        """Counts an update that was accepted, and is refused beside others."""
        assert self.last is not None
        self._refuse(self.last, reason, f"client {one.client!r} of node {one.node!r}", why)

    def _heard(self, work: NodeWork, answer: bytes | str) -> None:
        addresses = self.registry.addresses()
        self.records.asked(addresses, [work.address], {work.address: answer})

    def _lost(self, exchange: Exchange, work: NodeWork, why: str) -> None:
        """Takes note of clients whose work brings nothing."""
        self.answers[work.node] = why
        exchange.dropped.setdefault(why, []).extend(one.name for one in work.members)


def _add(exchange: Exchange, phase: str, seconds: float) -> None:
    exchange.seconds[phase] = exchange.seconds.get(phase, 0.0) + seconds


@dataclass
class AsyncRound(ClearRound):
    """Clients that begin from one model."""

    down: int = 0

    @property
    def traffic(self) -> Traffic:
        """What was sent, and what as many answers of the run have weighed so far."""
        fleet = self.fleet
        assert isinstance(fleet, AsyncFlowerFleet)
        return Traffic(self.down, fleet.mean_up * len(self.round.cohort))
