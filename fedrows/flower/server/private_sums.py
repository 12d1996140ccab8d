"""What a private fleet does in any round, whoever is waited for.

    heat       a secure sum of all nodes' counts, before the first round and after enough changed
    union      the rows of some nodes' clients, of which each node asks for some
    update     what the nodes made of those rows, as one secure sum, of which a row opens only if
               enough nodes really hold it

What the server makes of it is `privacy.server_side`; here are the messages.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedrows.client import Upload
from fedrows.data.label_counts import LabelCounts
from fedrows.errors import PlanError
from fedrows.flower.server.fleet import PAUSE
from fedrows.flower.server.heat_sum import (
    closed,
    label_entries,
    labels_from,
    load_heat,
    save_heat,
    whole,
)
from fedrows.flower.server.round_sums import Hosts, RoundUnion, RoundUpdate
from fedrows.flower.server.sum_exchange import Lane, SumExchange, SumWork
from fedrows.flower.server.sum_fleet import SumFleet
from fedrows.flower.server.train_requests import distinct_rows
from fedrows.flower.wire.message import Message
from fedrows.flower.wire.model_digests import DIGESTS, model_digests, model_name
from fedrows.flower.wire.names import tag_of
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
from fedrows.privacy import secure_sum, union
from fedrows.privacy.accounts import Accounts, BudgetSpentError, Releasable
from fedrows.privacy.heat_counts import HeatCounts, Member
from fedrows.privacy.layout import SumLayout
from fedrows.privacy.noisy_coding import NoisyCoding
from fedrows.privacy.openings import OpenedSum
from fedrows.privacy.protocol import ProtocolError, ServerHalf
from fedrows.privacy.ring import Coding
from fedrows.privacy.server_side import SumMechanism, heat_from, pseudo_upload
from fedrows.privacy.terms import SumTerms
from fedrows.privacy.thresholds import least_parties
from fedrows.privacy.values import derived
from fedrows.privacy.weighted_mean import Mean
from fedrows.rows.heat import Heat
from fedrows.rows.index import Index
from fedrows.rows.params import Submodels

RECOUNTS = 2  # that may fail; nodes bear few counts


class PrivateSumFleet(SumFleet):
    """The clients of all nodes, of which the server learns sums.

    groups: table → its groups of rows, as the nodes' data have them.
    """

    def __init__(self, *args: Any, peers: Path, groups: Groups) -> None:
        super().__init__(*args, peers=peers)
        self._heat_file: Path | None = None
        tables = tuple(self.registry.tables)
        self.space = row_space(self.schema, tables)
        self.mean = weighted_mean(self.contract, self.schema, tables, groups)
        self._heat: dict[str, Heat] | None = None
        self.items: str | None = None  # the table whose labels are counted with the first heat
        self.labels: LabelCounts | None = None  # what they came to
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
            self._heat, self._counts.counts, self.labels = load_heat(path)

    @property
    def fewest_nodes(self) -> int:
        """How many nodes a secure sum needs."""
        return self.contract.privacy.fewest

    def heat(self) -> Mapping[str, Heat]:
        assert self._heat is not None, "gather counts it"
        return self._heat

    def gather(self) -> None:
        """Takes in nodes; counts heat anew when so many came or left that none is shown."""
        super().gather()
        if self._heat is None:
            self._count_until_enough()
        elif self._may_recount():
            self._recount()

    def _may_recount(self) -> bool:
        """Whether so many clients came or left that heat may be counted anew."""
        members = self._members(self._nodes_here())
        return self._lost_counts < RECOUNTS and self._counts.may_count(members)

    def _recount(self) -> None:
        """Counts heat anew, if all nodes come through; else it stays as it was."""
        try:
            self._count(self._nodes_here(), complete=True)
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
        sum_ = self._exchange("heat", nodes, **self._labels_too())
        sum_.work = SumWork({})
        if "labels" in sum_.facts:
            self.accounts.spend_(0, label_entries(str(self.items)))
        terms = heat_terms(self.contract, sum_.facts, self.space)
        half = secure_sum.server(terms, self._keys(sum_))
        total = self._carry(Lane(sum_, closed(whole(half) if complete else half)))
        members = self._members([sum_.parties[number] for number in total.clients])
        self._heat = heat_from(total.values, self.space, len(members))
        if "labels" in sum_.facts:
            heat, sums = self._heat[str(self.items)], total.values[self.space.rows :]
            self.labels = labels_from(sums, str(self.items), heat)
        self._counts.add_(members)
        if self._heat_file is not None:
            save_heat(self._heat_file, self._heat, self._counts.counts, self.labels)
        self._log(f"Heat is counted by secure sum of {len(total.clients)} nodes.")

    def _labels_too(self) -> dict[str, str]:
        """What the first count of heat also counts: labels, if the run starts from them."""
        return {"labels": self.items} if self.items is not None and self._heat is None else {}

    def _nodes_here(self) -> list[str]:
        connected = set(self.transport.nodes())
        return sorted(n for n, node in self.registry.nodes.items() if node.address in connected)

    def _members(self, nodes: list[str]) -> set[Member]:
        return {
            (client.node, client.name) for client in self.registry.clients if client.node in nodes
        }

    def _index_of(
        self, asked: Mapping[str, np.ndarray], hosts: Hosts, clients: int
    ) -> dict[str, Index]:
        """The rows that every node asks for, at the first of its clients."""
        first = {positions[0]: node for node, positions in hosts.items()}
        nothing = np.empty(0, dtype=np.int64)
        return self.space.index([asked.get(first.get(x, ""), nothing) for x in range(clients)])

    def exceeds(self, number: int) -> str:
        """Why a round must not be run; nothing if it may."""
        return self.accounts.exceeds(number)

    def _new_union(self, number: int, cohort: Tensor, hosts: Hosts) -> RoundUnion:
        """The union of a round, of which no message is sent yet."""
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

    def _agree(
        self,
        number: int,
        united: UnitedRows,
        cohort: Tensor,
        hosts: Hosts,
        start: Submodels,
        coding: Coding | NoisyCoding,
        update: RoundUpdate | None,
    ) -> AgreedSum:
        """Says what a sum of updates adds up, with the next messages.

        number: of the round. hosts: the nodes that have asked for rows and are here. update: a sum
        whose keys are exchanged, if there is one.
        """
        tag, mechanism = tag_of(number), self._mean_of(len(hosts))
        layout = mechanism.layout(self.space.by_table(united.places))
        name = united.union.facts["sum"]
        heat = (self._heat or {}) if self.contract.privacy.noise_in_sum else {}  # that is sent
        digests = model_digests(name, start, heat, self.space, united.places)
        about = {"union": name, "tag": tag, "model": model_name(digests), **self.begun}
        about["coding"] = asdict(coding)
        first = {
            node: self._work(cohort, node, positions, start) for node, positions in hosts.items()
        }
        if update is None or not update.has_keys_for(number, hosts):
            update = self._begin_update(number, hosts)
        agreed = update_terms(self.contract, update.lane.sum.facts | about, layout, coding)
        update.add_up_(*agreed, SumWork(first, about, {DIGESTS: digests}))
        return AgreedSum(update, hosts, self.weights[cohort], tag, mechanism, layout, coding)

    def _mean_from(
        self, agreed: AgreedSum, result: OpenedSum
    ) -> tuple[set[str], Tensor, Mean | None]:
        """The nodes in a sum, their clients' positions in the cohort, and the mean it holds."""
        sum_, summing, layout = agreed.update.lane.sum, agreed.mechanism, agreed.layout
        inside = {sum_.parties[number] for number in result.total.clients}
        places = torch.tensor(
            sorted(position for node in inside for position in agreed.hosts[node])
        )
        opened = layout.opened(result.rows.reshape(-1), result.opened, result.extra, agreed.coding)
        mean, own = summing.mean(opened, layout), agreed.weights[places]
        mean = summing.bounded(mean, own, self.contract.algorithm, self.heat())
        return inside, places, mean

    def _why_nothing(self, agreed: AgreedSum, result: OpenedSum) -> str:
        """Why a sum that came to its end has opened nothing."""
        parties, left_out = agreed.update.lane.sum.parties, result.total.left_out
        reasons = [f"node {parties[party]!r}: {why.rstrip('.')}" for party, why in left_out.items()]
        return "; ".join(reasons) or "too few nodes had something to add up"

    def _pseudo_upload(self, clients: Tensor, mean: Mean | None) -> Upload:
        return pseudo_upload(clients, mean, self.contract.plan.torch_dtype, torch.device("cpu"))

    def _mean_of(self, parties: int) -> SumMechanism:
        return self.mean

    def _coding(self, cohort: Tensor, hosts: Mapping[str, list[int]]) -> Coding | NoisyCoding:
        """How numbers are written: precise after the largest correction of the algorithm."""
        weights = np.array(
            [float(self.weights[cohort[positions]].sum()) for positions in hosts.values()]
        )
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
class UnitedRows:
    """The union of a cohort's rows, and who asks for which."""

    union: SumExchange
    places: np.ndarray  # of the union
    asked: dict[str, np.ndarray]  # node → the places it asks for


@dataclass(frozen=True, eq=False)
class AgreedSum:
    """What the nodes of a round add up, and how the server reads it."""

    update: RoundUpdate
    hosts: Hosts
    weights: Tensor  # of the cohort's clients (K,)
    tag: int
    mechanism: SumMechanism
    layout: SumLayout
    coding: Coding | NoisyCoding
