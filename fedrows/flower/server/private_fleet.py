"""A deployed fleet whose server never sees an index set, nor anybody's update.

    heat       a secure sum of all nodes' counts, before the first round and after enough changed
    a round    a private union of the cohort's rows, of which each node asks for some;
               rows go out, and what nodes made of them comes back as one secure sum, of which a row
               opens only if enough nodes really hold it

What the server makes of it is `privacy.server_side`; here are the messages and who answers them.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import safetensors
import safetensors.torch
import torch
from torch import Tensor

from fedrows.algorithm import Round
from fedrows.client import Upload
from fedrows.errors import PlanError
from fedrows.files.whole import write_private
from fedrows.flower.server.exchange import Exchange, distinct_rows
from fedrows.flower.server.fleet import PAUSE, FlowerFleet, FlowerRound
from fedrows.flower.server.sum_exchange import SumExchange, SumNames, carry
from fedrows.flower.wire.codings import ids_from_bytes
from fedrows.flower.wire.contract import digest
from fedrows.flower.wire.message import Message, WireError
from fedrows.flower.wire.signing import read_peers
from fedrows.flower.wire.submodels import encode_submodels
from fedrows.flower.wire.sums import (
    heat_terms,
    row_space,
    union_terms,
    update_terms,
    weighted_mean,
)
from fedrows.flower.wire.tags import tag_of
from fedrows.privacy import openings, secure_sum, union
from fedrows.privacy.accounts import Accounts
from fedrows.privacy.protocol import ProtocolError, ServerHalf
from fedrows.privacy.ring import Coding
from fedrows.privacy.server_side import heat_from, pseudo_upload
from fedrows.privacy.weighted_mean import Mean
from fedrows.rows.heat import Heat
from fedrows.rows.params import Submodels

R = TypeVar("R")


class PrivateFlowerFleet(FlowerFleet):
    """The clients of all nodes, of which the server learns sums."""

    def __init__(self, *args: Any, peers: Path) -> None:
        super().__init__(*args)
        self._peers, self._names = read_peers(peers), SumNames()
        self._heat_file: Path | None = None
        tables = tuple(self.registry.tables)
        self.space = row_space(self.schema, tables)
        self.mean = weighted_mean(self.contract, self.schema, tables)
        self._heat: dict[str, Heat] | None = None
        self._counted: set[tuple[str, Any]] = set()  # whose data are in the heat
        plan = self.contract.plan
        self.accounts = Accounts(self.contract.privacy, plan.clients_per_round, self.clients)
        for table, rows in self.space.sizes.items():
            self.accounts.bound_(table, rows)

    def keep_in(self, path: Path) -> None:
        """Keeps the heat in a file; one that is there is read, for counting again may show much.

        The difference of two exact counts is the set of whoever was in one of them only.
        """
        self._heat_file = path
        if not path.exists():
            return
        with safetensors.safe_open(path, framework="pt") as file:
            facts = json.loads((file.metadata() or {})["fedrows"])
            self._heat = {
                table: Heat(
                    file.get_tensor(f"{table}/ids"), file.get_tensor(f"{table}/counts"), total
                )
                for table, total in facts["totals"].items()
            }
        self._counted = {(node, name) for node, name in facts["counted"]}

    def _keep(self) -> None:
        if self._heat_file is None or self._heat is None:
            return
        tensors = {}
        for table, heat in self._heat.items():
            tensors[f"{table}/ids"], tensors[f"{table}/counts"] = heat.ids, heat.counts
        totals = {table: heat.total for table, heat in self._heat.items()}
        facts = {"totals": totals, "counted": sorted(self._counted, key=str)}
        data = safetensors.torch.save(tensors, {"fedrows": json.dumps(facts)})
        write_private(self._heat_file, data)

    def heat(self) -> Mapping[str, Heat]:
        assert self._heat is not None, "gather counts it"
        return self._heat

    def gather(self) -> None:
        """Takes in nodes; counts heat anew when so many clients changed that none is shown."""
        super().gather()
        now = {(one.node, one.name) for one in self.registry.clients}
        batch = max(2, self.contract.privacy.min_contributors)
        if self._heat is None or len(now ^ self._counted) >= batch:
            hosted = self._count_until_enough()
            self._counted = {(node, name) for node, name in now if node in hosted}
            self._keep()

    def _count_until_enough(self) -> set[str]:
        """Counts heat, again and again until enough nodes come through."""
        while True:
            try:
                return self._count()
            except (ProtocolError, PlanError) as error:
                self._log(f"Heat is counted again: {error}")
            time.sleep(PAUSE)
            super().gather()

    def _count(self) -> set[str]:
        """Counts heat by a secure sum; gives the nodes that are in it."""
        here = set(self.transport.nodes())
        nodes = sorted(n for n, its in self.registry.nodes.items() if its.address in here)
        sum_ = self._exchange("heat", nodes)
        terms = heat_terms(self.contract, sum_.facts, self.space)
        total = self._carry(sum_, _closed(secure_sum.server(terms, self._keys(sum_))))
        hosted = {sum_.parties[number] for number in total.clients}
        weights = [
            float(w)
            for one, w in zip(self.registry.clients, self.weights, strict=True)
            if one.node in hosted
        ]
        self._heat = heat_from(total.values, self.space, sum(weights))
        self._log(f"Heat is counted by secure sum of {len(total.clients)} nodes.")
        return hosted

    def open_round(self, round_: Round) -> PrivateFlowerRound:
        """Finds the cohort's rows by a private union, and asks each node which it wants.

        A node's rows stand at the first of its clients; the others have none.
        """
        hosts, opened = self._hosts(round_.cohort), PrivateFlowerRound(self, round_, {})
        if len(hosts) >= 2:
            self._unite_(opened, hosts)
        first = {positions[0]: node for node, positions in hosts.items()}
        nothing = np.empty(0, dtype=np.int64)
        opened.index = self.space.index(
            [
                opened.asked.get(first.get(position, ""), nothing)
                for position in range(len(round_.cohort))
            ]
        )
        return opened

    def _unite_(self, opened: PrivateFlowerRound, hosts: Mapping[str, list[int]]) -> None:
        cohort = opened.round.cohort
        sum_ = self._exchange("union", sorted(hosts))
        sum_.first = {node: self._whom(cohort, node, its) for node, its in hosts.items()}
        try:
            plan, terms = union_terms(self.contract, sum_.facts, self.space)
            united = self._carry(sum_, union.server(terms, plan, self._keys(sum_)))
        except (ProtocolError, PlanError) as error:
            self._log(f"The round's union failed: {error}")
            return
        opened.union, opened.places, count = sum_, united.ids, len(united.ids)
        for node, message in sum_.last.items():
            try:
                asked = ids_from_bytes(message.parts["asked"], count, count)
            except (WireError, KeyError):
                continue
            opened.asked[node] = united.ids[asked.numpy()]
        answered = [int(cohort[position]) for node in opened.asked for position in hosts[node]]
        self.accounts.answered_(opened.round.number, map(self._stable, answered))

    def _stable(self, number: int) -> int:
        """A number of a client that stays its own when others come and go."""
        one = self.registry.clients[number]
        key = json.dumps([one.node, one.name]).encode()
        return int.from_bytes(hashlib.sha256(key).digest()[:8], "big")

    def state(self) -> dict[str, Any]:
        """What the checkpoint keeps of the privacy that was spent."""
        return self.accounts.state()

    def tensors(self) -> dict[str, Tensor]:
        """Nothing more: heat has a file of its own."""
        return {}

    def restore_(self, tensors: Any, state: Mapping[str, Any], round_: int) -> None:
        """Takes back what `state` gave."""
        self.accounts.restore_(state)

    def summed(self, open_: PrivateFlowerRound, start: Submodels) -> Upload:
        """The mean of what the nodes of an open round have made of their rows."""
        round_, cohort, before = open_.round, open_.round.cohort, self.last
        tries = before.tries + 1 if before and before.round == round_.number else 1
        self.last = exchange = Exchange(round_.number, tries, asked=len(cohort))
        hosts = {n: its for n, its in self._hosts(cohort).items() if n in open_.asked}
        for node, positions in self._hosts(cohort).items():
            if node not in hosts:
                self._dropped(exchange, cohort, positions, "its node did not answer in the union")
        if open_.union is not None:
            _add_traffic(exchange, open_.union)
        if len(hosts) < 2 or open_.union is None:
            return self._pseudo_upload(cohort[:0], None)
        tag, layout = tag_of(round_.number), self.mean.layout(self.space.by_table(open_.places))
        coding = self._coding(cohort, hosts)
        about = {"union": open_.union.facts["sum"], "tag": tag, "coding": asdict(coding)}
        sum_ = self._exchange("update", sorted(hosts), **about)
        sum_.first = {node: self._work(cohort, node, its, start) for node, its in hosts.items()}
        try:
            plan, terms = update_terms(self.contract, sum_.facts, layout)
            result = self._carry(sum_, openings.server(plan, terms, self._keys(sum_)))
        except (ProtocolError, PlanError) as error:
            self._log(f"Round {round_.number}: the secure sum failed: {error}")
            for positions in hosts.values():
                self._dropped(exchange, cohort, positions, "the secure sum failed")
            return self._pseudo_upload(cohort[:0], None)
        _add_traffic(exchange, sum_)
        inside = {sum_.parties[number] for number in result.total.clients}
        for node, positions in hosts.items():
            if node not in inside:
                why = sum_.silent.get(node, "it dropped out of the secure sum")
                self._dropped(exchange, cohort, positions, why)
        opened = layout.opened(result.rows.reshape(-1), result.opened, result.extra, coding)
        mean = self.mean.mean(opened, layout)
        positions = sorted(position for node in inside for position in hosts[node])
        clients = cohort[torch.tensor(positions, dtype=torch.int64)]
        exchange.loss = None if mean is None else mean.loss
        upload = self._pseudo_upload(clients, mean)
        exchange.answered = len(upload.clients)
        if exchange.answered >= self.least:
            for node in inside:
                self.registry.nodes[node].held = tag
            for number in clients.tolist():
                self.registry.clients[number].accepted = tag
        return upload

    def _pseudo_upload(self, clients: Tensor, mean: Mean | None) -> Upload:
        return pseudo_upload(clients, mean, self.contract.plan.torch_dtype, torch.device("cpu"))

    def _coding(self, cohort: Tensor, hosts: Mapping[str, list[int]]) -> Coding:
        """How numbers are written: precise after the largest correction of the algorithm."""
        weights = np.array([float(self.weights[cohort[its]].sum()) for its in hosts.values()])
        correction = self.contract.algorithm.largest_correction(self.heat())
        least = self.contract.privacy.least(len(hosts))
        return self.mean.coding(weights, len(hosts), least, correction)

    def _hosts(self, cohort: Tensor) -> dict[str, list[int]]:
        """Which positions of the cohort each node that is here hosts."""
        here, hosts = set(self.transport.nodes()), dict[str, list[int]]()
        for position, number in enumerate(cohort.tolist()):
            name = self.registry.clients[number].node
            if self.registry.nodes[name].address in here and name in self._peers:
                hosts.setdefault(name, []).append(position)
        return hosts

    def _whom(self, cohort: Tensor, node: str, positions: list[int]) -> Message:
        """Which of its clients a node is asked for."""
        order = {client: i for i, client in enumerate(self.registry.nodes[node].clients)}
        clients = [self.registry.clients[int(cohort[position])] for position in positions]
        facts = {
            "places": [order[one.name] for one in clients],
            "numbers": [int(cohort[position]) for position in positions],
            "accepted": [one.accepted for one in clients],
            "version": self.registry.nodes[node].version,
            "held": self.registry.nodes[node].held,
        }
        return Message("sum", facts, {})

    def _work(self, cohort: Tensor, node: str, positions: list[int], start: Submodels) -> Message:
        """What a node trains on: the rows it asked for."""
        message = self._whom(cohort, node, positions)
        exact = self.contract.plan.dtype
        message.parts |= encode_submodels("model", distinct_rows(start, positions), exact)
        return message

    def _exchange(self, use: str, nodes: list[str], **more: Any) -> SumExchange:
        """A new sum with some nodes."""
        if len(nodes) < 2:
            raise PlanError(
                "A secure sum needs at least 2 nodes that are here and whose keys are known."
            )
        parties = dict(enumerate(nodes, start=1))
        facts = {
            "sum": self._names.make(),
            "use": use,
            "run": self.run,
            "contract": digest(self._fingerprint),
            "parties": {str(number): node for number, node in parties.items()},
            **more,
        }
        return SumExchange(parties, facts)

    def _carry(self, sum_: SumExchange, half: ServerHalf[R]) -> R:
        """Runs a protocol with the nodes to its end."""
        try:
            return carry(sum_, half, self._send_by_name)
        finally:
            for name in sum_.newest:
                self._names.learn_(name)
            for node in sum_.lost:
                self.registry.nodes[node].address = 0  # it is asked to enrol again

    def _keys(self, sum_: SumExchange) -> dict[int, bytes]:
        return {number: self._peers[node] for number, node in sum_.parties.items()}

    def _send_by_name(self, messages: Mapping[str, bytes]) -> dict[str, bytes | str]:
        """Sends messages to nodes by name, and waits for their answers."""
        names = {self.registry.nodes[node].address: node for node in messages}
        sent = {self.registry.nodes[node].address: data for node, data in messages.items()}
        received = self._send_and_wait(sent, self.last.round if self.last else 0)
        answers: dict[str, bytes | str] = {node: "it did not answer in time" for node in messages}
        return answers | {names[address]: answer for address, answer in received.items()}


@dataclass
class PrivateFlowerRound(FlowerRound):
    """A round whose nodes have asked for rows over the private union of its cohort."""

    fleet: PrivateFlowerFleet
    union: SumExchange | None = None  # None: it failed, or there were too few nodes
    places: np.ndarray = field(default_factory=lambda: np.empty(0, dtype=np.int64))  # of the union
    asked: dict[str, np.ndarray] = field(default_factory=dict)  # node → the places it asks for

    def train(self, start: Submodels, sent: Submodels | None) -> Upload:
        return self.fleet.summed(self, start)


def _closed(
    half: ServerHalf[secure_sum.SumResult],
) -> ServerHalf[secure_sum.SumResult]:
    """A sum that tells its clients when it is over, so that they forget it."""
    total = yield from half
    yield dict.fromkeys(total.answering, b"")
    return total


def _add_traffic(exchange: Exchange, sum_: SumExchange) -> None:
    exchange.bytes_down += sum_.bytes_down
    exchange.bytes_up += sum_.bytes_up
    exchange.messages += sum_.messages
