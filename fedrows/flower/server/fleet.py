"""Clients on other machines, behind the same seam as simulated ones; Flower carries the messages.

In the steady state a node gets one message a round and sends one. Rows travel once for all clients
that a node hosts. Who does not answer in time is left out of the round, and is asked again in a
later one.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedrows.algorithm import Round
from fedrows.client import Upload
from fedrows.fleet import OpenRound, Traffic
from fedrows.flower.server.enrolment import Enrolment
from fedrows.flower.server.exchange import Exchange, distinct_rows, joined
from fedrows.flower.server.registry import Registry
from fedrows.flower.server.row_cache import RowCache, RowHashes
from fedrows.flower.wire.codings import ids_to_bytes
from fedrows.flower.wire.contract import Contract, digest
from fedrows.flower.wire.message import Message, WireError, pack, unpack
from fedrows.flower.wire.submodels import (
    SubmodelLayout,
    encode_submodels,
)
from fedrows.flower.wire.tags import tag_of
from fedrows.flower.wire.transport import Transport
from fedrows.flower.wire.upload_checks import UploadRefused, finite_clients, read_upload, too_long
from fedrows.robust import clip_norms_, trim
from fedrows.rows.heat import Heat
from fedrows.rows.index import Index
from fedrows.rows.params import Submodels
from fedrows.rows.schema import Schema
from fedrows.seeds import COHORT, choose

POLL = 0.1  # seconds between two looks for answers
PAUSE = 10.0  # seconds at most before a round is tried again


class FlowerFleet:
    """The clients of all nodes that have registered."""

    def __init__(
        self,
        contract: Contract,
        schema: Schema,
        registry: Registry,
        transport: Transport,
        fingerprint: str,
        run: str,
        log: Callable[[str], None] = print,
    ) -> None:
        self.contract, self.schema, self.registry, self.transport = (
            contract,
            schema,
            registry,
            transport,
        )
        self.run = run
        self.last: Exchange | None = None  # the newest round's
        self.rejected: Counter[str] = Counter()  # uploads, over the whole run
        self._fingerprint, self._log = fingerprint, log
        self._enrolment = Enrolment(
            transport, registry, fingerprint, self.rejected, lambda text: self._log(text)
        )
        self._row_cache = RowCache()
        self._changes: list[tuple[str, Message]] = []  # announced in this round's answers

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

    def heat(self) -> Mapping[str, Heat]:
        return self.registry.heat

    def draw(self, counter: int, count: int) -> Tensor:
        return choose(self.contract.plan.seed, COHORT, counter, self.clients, count)

    def open_round(self, round_: Round) -> OpenRound:
        return FlowerRound(self, round_, self.registry.index(round_.cohort.tolist()))

    def gather(self) -> None:
        """Asks nodes that are new to enrol, and takes in those that have answered.

        Before the first round it waits until there are enough, later only while there are too few.
        """
        terms, plan = self.contract.options, self.contract.plan
        logged = time.monotonic()
        while True:
            for name in self._enrolment.poll(self.run):
                self._row_cache.forget(name)
            clients, nodes = self.clients, len(self.registry.nodes)
            here = set(self.transport.nodes())
            near = [node for node in self.registry.nodes.values() if node.address in here]
            first = self.last is None and all(one.accepted == 0 for one in self.registry.clients)
            enough = clients >= plan.clients_per_round
            enough &= sum(len(node.clients) for node in near) >= self.least
            if first:
                enough &= clients >= (terms.min_clients or 0) and nodes >= terms.min_nodes
            if enough:
                if first:
                    self.registry.sort()
                return
            if time.monotonic() - logged > 10:
                logged = time.monotonic()
                self._log(
                    f"Waiting for nodes: {len(near)} are here, and {clients} clients are known."
                )
            time.sleep(POLL)

    def trained(
        self, cohort: Tensor, start: Submodels, sent: Submodels | None, round_: Round
    ) -> Upload:
        """What the nodes of a cohort send back."""
        began = time.perf_counter()
        tag = tag_of(round_.number)
        before = self.last
        again = before is not None and before.round == round_.number
        tries = 1 + before.tries if before is not None and again else 1
        self.last = exchange = Exchange(round_.number, tries, asked=len(cohort))
        hosts = self._by_node(cohort, exchange)
        messages, hashes = {}, {}
        for name, positions in hosts.items():
            message, hashes[name] = self._request(
                name, cohort, positions, start, sent, tag, exchange
            )
            messages[self.registry.nodes[name].address] = pack(message)
        exchange.messages = len(messages)
        exchange.bytes_down = sum(map(len, messages.values()))
        packed = time.perf_counter()
        answers = self._send_and_wait(messages, round_.number)
        waited = time.perf_counter()
        taken: dict[int, tuple[dict[str, Submodels], int]] = {}
        steps: dict[int, float] = {}
        losses: list[tuple[float, float]] = []
        for name, positions in hosts.items():
            answer = answers.get(self.registry.nodes[name].address, "it did not answer in time")
            if isinstance(answer, str):
                self._dropped(exchange, cohort, positions, answer)
                continue
            exchange.bytes_up += len(answer)
            self._read(
                name, cohort, positions, answer, tag, hashes[name], exchange, taken, steps, losses
            )
        upload = self._assemble(cohort, taken, steps, exchange)
        if losses:
            exchange.loss = sum(x * w for x, w in losses) / sum(w for _, w in losses)
        done = time.perf_counter()
        exchange.answered = len(upload.clients)
        exchange.seconds = {
            "pack": packed - began,
            "wait": waited - packed,
            "check": done - waited,
        }
        if exchange.answered >= self.least:
            for position in upload.clients.tolist():
                self.registry.clients[position].accepted = tag
        else:
            self._log(
                f"Round {exchange.round} is tried again: {exchange.answered} of {exchange.asked} "
                f"answered, and {self.least} are needed."
            )
            time.sleep(min(PAUSE, POLL * 2**tries))  # whatever is wrong gets time to pass
        self._apply_changes()
        return upload

    def _by_node(self, cohort: Tensor, exchange: Exchange) -> dict[str, list[int]]:
        """Which positions of the cohort each node that is here hosts, in its own order of them."""
        here, hosts = set(self.transport.nodes()), dict[str, list[int]]()
        for position, number in enumerate(cohort.tolist()):
            hosts.setdefault(self.registry.clients[number].node, []).append(position)
        found = {}
        for name, positions in hosts.items():
            if self.registry.nodes[name].address not in here:
                self._dropped(exchange, cohort, positions, "its node is away")
                continue
            order = {client: i for i, client in enumerate(self.registry.nodes[name].clients)}
            found[name] = sorted(positions, key=lambda p: order[self._name(cohort, p)])
        return found

    def _name(self, cohort: Tensor, position: int) -> Any:
        return self.registry.clients[int(cohort[position])].name

    def _dropped(self, exchange: Exchange, cohort: Tensor, positions: list[int], why: str) -> None:
        exchange.dropped.setdefault(why, []).extend(
            self._name(cohort, position) for position in positions
        )

    def _request(
        self,
        name: str,
        cohort: Tensor,
        positions: list[int],
        start: Submodels,
        sent: Submodels | None,
        tag: int,
        exchange: Exchange,
    ) -> tuple[Message, RowHashes]:
        """What a node is asked for, and which rows it will then have."""
        node = self.registry.nodes[name]
        order = {client: i for i, client in enumerate(node.clients)}
        members = [self.registry.clients[int(cohort[position])] for position in positions]
        facts = {
            "tag": tag,
            "run": self.run,
            "version": node.version,
            "contract": digest(self._fingerprint),
        }
        parts = {
            "positions": ids_to_bytes(torch.tensor([order[one.name] for one in members])),
            "numbers": _eight([int(cohort[position]) for position in positions]),
            "accepted": _eight([one.accepted for one in members]),
        }
        exact = "float64" if self.contract.plan.dtype == "float64" else "float32"
        model = distinct_rows(start, positions)
        hashes: RowHashes = {}
        if self.contract.options.row_cache:
            facts["base"] = self._row_cache.tag(name)
            same, hashes, spared = self._row_cache.blank_known_(name, model)
            parts |= same
            exchange.rows_spared += spared
        parts |= encode_submodels("model", model, exact)
        if sent is not None:
            parts |= encode_submodels("sent", distinct_rows(sent, positions), exact)
        return Message("train", facts, parts), hashes

    def _send_and_wait(self, messages: Mapping[int, bytes], round_: int) -> dict[int, bytes | str]:
        """Sends messages and waits for their answers, at most as long as the terms say."""
        if not messages:
            return {}
        seconds = self.contract.options.timeout
        until = time.monotonic() + seconds
        waiting = self.transport.send(messages, seconds, round_)
        found: dict[int, bytes | str] = {}
        while waiting and time.monotonic() < until:
            for message_id, answer in self.transport.receive(waiting).items():
                found[waiting.pop(message_id)] = answer
            if waiting:
                time.sleep(POLL)
        for message_id, answer in (self.transport.receive(waiting) if waiting else {}).items():
            found[waiting.pop(message_id)] = answer  # what came while it slept
        return found

    def _read(
        self,
        name: str,
        cohort: Tensor,
        positions: list[int],
        answer: bytes,
        tag: int,
        hashes: RowHashes,
        exchange: Exchange,
        taken: dict[int, tuple[dict[str, Submodels], int]],
        steps: dict[int, float],
        losses: list[tuple[float, float]],
    ) -> None:
        """Takes from a node's answer what can be trusted."""
        plan = self.contract.plan
        if self._is(answer, "state-lost"):
            self._row_cache.forget(name)
            self.registry.nodes[name].address = 0  # it is greeted again
            self._dropped(exchange, cohort, positions, "its node has lost its state")
            return
        index = self.registry.index(int(cohort[position]) for position in positions)
        forms = {
            "update": SubmodelLayout(index, self.schema, self.contract.coding, plan.torch_dtype)
        }
        for extra in self.contract.algorithm.returns:
            forms[extra] = forms["update"]
        most = plan.local_steps if plan.batches == "draw" else 2**31 // max(len(positions), 1) - 2
        try:
            message, found, done = read_upload(answer, forms, tag, most)
        except UploadRefused as error:
            self._refuse(exchange, error.reason, f"node {name!r}", str(error))
            return
        self._row_cache.confirm(name, hashes, tag)
        good = finite_clients(found)
        reported = np.frombuffer(
            message.parts.get("losses", b"")[: 4 * len(positions)], dtype="<f4"
        )
        for i, position in enumerate(positions):
            number = int(cohort[position])
            if not good[i]:
                who = f"client {self.registry.clients[number].name!r}"
                self._refuse(exchange, "not finite", who, "a number that is not finite")
                continue
            taken[position] = found, i
            steps[position] = float(done[i])
            if i < len(reported) and np.isfinite(reported[i]):
                losses.append((float(reported[i]), float(self.weights[number])))
        if message.facts.get("changes"):
            self._changes.append((name, message))

    def _is(self, answer: bytes, kind: str) -> bool:
        if len(answer) > 4096:
            return False
        try:
            return unpack(answer).kind == kind
        except WireError:
            return False

    def _refuse(self, exchange: Exchange, reason: str, who: str, why: str) -> None:
        exchange.refused.setdefault(reason, []).append(who)
        self.rejected[reason] += 1
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

    def _assemble(
        self,
        cohort: Tensor,
        taken: Mapping[int, tuple[dict[str, Submodels], int]],
        steps: Mapping[int, float],
        exchange: Exchange,
    ) -> Upload:
        """The updates that can be trusted, in cohort order, as one."""
        order = sorted(taken)
        while True:
            who = cohort[torch.tensor(order, dtype=torch.int64)]
            index = self.registry.index(who.tolist())
            names = ["update", *self.contract.algorithm.returns]
            parts = {name: joined(index, [taken[p] for p in order], name, self.schema,
                                   self.contract.plan.torch_dtype) for name in names}  # fmt: skip
            if not order:
                break
            correction = self.contract.algorithm.correction(
                index, self.heat(), self.contract.plan.torch_dtype
            )
            bad = too_long(parts["update"], correction, self.contract.options.max_norm)
            if not bad.any():
                break
            for i in bad.nonzero().view(-1).tolist():
                client = f"client {self._name(cohort, order[i])!r}"
                self._refuse(exchange, "too long", client, "an update longer than any honest one")
            order = [position for position, out in zip(order, bad.tolist(), strict=True) if not out]
        update = parts.pop("update")
        if order and self.contract.options.robust == "clip":
            clip_norms_(update, self.contract.options.clip_norm)
        if order and self.contract.options.robust == "trim":
            update = trim(update, self.contract.options.trim_share)
        done = torch.tensor([steps[position] for position in order], dtype=torch.float64)
        return Upload(who, update, done, parts, None)


@dataclass
class FlowerRound:
    """A round of clients on nodes."""

    fleet: FlowerFleet
    round: Round
    index: Mapping[str, Index]

    def train(self, start: Submodels, sent: Submodels | None) -> Upload:
        return self.fleet.trained(self.round.cohort, start, sent, self.round)

    @property
    def traffic(self) -> Traffic:
        """The bytes that went over the network."""
        last = self.fleet.last
        assert last is not None, "it has trained"
        return Traffic(last.bytes_down, last.bytes_up)


def _eight(numbers: list[int]) -> bytes:
    return np.array(numbers, dtype="<i8").tobytes()
