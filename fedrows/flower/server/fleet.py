"""Clients on other machines, behind the same seam as simulated ones; Flower carries the messages.

In the steady state a node gets one message a round and sends one. A row travels once for all
clients of a node. A client that does not answer in time is left out of the round, and may be drawn
again in a later one.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

from torch import Tensor

from fedrows.algorithm import Round
from fedrows.client import Upload
from fedrows.fleet import OpenRound, Traffic
from fedrows.flower.server.enrolment import Enrolment
from fedrows.flower.server.exchange import Exchange, short_kind
from fedrows.flower.server.node_records import LATE, SILENT, NodeRecords
from fedrows.flower.server.registry import Registry
from fedrows.flower.server.train_requests import RowCache, TrainRequests
from fedrows.flower.server.uploads import RoundUploads
from fedrows.flower.wire.clients import ClientName
from fedrows.flower.wire.contract import Contract, digest
from fedrows.flower.wire.message import Message, WireError, pack
from fedrows.flower.wire.names import tag_of
from fedrows.flower.wire.transport import Transport
from fedrows.flower.wire.upload_checks import UploadRefused
from fedrows.rows.heat import Heat
from fedrows.rows.index import Index
from fedrows.rows.params import Submodels
from fedrows.seeds import COHORT, choose

AWAY = "its node is away"
POLL = 0.1  # seconds between two looks for nodes
LOOK = 0.5  # seconds at most between two looks for answers
PAUSE = 10.0  # seconds at most before a round is tried again
SAID = 3.0  # seconds between two times that operators hear what a run waits for


class FlowerFleet:
    """The clients of all nodes that have enrolled."""

    def __init__(
        self,
        contract: Contract,
        registry: Registry,
        transport: Transport,
        fingerprint: str,
        log: Callable[[str], None],
    ) -> None:
        self.contract, self.schema, self.registry = contract, registry.schema, registry
        self.transport = transport
        self.run = ""  # its name, which its folder has
        self.last: Exchange | None = None  # the newest round's
        self.answers: dict[str, str] = {}  # in it, by node: "", or why its answer does not count
        self.rejected: Counter[str] = Counter()  # uploads, over the whole run
        self._fingerprint, self._log = fingerprint, log
        self._enrolment = Enrolment(
            transport, registry, fingerprint, self.rejected, lambda text: self._log(text)
        )
        self._row_cache = RowCache()
        self._requests = TrainRequests(contract, registry, self._row_cache)
        self._changes: list[tuple[str, Message]] = []  # announced in this round's answers
        self._declined: list[str] = []  # nodes that take no part any longer
        self._left_out: set[int] = set()  # nodes that declined, as far as operators know
        self.notice: Callable[[str], None] = lambda _: None  # takes what operators must hear
        self.records = NodeRecords()  # who answers, and who does not
        self.begun: dict[str, float] = {}  # what nodes are told of a counted start
        self.revoked: Callable[[], Collection[int]] = lambda: ()  # addresses to go on without

    @property
    def turned_away(self) -> Mapping[int, str]:
        """The nodes that take no part, by Flower's id, and why."""
        declined = dict.fromkeys(self._enrolment.declined, "it declines: its own log says why")
        return {**declined, **self._enrolment.not_let_in}

    @property
    def about_run(self) -> dict[str, object]:
        """What a message that is not the first says of the run."""
        return {"run": self.run, "contract": digest(self._fingerprint), **self.begun}

    @property
    def clients(self) -> int:
        return len(self.registry.clients)

    @property
    def weights(self) -> Tensor:
        return self.registry.weights

    @property
    def least(self) -> int:
        cohort = self.contract.plan.clients_per_round
        wanted = self.contract.options.min_answers
        return (cohort + 1) // 2 if wanted is None else min(wanted, cohort)

    @property
    def fewest_nodes(self) -> int:
        """How many nodes must be here for a round."""
        return 1

    def heat(self) -> Mapping[str, Heat]:
        return self.registry.heat

    def draw(self, counter: int, count: int) -> Tensor:
        return choose(self.contract.plan.seed, COHORT, counter, self.clients, count)

    def gather(self) -> None:
        """Asks nodes that are new to enrol, and takes in those that have answered.

        Before the first round it waits until there are enough, later only while there are too few.
        """
        self._remove_nodes()
        options, plan = self.contract.options, self.contract.plan
        logged = said_at = time.monotonic()
        while True:
            for name in self._enrolment.poll(self.run):
                self._row_cache.forget(name)
            clients, nodes = self.clients, len(self.registry.nodes)
            connected = set(self.transport.nodes())
            present = [node for node in self.registry.nodes.values() if node.address in connected]
            self.records.connected(self.registry.addresses(), connected)
            first = self.last is None and all(
                client.accepted == 0 for client in self.registry.clients
            )
            enough = clients >= plan.buffer_size and len(present) >= self.fewest_nodes
            enough &= sum(len(node.clients) for node in present) >= self.least
            if first:
                enough &= clients >= (options.min_clients or 0) and nodes >= options.min_nodes
            if enough:
                if first:
                    self.registry.sort()
                self._say_left_out()
                return
            if (now := time.monotonic()) - said_at > SAID:
                said_at, needed = now, max(self.fewest_nodes, options.min_nodes if first else 1)
                waiting = (
                    f"Waiting for nodes: {len(present)} are here and at least {needed} are needed; "
                    f"{clients} clients are known and at least {plan.buffer_size} are needed."
                )
                if lost := self.records.away():
                    waiting += f" Away: {lost}."
                if away := [x for n, x in self._enrolment.declined.items() if n in connected]:
                    waiting += (
                        f" These decline, and their own logs say why: {', '.join(away)}. Mend that,"
                        " stop the run and submit it again with the same `out`."
                    )
                self.notice(waiting)
                if now - logged > 10:
                    logged = now
                    self._log(waiting)
            time.sleep(POLL)

    def _remove_nodes(self) -> None:
        """Takes out the nodes that decline, and those whose keys were revoked."""
        revoked, nodes = self.revoked(), self.registry.addresses()
        for name in [x for x, at in nodes.items() if at in revoked or x in self._declined]:
            self.registry.remove(name)
        self._declined.clear()

    def _say_left_out(self) -> None:
        """Says once which nodes a run goes on without."""
        declined = self._enrolment.declined
        if new := [called for node, called in declined.items() if node not in self._left_out]:
            notice = f"The run goes on without {', '.join(new)}: the node's own log says why."
            self._log(notice)
            self.notice(notice)
        self._left_out = set(declined)

    def open_round(self, round_: Round) -> OpenRound:
        """Finds the nodes of a cohort; a node's rows stand, each once, at the first of its clients.

        So a download holds a row once for every node, as it travels, and not once for every client.
        """
        cohort, hosts = round_.cohort, dict[str, list[int]]()
        for position, number in enumerate(cohort.tolist()):
            hosts.setdefault(self.registry.clients[number].node, []).append(position)
        for name, positions in hosts.items():
            places, _ = self.registry.asked(name, cohort[positions].tolist())
            positions[:] = [at for _, at in sorted(zip(places, positions, strict=True))]
        groups: list[list[int]] = [[] for _ in cohort]
        for positions in hosts.values():
            groups[positions[0]] = cohort[positions].tolist()
        return ClearRound(self, round_, self.registry.unions(groups, round_.number), hosts)

    def train(self, opened: ClearRound, start: Submodels, sent: Submodels | None) -> Upload:
        """Sends an open round's submodels to the nodes, and joins what they send back."""
        began = time.perf_counter()
        cohort, number = opened.round.cohort, opened.round.number
        tag, exchange = tag_of(number), self._begin_exchange(opened.round)
        uploads = RoundUploads(
            self.contract,
            self.registry,
            cohort,
            tag,
            lambda reason, who, why: self._refuse(exchange, reason, who, why),
        )
        hosts, connected = dict[str, list[int]](), set(self.transport.nodes())
        for name, positions in opened.hosts.items():
            if self.registry.nodes[name].address in connected:
                hosts[name] = positions
            else:
                self._dropped(exchange, cohort, positions, AWAY)
        messages, hashes = {}, {}
        for name, positions in hosts.items():
            message = self._requests.of(name, cohort, positions, tag, self.about_run)
            hashes[name], spared = self._requests.add_download_(
                message, name, positions, start, sent
            )
            exchange.rows_spared += spared
            messages[self.registry.nodes[name].address] = pack(message)
        exchange.messages = len(messages)
        exchange.bytes_down = sum(map(len, messages.values()))
        packed = time.perf_counter()
        answers = self.send_and_wait(messages, number)
        waited = time.perf_counter()
        for name, positions in hosts.items():
            answer = answers.get(self.registry.nodes[name].address, LATE)
            exchange.bytes_up += len(answer) if isinstance(answer, bytes) else 0
            if why := self._why_unread(name, answer):
                self._dropped(exchange, cohort, positions, why)
                continue
            assert isinstance(answer, bytes)
            try:
                reply = uploads.add(positions, answer)
            except UploadRefused as error:
                self._refuse(exchange, error.reason, f"node {name!r}", str(error))
                self.answers[name] = f"its upload was refused: {error.reason}"
                continue
            if silent := uploads.silent(positions):
                self._dropped(exchange, cohort, silent, SILENT)
            self.answers[name] = ""
            self._row_cache.confirm(name, hashes[name], tag)
            if reply.facts.get("changes"):
                self._changes.append((name, reply))
        upload = uploads.joined(self.heat())
        exchange.loss, exchange.answered = uploads.loss(), len(upload.clients)
        done = time.perf_counter()
        exchange.seconds = {"pack": packed - began, "wait": waited - packed, "check": done - waited}
        if exchange.answered >= self.least:
            for client in upload.clients.tolist():
                self.registry.clients[client].accepted = tag
        else:
            self._pause(exchange)
        self._apply_changes()
        return upload

    def _why_unread(self, name: str, answer: bytes | str) -> str:
        """Why an answer to a request to train is not read; empty if it is to be."""
        if isinstance(answer, str):
            return answer
        kind = short_kind(answer)
        if kind == "declined":
            self._decline_(name)
            return "its node declines to take part"
        if kind == "state-lost":
            self.forget_state_(name)
            return "its node has lost its state"
        return ""

    def forget_state_(self, name: str) -> None:
        """Takes note of a node that has lost its state: it is asked to enrol again."""
        self._row_cache.forget(name)
        self.registry.nodes[name].address = 0

    def _pause(self, exchange: Exchange) -> None:
        """Says that a round is tried again; whatever is wrong gets time to pass."""
        notice = (
            f"Round {exchange.round} is tried again: {exchange.answered} of {exchange.asked} "
            f"answered, and {self.least} are needed."
        )
        self._log(notice)
        self.notice(notice)
        time.sleep(min(PAUSE, POLL * 2**exchange.tries))

    def _begin_exchange(self, round_: Round) -> Exchange:
        """A new record of a round; it counts the tries of the same round."""
        again = self.last is not None and self.last.round == round_.number
        self.answers = dict(self.answers) if again else {}
        tries = 1 + self.last.tries if self.last is not None and again else 1
        self.last = Exchange(round_.number, tries, asked=len(round_.cohort))
        return self.last

    def send_and_wait(
        self, messages: Mapping[int, bytes], round_: int, awaited: Collection[int] | None = None
    ) -> dict[int, bytes | str]:
        """Sends messages and waits for their answers, at most as long as the time-out.

        awaited: the nodes whose answers matter; all if None.
        """
        if not messages:
            return {}
        seconds = self.contract.options.timeout
        until = time.monotonic() + seconds
        sent = self.transport.send(messages, seconds, round_)
        waiting = {m: node for m, node in sent.items() if awaited is None or node in awaited}
        answers: dict[int, bytes | str] = {}
        while waiting and (left := until - time.monotonic()) > 0:
            self.transport.wait(min(left, LOOK))
            for message_id, answer in self.transport.receive(waiting).items():
                answers[waiting.pop(message_id)] = answer
        for message_id, answer in (self.transport.receive(waiting) if waiting else {}).items():
            answers[waiting.pop(message_id)] = answer  # what was there when the time was up
        asked = [node for node in messages if awaited is None or node in awaited]
        self.records.asked(self.registry.addresses(), asked, answers)
        return answers

    def _name(self, cohort: Tensor, position: int) -> ClientName:
        return self.registry.clients[int(cohort[position])].name

    def _dropped(self, exchange: Exchange, cohort: Tensor, positions: list[int], why: str) -> None:
        names = [self._name(cohort, position) for position in positions]
        nodes = {self.registry.clients[int(cohort[position])].node for position in positions}
        self.answers |= dict.fromkeys(nodes, why)
        exchange.drop_(why, names)

    def _decline_(self, name: str) -> None:
        """Asks a node for nothing more; its clients go before the next round."""
        if name in self._declined:
            return
        node = self.registry.nodes[name]
        self._enrolment.decline_(node.address, f"node {name!r}")
        node.address = 0
        self._declined.append(name)

    def _refuse(self, exchange: Exchange, reason: str, who: str, why: str) -> None:
        exchange.refused.setdefault(reason, []).append(who)
        self.rejected[reason] += 1
        for name in self.registry.nodes:
            if who.endswith(f"node {name!r}"):
                self.records.refuse(name, reason)
        self._log(f"Round {exchange.round}: the upload of {who} is refused: {why.rstrip('.')}.")

    def _apply_changes(self) -> None:
        """Takes in what nodes said has changed; it counts from the next round on."""
        for name, message in self._changes:
            try:
                self.registry.change(name, message)
                self._log(f"Node {name!r} has new data, or other clients.")
            except WireError as error:
                self.rejected["registration"] += 1
                self._log(f"Node {name!r} announces a change that is refused: {error}")
        self._changes.clear()


@dataclass
class FlowerRound:
    """A round of clients on nodes."""

    fleet: FlowerFleet
    round: Round
    index: Mapping[str, Index]

    @property
    def traffic(self) -> Traffic:
        """The bytes that went over the network."""
        last = self.fleet.last
        assert last is not None, "it has trained"
        return Traffic(last.bytes_down, last.bytes_up)


@dataclass
class ClearRound(FlowerRound):
    """A round in which the server knows the clients' rows."""

    hosts: dict[str, list[int]] = field(default_factory=dict)  # node → positions in the cohort

    def train(self, start: Submodels, sent: Submodels | None) -> Upload:
        return self.fleet.train(self, start, sent)
