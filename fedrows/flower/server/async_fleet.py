"""A fleet in the clear that is not waited for: nodes send their updates when they are done.

A node has at most one message under way, so what it remembers, and what the server counts on that
it remembers, follow one another as in synchronous rounds. The clients of a message come in
together, those of a gateway one by one (`gateway_work`). What is not answered within `timeout` is
given up: its tag is forgotten, and an answer to it is refused. A node whose answer brings nothing
gets the next work after a pause, which doubles until an update of it is applied. One that answers
nonsense at once would else keep the server busy.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from fedrows.algorithm import Round
from fedrows.client import Upload
from fedrows.fleet import OpenRound, Traffic
from fedrows.flower.server.exchange import Exchange
from fedrows.flower.server.fleet import AWAY, LOOK, POLL, ClearRound
from fedrows.flower.server.gateway_work import GatewayWork, NodeWork, marked
from fedrows.flower.server.node_records import LATE, SILENT
from fedrows.flower.server.unwaited_fleet import LEFT, UnwaitedFleet
from fedrows.flower.server.update_log import BufferedUpdate
from fedrows.flower.server.uploads import NOT_FINITE, UpdateReader
from fedrows.flower.wire.clients import no_ids
from fedrows.flower.wire.message import Message, WireError, pack, unpack
from fedrows.flower.wire.names import tag_of
from fedrows.flower.wire.upload_checks import UploadRefused
from fedrows.rows.params import Submodels


class AsyncFlowerFleet(UnwaitedFleet):
    """The clients of all nodes that have enrolled; `train` sends, and `collect` takes in."""

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        self.reader = UpdateReader(self.contract, self.registry)
        self._work: dict[str, NodeWork] = {}  # under way, by message id
        self._gateways = GatewayWork()
        self._up: tuple[float, int] = (0.0, 0)  # bytes of answers, and clients in them

    @property
    def least(self) -> int:
        return self.contract.plan.buffer_size

    @property
    def under_way(self) -> dict[str, int]:
        """How many clients train now, by node."""
        counted = Counter[str]()
        for work in (*self._work.values(), *self._gateways.devices()):
            counted[work.node] += len(work.members)
        return dict(counted)

    @property
    def mean_up(self) -> float:
        """The bytes of an update, mean over those that have come in."""
        return self._up[0] / max(self._up[1], 1)

    def _working(self) -> Collection[str]:
        return {work.node for work in (*self._work.values(), *self._gateways.messages.values())}

    def occupied(self) -> Tensor:
        """Which clients cannot begin, because they or their node are at work or away: (N,)."""
        busy = super().occupied()
        busy[marked(self.numbers(), self._gateways.devices())] = True
        return busy

    def open_round(self, round_: Round) -> OpenRound:
        """Finds the nodes of clients that begin."""
        opened = super().open_round(round_)
        assert isinstance(opened, ClearRound)
        return AsyncRound(self, round_, opened.index, opened.hosts)

    def train(self, opened: ClearRound, start: Submodels, sent: Submodels | None) -> Upload:
        """Sends an open round's submodels to the nodes, and waits for nothing."""
        began, round_ = time.perf_counter(), opened.round
        exchange, cohort = self.exchange(round_.number), round_.cohort
        messages, works = dict[int, bytes](), dict[int, NodeWork]()
        for name, positions in opened.hosts.items():
            node, tag = self.registry.nodes[name], tag_of(round_.number)
            message = self._requests.of(name, cohort, positions, tag, self.about_run)
            hashes, spared = self._requests.add_download_(message, name, positions, start, sent)
            numbers = cohort[positions].tolist()
            members = [self.registry.clients[number] for number in numbers]
            index = self.registry.round_index(numbers, round_.number)
            read = {table: moves[index[table].ids] for table, moves in self.moves.items()}
            exchange.rows_spared += spared
            if node.one_by_one:
                message.facts["waiting"] = self._gateways.waiting(name)
            messages[node.address] = pack(message)
            clients = members, index, read, hashes
            works[node.address] = self._work_of(name, tag, round_.number, *clients)
        assert isinstance(opened, AsyncRound)
        opened.down = sum(map(len, messages.values()))
        exchange.asked += len(cohort)
        self._send(exchange, messages, works)
        for work in works.values():
            self._lost(exchange, work, AWAY)
        exchange.add_seconds_("pack", time.perf_counter() - began)
        return self.reader.joined(no_ids(), [])

    def _work_of(self, name: str, tag: int, step: int, *clients: Any) -> NodeWork:
        """What a node is asked to do before a step, and when it is given up."""
        node, until = self.registry.nodes[name], time.monotonic() + self.contract.options.timeout
        return NodeWork(name, node.address, node.version, tag, step, until, *clients)

    def _send(
        self, exchange: Exchange, messages: dict[int, bytes], works: dict[int, NodeWork]
    ) -> None:
        """Sends messages, and notes their work as under way; leaves what was not accepted."""
        exchange.messages += len(messages)
        exchange.bytes_down += sum(map(len, messages.values()))
        seconds = self.contract.options.timeout
        for message_id, address in self.transport.send(messages, seconds, exchange.round).items():
            work = works.pop(address)
            if self.registry.nodes[work.node].one_by_one:
                self._gateways.begin(message_id, work)
            else:
                self._work[message_id] = work

    def collect(self, step: int, wait: bool) -> list[BufferedUpdate]:
        """The updates that have come in; each is on the disk. What has taken too long is given up.

        wait: for the next answer, if none is there; not for long.
        """
        exchange, since = self.exchange(step), time.perf_counter()
        self._ask_gateways(exchange)
        asked = self._work | self._gateways.messages
        if wait and not asked:
            time.sleep(POLL)
        elif wait:
            under_way = (*asked.values(), *self._gateways.devices())
            left = min(work.until for work in under_way) - time.monotonic()
            self.transport.wait(max(min(left, LOOK), 0.0))
        exchange.add_seconds_("wait", time.perf_counter() - since)
        since = time.perf_counter()
        answers = self.transport.receive(list(asked)) if asked else {}
        updates = list[BufferedUpdate]()
        for message_id, answer in answers.items():
            if message_id in self._work:
                updates += self._take(exchange, self._work.pop(message_id), answer)
            else:
                message = self._gateways.messages.pop(message_id)
                updates += self._take_arrived(exchange, message, answer)
        now, addresses = time.monotonic(), self.registry.addresses()
        for message_id, work in list(self._work.items()):
            if addresses.get(work.node) != work.address:
                self._lost(exchange, self._work.pop(message_id), LEFT)
            elif work.until <= now:
                self._heard(work.address, LATE)
                self._lost(exchange, self._work.pop(message_id), LATE)
        for message_id, message in list(self._gateways.messages.items()):
            if message.until <= now or addresses.get(message.node) != message.address:
                self._heard(self._gateways.messages.pop(message_id).address, LATE)
        for work, left in self._gateways.lost(addresses):
            self._lost(exchange, work, LEFT if left else SILENT)
        exchange.add_seconds_("check", time.perf_counter() - since)
        return updates

    def _ask_gateways(self, exchange: Exchange) -> None:
        """Asks gateways that are not at a message what has come in from their devices."""
        none, messages, works = no_ids(), dict[int, bytes](), dict[int, NodeWork]()
        for name in self._gateways.idle():
            node = self.registry.nodes.get(name)
            if node is None or node.address not in self._connected:
                continue
            tag = tag_of(exchange.round)
            message = self._requests.of(name, none, [], tag, self.about_run)
            message.facts["waiting"] = self._gateways.waiting(name)
            messages[node.address] = pack(message)
            works[node.address] = self._work_of(name, tag, exchange.round)
        self._send(exchange, messages, works)

    def _take(
        self, exchange: Exchange, work: NodeWork, answer: bytes | str
    ) -> list[BufferedUpdate]:
        """The updates of an answer that can be trusted, once they are on the disk."""
        if why := self._worthless(exchange, work, answer):
            if isinstance(answer, str):
                self._pause_(work.node)
            self._lost(exchange, work, why)
            return []
        assert isinstance(answer, bytes)
        reply, buffered = self._read(exchange, work, answer)
        if not buffered:
            self._pause_(work.node)
        if reply is not None:
            self._confirm(work, reply)
        return buffered

    def _take_arrived(
        self, exchange: Exchange, message: NodeWork, answer: bytes | str
    ) -> list[BufferedUpdate]:
        """The updates of devices in a gateway's answer; what it leaves out is still waited for."""
        name = message.node
        if self._worthless(exchange, message, answer):
            self._gateways.pause(name)
            return []
        assert isinstance(answer, bytes)
        try:
            reply = unpack(answer)
            if reply.kind != "arrived" or reply.facts.get("tag") != message.tag:
                raise WireError("It answers another message.")
            silent = [f"{tag}/{position}" for tag, position in reply.facts.get("silent", [])]
        except (WireError, TypeError, ValueError) as error:
            self._refuse(exchange, "unreadable", f"node {name!r}", str(error))
            self._gateways.pause(name)
            return []
        self._confirm(message, reply)
        buffered, ended = list[BufferedUpdate](), 0
        for key, part in reply.parts.items():
            if key.startswith("changed/"):
                continue
            if (work := self._gateways.end(name, key)) is not None:
                arrived, ended = self._read(exchange, work, part)[1], ended + 1
                buffered += arrived
                if not arrived:
                    self._pause_((name, work.members[0].name))
            else:
                self._refuse(exchange, "stale", f"node {name!r}", "nobody waits for this update")
        for key in silent:
            if (work := self._gateways.end(name, key)) is not None:
                ended += 1
                self._lost(exchange, work, SILENT)
                self._pause_((name, work.members[0].name))
        if not ended and self._gateways.is_hasty(message):
            self._gateways.pause(name)
        return buffered

    def _worthless(self, exchange: Exchange, work: NodeWork, answer: bytes | str) -> str:
        """Why a whole answer brings nothing; empty if it is to be read."""
        name = work.node
        self._heard(work.address, answer)
        if isinstance(answer, str):
            return answer
        exchange.bytes_up += len(answer)
        node = self.registry.nodes.get(name)
        if node is None or node.address != work.address:
            return LEFT
        return self._why_unread(name, answer)

    def _confirm(self, work: NodeWork, reply: Message) -> None:
        """Takes note of what a node has now, and of how its clients have changed."""
        self.answers[work.node] = ""
        self._row_cache.confirm(work.node, work.hashes, work.tag)
        node = self.registry.nodes[work.node]
        if reply.facts.get("changes") and node.version == work.version:
            self._changes.append((work.node, reply))
            self._apply_changes()

    def _read(
        self, exchange: Exchange, work: NodeWork, answer: bytes
    ) -> tuple[Message | None, list[BufferedUpdate]]:
        """The message of an upload, and its updates on the disk; None if it is refused whole."""
        name = work.node
        self._up = self._up[0] + len(answer), self._up[1] + len(work.members)
        index = work.index
        try:
            reply, updates, silent = self.reader.read(answer, index, work.tag)
        except UploadRefused as error:
            self._refuse(exchange, error.reason, f"node {name!r}", str(error))
            self.answers[name] = f"its upload was refused: {error.reason}"
            return None, []
        sequence, buffered = self.log.next_sequence(), list[BufferedUpdate]()
        for i, (client, update) in enumerate(zip(work.members, updates, strict=True)):
            if i in silent:
                exchange.drop_(SILENT, [client.name])
                continue
            if update is None:
                who = f"client {client.name!r} of node {name!r}"
                self._refuse(exchange, NOT_FINITE[0], who, NOT_FINITE[1])
                continue
            weight = self.registry.weight_of(client)
            read = {
                table: x[index[table].splits[i] : index[table].splits[i + 1]]
                for table, x in work.read.items()
            }
            buffered.append(
                BufferedUpdate(
                    name, client.name, work.tag, work.began, sequence, weight, update, read
                )
            )
        self.log.accept(buffered)
        return reply, buffered

    def refuse(self, update: BufferedUpdate, reason: str, why: str) -> None:
        """Counts an update that was accepted, and is refused beside others."""
        assert self.last is not None
        node = self.registry.nodes.get(update.node)
        if node is not None:  # one device does not hold up the others
            self._pause_((update.node, update.client) if node.one_by_one else update.node)
        self._refuse(self.last, reason, f"client {update.client!r} of node {update.node!r}", why)

    def _lost(self, exchange: Exchange, work: NodeWork, why: str) -> None:
        """Takes note of clients whose work brings nothing."""
        self.answers[work.node] = why
        exchange.drop_(why, (client.name for client in work.members))


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
