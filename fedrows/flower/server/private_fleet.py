"""A deployed fleet whose server never sees an index set, nor anybody's update.

    heat       a secure sum of all nodes' counts, before the first round and after enough changed
    a round    a private union of the cohort's rows, of which each node asks for some;
               rows go out, and what nodes made of them comes back as one secure sum, of which a row
               opens only if enough nodes really hold it

What the server makes of it is `privacy.server_side`; here are the messages and who answers them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from torch import Tensor

from fedrows.algorithm import Round
from fedrows.client import Upload
from fedrows.errors import PlanError
from fedrows.flower.server.exchange import Exchange
from fedrows.flower.server.fleet import FlowerRound
from fedrows.flower.server.private_sums import PrivateSumFleet, UnitedRows
from fedrows.flower.server.round_sums import Hosts, RoundUnion, RoundUpdate
from fedrows.flower.server.sum_exchange import Lane, carried
from fedrows.privacy.protocol import ProtocolError
from fedrows.privacy.ring import RangeError
from fedrows.rows.params import Submodels

R = TypeVar("R")


class PrivateFlowerFleet(PrivateSumFleet):
    """The clients of all nodes, of which the server learns a sum in every round."""

    unions_ahead = 3  # of the next rounds: the last one exchanges keys only

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self._unions: dict[int, RoundUnion] = {}  # of rounds to come
        self._keys_of_update: RoundUpdate | None = None  # of the next round

    def open_round(self, round_: Round) -> PrivateFlowerRound:
        """Finds the cohort's rows by a private union, and asks each node which it wants.

        A node's rows stand at the first of its clients; the others have none.
        """
        hosts, opened = self._hosts(round_.cohort), PrivateFlowerRound(self, round_, {})
        if len(hosts) >= self.fewest_nodes:
            self._unite_(opened, self._asking(self._union_of(round_.number, round_.cohort, hosts)))
        opened.index = self._index_of(opened.asked, hosts, len(round_.cohort))
        return opened

    def exceeds(self, number: int) -> str:
        """Why a round must not be run; nothing if it may, or its answers are paid for already."""
        union_ = self._unions.get(number)
        paid = union_ is not None and union_.is_asked and union_.lane.everybody
        return "" if paid else super().exceeds(number)

    def _union_of(self, number: int, cohort: Tensor, hosts: Hosts) -> RoundUnion:
        """The union of a round: the one under way, or if that does not serve, a new one."""
        begun = self._unions.pop(number, None)
        whom = self._whom_all(cohort, hosts)
        if begun is not None and begun.serves_for(number, cohort, hosts, whom):
            return begun
        self._unions.clear()  # a newer union that asks for vectors makes nodes forget older keys
        return self._new_union(number, cohort, hosts)

    def _look_ahead(self, number: int) -> list[Lane[Any]]:
        """What a round does for those after it: unions, the next one first, and keys of updates."""
        unions: dict[int, RoundUnion] = {}
        for coming in range(number + 1, number + 1 + self.unions_ahead):
            due = self._due(coming)
            if due is None or self.exceeds(coming):
                break
            union_ = self._union_of(coming, *due)
            if not union_.is_asked and self.accounts.exceeds(coming):
                break
            unions[coming] = union_
        self._unions = unions
        if not unions:
            return []
        next_ = self._asking(unions[number + 1])
        self._keys_of_update = self._begin_update(number + 1, next_.hosts)
        return [*(one.lane for one in unions.values()), self._keys_of_update.lane]

    def _ask_second(self, number: int) -> None:
        """Has the second union after a round ask for vectors, when the next one is opened."""
        second = self._unions.get(number + 2)
        if second is not None and not self.exceeds(number + 2):
            self._asking(second)

    def _due(self, number: int) -> tuple[Tensor, Hosts] | None:
        """Whom a round will ask as things stand; None if there is no such round, or nobody yet."""
        if number > self.contract.plan.rounds:
            return None
        hosts = self._hosts(cohort := self.draw(number, self.contract.plan.clients_per_round))
        return (cohort, hosts) if len(hosts) >= self.fewest_nodes else None

    def _unite_(self, opened: PrivateFlowerRound, round_union: RoundUnion) -> None:
        lane = round_union.lane
        try:
            united = self._carry(lane)
        except (ProtocolError, PlanError) as error:
            self._log(f"The round's union failed: {error}")
            return
        asked = round_union.asked(self._keys(lane.sum), united)
        opened.united = UnitedRows(lane.sum, united, asked)

    def summed(self, open_: PrivateFlowerRound, start: Submodels) -> Upload:
        """The mean of what the nodes of an open round have made of their rows."""
        round_, cohort = open_.round, open_.round.cohort
        exchange = self._begin_exchange(round_)
        hosts = {n: who for n, who in self._hosts(cohort).items() if n in open_.asked}
        for node, positions in self._hosts(cohort).items():
            if node not in hosts:
                self._dropped(exchange, cohort, positions, "its node did not answer in the union")
        united = open_.united
        if united is not None:
            united.union.add_traffic_(exchange)
        if len(hosts) < self.fewest_nodes or united is None:
            return self._failed(exchange, cohort, {}, f"{len(hosts)} nodes are too few")
        number = round_.number
        coding = self._coding(cohort, hosts)  # a range too large ends the run
        try:
            update, self._keys_of_update = self._keys_of_update, None
            agreed = self._agree(number, united, cohort, hosts, start, coding, update)
            lane = agreed.update.lane
            beside = [] if united.union.silent else self._look_ahead(number)
            result = self._carry(lane, beside, lambda: self._ask_second(number))
            if not beside:
                carried(self._sum_course.last(), self._send_by_name)
            inside, places, mean = self._mean_from(agreed, result)
        except (ProtocolError, PlanError, RangeError) as error:
            return self._failed(exchange, cohort, hosts, str(error))
        sum_, tag, clients = lane.sum, agreed.tag, cohort[places]
        sum_.add_traffic_(exchange)
        self.answers |= dict.fromkeys(inside, "")
        for node, own_positions in hosts.items():
            if node not in inside:
                why = sum_.silent.get(node, "it dropped out of the secure sum")
                self._dropped(exchange, cohort, own_positions, why)
        if mean is None:
            why = self._why_nothing(agreed, result)
            self._log(f"Round {round_.number}: nothing was opened ({why}).")
        exchange.loss = None if mean is None else mean.loss
        upload = self._pseudo_upload(clients, mean)
        exchange.answered = len(upload.clients)
        if exchange.answered >= self.least:
            for number in clients.tolist():
                self.registry.clients[number].accepted = tag
        else:
            self._pause(exchange)
        return upload

    def _failed(
        self, exchange: Exchange, cohort: Tensor, hosts: Mapping[str, list[int]], why: str
    ) -> Upload:
        """Says why a round has no sum, and gives an upload of nobody, so that it is tried again."""
        self._log(f"Round {exchange.round}: there is no secure sum: {why.rstrip('.')}.")
        for positions in hosts.values():
            self._dropped(exchange, cohort, positions, "the secure sum failed")
        self._pause(exchange)
        return self._pseudo_upload(cohort[:0], None)


@dataclass
class PrivateFlowerRound(FlowerRound):
    """A round whose nodes have asked for rows over the private union of its cohort."""

    fleet: PrivateFlowerFleet
    united: UnitedRows | None = None  # None: there is no union, or there were too few nodes

    @property
    def asked(self) -> Mapping[str, np.ndarray]:
        """Which places of the union each node asks for."""
        return {} if self.united is None else self.united.asked

    def train(self, start: Submodels, sent: Submodels | None) -> Upload:
        return self.fleet.summed(self, start)
