"""A deployed fleet whose server never sees an index set, nor anybody's update.

    heat       a secure sum of all nodes' counts, before the first round and after enough changed
    a round    a private union of the cohort's rows, of which each node asks for some;
               rows go out, and what nodes made of them comes back as one secure sum, of which a row
               opens only if enough nodes really hold it

What the server makes of it is `privacy.server_side`; here are the messages and who answers them.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from fedrows.algorithm import Round
from fedrows.client import Upload
from fedrows.errors import PlanError
from fedrows.flower.server.exchange import Exchange, distinct_rows
from fedrows.flower.server.fleet import PAUSE, FlowerRound
from fedrows.flower.server.heat_file import load_heat, save_heat
from fedrows.flower.server.heat_sum import closed, whole
from fedrows.flower.server.round_union import Hosts, RoundUnion
from fedrows.flower.server.round_update import RoundUpdate
from fedrows.flower.server.sum_exchange import Lane, SumExchange, SumWork
from fedrows.flower.server.sum_fleet import SumFleet
from fedrows.flower.wire.message import Message
from fedrows.flower.wire.model_digests import DIGESTS, model_digests, model_name
from fedrows.flower.wire.submodels import encode_submodels
from fedrows.flower.wire.sums import (
    Groups,
    heat_terms,
    row_space,
    union_terms,
    update_parties,
    update_terms,
    weighted_mean,
)
from fedrows.flower.wire.tags import tag_of
from fedrows.privacy import secure_sum, union
from fedrows.privacy.accounts import Accounts, BudgetSpentError, Releasable
from fedrows.privacy.heat_counts import HeatCounts, Member, least_parties
from fedrows.privacy.mean_bounds import bounded
from fedrows.privacy.noisy_coding import NoisyCoding
from fedrows.privacy.protocol import ProtocolError, ServerHalf
from fedrows.privacy.ring import Coding, RangeError
from fedrows.privacy.server_side import SumMechanism, heat_from, pseudo_upload
from fedrows.privacy.terms import SumTerms
from fedrows.privacy.values import derived
from fedrows.privacy.weighted_mean import Mean
from fedrows.rows.heat import Heat
from fedrows.rows.index import Index
from fedrows.rows.params import Submodels

RECOUNTS = 2  # that may fail; nodes bear few counts
R = TypeVar("R")


class PrivateFlowerFleet(SumFleet):
    """The clients of all nodes, of which the server learns sums.

    groups: table → its groups of rows, as the nodes' data have them.
    """

    unions_ahead = 3  # of the next rounds: the last one exchanges keys only

    def __init__(self, *args: Any, peers: Path, groups: Groups) -> None:
        super().__init__(*args, peers=peers)
        self._heat_file: Path | None = None
        tables = tuple(self.registry.tables)
        self.space = row_space(self.schema, tables)
        self.mean = weighted_mean(self.contract, self.schema, tables, groups)
        self._heat: dict[str, Heat] | None = None
        self._unions: dict[int, RoundUnion] = {}  # of rounds to come
        self._keys_of_update: RoundUpdate | None = None  # of the next round
        plan, privacy = self.contract.plan, self.contract.privacy
        self._lost_counts = 0  # of heat, after the first one
        self._counts = HeatCounts(least_parties(privacy.min_contributors, privacy.colluding))
        # Clients come and go: nobody knows of how many a cohort is drawn, and nothing is amplified.
        self.accounts = Accounts(privacy, plan.clients_per_round, 0)
        for table, rows in self.space.sizes.items():
            all_rows = Index(torch.arange(rows), torch.tensor([0, rows]))
            self.accounts.know_(table, all_rows, derived(groups.get(table, {})))

    @property
    def _has_heat(self) -> bool:
        return self._heat is not None

    def keep_in(self, path: Path) -> None:
        """Keeps the heat in a file, and goes on from what is there: counting again shows more."""
        self._heat_file = path
        if path.exists():
            self._heat, self._counts.counts = load_heat(path)

    @property
    def fewest_nodes(self) -> int:
        """How many nodes a secure sum needs."""
        privacy = self.contract.privacy
        return max(privacy.colluding + 2, privacy.openers, privacy.min_contributors)

    def heat(self) -> Mapping[str, Heat]:
        assert self._heat is not None, "gather counts it"
        return self._heat

    def gather(self) -> None:
        """Takes in nodes; counts heat anew when so many came or left that none is shown."""
        super().gather()
        if self._heat is None:
            self._count_until_enough()
        elif self._lost_counts < RECOUNTS and self._counts.may_count(
            self._members(nodes := self._nodes_here())
        ):
            try:
                self._count(nodes, complete=True)
            except (ProtocolError, PlanError) as error:
                self._lost_counts += 1
                self._log(f"Heat stays as it was counted before: {error}")

    def _count_until_enough(self) -> None:
        """Counts heat, again and again until enough nodes come through."""
        while True:
            try:
                return self._count(self._nodes_here())
            except (ProtocolError, PlanError) as error:
                self._log(f"Heat is counted again: {error}")
            time.sleep(PAUSE)
            super().gather()

    def _count(self, nodes: list[str], complete: bool = False) -> None:
        """Counts heat by a secure sum of some nodes; of all of them or not at all, if complete."""
        sum_ = self._exchange("heat", nodes)
        sum_.work = SumWork({})
        terms = heat_terms(self.contract, sum_.facts, self.space)
        half = secure_sum.server(terms, self._keys(sum_))
        total = self._carry(Lane(sum_, closed(whole(half) if complete else half)))
        members = self._members([sum_.parties[number] for number in total.clients])
        self._heat = heat_from(total.values, self.space, len(members))
        self._counts.add_(members)
        if self._heat_file is not None:
            save_heat(self._heat_file, self._heat, self._counts.counts)
        self._log(f"Heat is counted by secure sum of {len(total.clients)} nodes.")

    def _nodes_here(self) -> list[str]:
        here = set(self.transport.nodes())
        return sorted(n for n, its in self.registry.nodes.items() if its.address in here)

    def _members(self, nodes: list[str]) -> set[Member]:
        return {(one.node, one.name) for one in self.registry.clients if one.node in nodes}

    def open_round(self, round_: Round) -> PrivateFlowerRound:
        """Finds the cohort's rows by a private union, and asks each node which it wants.

        A node's rows stand at the first of its clients; the others have none.
        """
        hosts, opened = self._hosts(round_.cohort), PrivateFlowerRound(self, round_, {})
        if len(hosts) >= self.fewest_nodes:
            self._unite_(opened, self._asking(self._union_of(round_.number, round_.cohort, hosts)))
        first = {positions[0]: node for node, positions in hosts.items()}
        nothing = np.empty(0, dtype=np.int64)
        opened.index = self.space.index(
            [
                opened.asked.get(first.get(position, ""), nothing)
                for position in range(len(round_.cohort))
            ]
        )
        return opened

    def exceeds(self, number: int) -> str:
        """Why a round must not be run; nothing if it may, or its answers are paid for already."""
        union_ = self._unions.get(number)
        paid = union_ is not None and union_.is_asked and union_.lane.everybody
        return "" if paid else self.accounts.exceeds(number)

    def _union_of(self, number: int, cohort: Tensor, hosts: Hosts) -> RoundUnion:
        """The union of a round: the one under way, or if that does not serve, a new one."""
        begun = self._unions.pop(number, None)
        whom = self._whom_all(cohort, hosts)
        if begun is not None and begun.serves_for(number, cohort, hosts, whom):
            return begun
        self._unions.clear()  # a newer union that asks for vectors makes nodes forget older keys
        sum_ = self._exchange("union", sorted(hosts), round=number)
        plan, terms = union_terms(self.contract, sum_.facts, self.space)
        lane = Lane(sum_, self._union_half(terms, plan, sum_))
        return RoundUnion(number, cohort, hosts, terms, lane)

    def _asking(self, begun: RoundUnion) -> RoundUnion:
        """A union that asks its nodes with the next messages; answers are in the ledger first."""
        if begun.is_asked:
            return begun
        if why := self.accounts.exceeds(begun.round):  # as when a round is tried again
            raise BudgetSpentError(f"{why}: raise max-epsilon to go on.")
        asked = map(self.registry.lasting_number, begun.clients_asked())
        self.accounts.answered_(begun.round, asked)
        begun.lane.work_(SumWork(self._whom_all(begun.cohort, begun.hosts)))
        return begun

    def _begin_update(self, number: int, hosts: Hosts) -> RoundUpdate:
        """The sum of updates of a round, of which no message is sent yet."""
        sum_ = self._exchange("update", sorted(hosts), round=number)
        terms = update_parties(self.contract, sum_.facts)
        return RoundUpdate(number, sum_, terms, self._keys(sum_))

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
        opened.union, opened.places = lane.sum, united
        opened.asked = round_union.asked(self._keys(lane.sum), united)

    def _union_half(
        self, terms: SumTerms, plan: union.UnionPlan, sum_: SumExchange
    ) -> ServerHalf[np.ndarray]:
        """The server's half in finding the rows of a cohort, which returns them."""
        united = yield from union.server(terms, plan, self._keys(sum_))
        return united.ids

    def keep_ledger_(self, path: Path, round_: int) -> None:
        """Keeps the ledger in a file, on the disk before what it pays for is used."""
        self.accounts.keep_in_(path, round_)

    def releasable(self) -> Releasable | None:
        """What may leave the run beside the model; nothing, for the model has no ε."""
        return None

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
        round_, cohort = open_.round, open_.round.cohort
        exchange = self._begin_exchange(round_)
        hosts = {n: its for n, its in self._hosts(cohort).items() if n in open_.asked}
        for node, positions in self._hosts(cohort).items():
            if node not in hosts:
                self._dropped(exchange, cohort, positions, "its node did not answer in the union")
        if open_.union is not None:
            open_.union.add_traffic_(exchange)
        if len(hosts) < self.fewest_nodes or open_.union is None:
            return self._failed(exchange, cohort, {}, f"{len(hosts)} nodes are too few")
        tag, summing = tag_of(round_.number), self._mean_of(len(hosts))
        layout = summing.layout(self.space.by_table(open_.places))
        coding = self._coding(cohort, hosts)  # a range that no word can hold ends the run
        try:
            name = open_.union.facts["sum"]
            heat = (self._heat or {}) if self.contract.privacy.noise_in_sum else {}  # that is sent
            digests = model_digests(name, start, heat, self.space, open_.places)
            about = {"union": name, "tag": tag, "model": model_name(digests)}
            about["coding"] = asdict(coding)
            first = {node: self._work(cohort, node, its, start) for node, its in hosts.items()}
            update = self._keys_of_update
            if update is None or not update.has_keys_for(round_.number, hosts):
                update = self._begin_update(round_.number, hosts)
            self._keys_of_update, sum_ = None, update.lane.sum
            agreed = update_terms(self.contract, sum_.facts | about, layout, coding)
            update.add_up_(*agreed, SumWork(first, about, {DIGESTS: digests}))
            beside = [] if open_.union.silent else self._look_ahead(round_.number)
            result = self._carry(update.lane, beside, lambda: self._ask_second(round_.number))
            if not beside:
                self._carrier.finish()
            inside = {sum_.parties[number] for number in result.total.clients}
            positions = sorted(position for node in inside for position in hosts[node])
            clients = cohort[torch.tensor(positions, dtype=torch.int64)]
            opened = layout.opened(result.rows.reshape(-1), result.opened, result.extra, coding)
            mean, own = summing.mean(opened, layout), self.weights[clients]
            mean = bounded(mean, summing, own, self.contract.algorithm, self.heat())
        except (ProtocolError, PlanError, RangeError) as error:
            return self._failed(exchange, cohort, hosts, str(error))
        sum_.add_traffic_(exchange)
        self.answers |= dict.fromkeys(inside, "")
        for node, own_positions in hosts.items():
            if node not in inside:
                why = sum_.silent.get(node, "it dropped out of the secure sum")
                self._dropped(exchange, cohort, own_positions, why)
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

    def _pseudo_upload(self, clients: Tensor, mean: Mean | None) -> Upload:
        return pseudo_upload(clients, mean, self.contract.plan.torch_dtype, torch.device("cpu"))

    def _mean_of(self, parties: int) -> SumMechanism:
        return self.mean

    def _coding(self, cohort: Tensor, hosts: Mapping[str, list[int]]) -> Coding | NoisyCoding:
        """How numbers are written: precise after the largest correction of the algorithm."""
        weights = np.array([float(self.weights[cohort[its]].sum()) for its in hosts.values()])
        correction = self.contract.algorithm.largest_correction(self.heat())
        least = self.contract.privacy.least(len(hosts))
        return self.mean.coding(weights, len(hosts), least, correction)

    def _work(self, cohort: Tensor, node: str, positions: list[int], start: Submodels) -> Message:
        """What a node trains on: the rows it asked for."""
        message = self._whom(cohort, node, positions)
        exact = self.contract.plan.dtype
        message.parts |= encode_submodels("model", distinct_rows(start, positions), exact)
        return message


@dataclass
class PrivateFlowerRound(FlowerRound):
    """A round whose nodes have asked for rows over the private union of its cohort."""

    fleet: PrivateFlowerFleet
    union: SumExchange | None = None  # None: it failed, or there were too few nodes
    places: np.ndarray = field(default_factory=lambda: np.empty(0, dtype=np.int64))  # of the union
    asked: dict[str, np.ndarray] = field(default_factory=dict)  # node → the places it asks for

    def train(self, start: Submodels, sent: Submodels | None) -> Upload:
        return self.fleet.summed(self, start)
