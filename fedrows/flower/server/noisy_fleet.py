"""A deployed fleet whose nodes add noise to their parts before any sum.

    heat       counted once, with noise; every row of a table has a count
    a round    no union: each node says which of all rows it wants; rows go out with their heat, by
               which nodes correct before they clip, and one noisy sum over all rows comes back

What nodes send is `node.noisy_node`. Here nothing is left to correct, and nothing to add noise to.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from fedrows.data.label_counts import LabelCounts
from fedrows.flower.server.fleet import FlowerFleet
from fedrows.flower.server.heat_sum import closed, save_heat
from fedrows.flower.server.private_fleet import PrivateFlowerFleet
from fedrows.flower.server.sum_exchange import Lane, SumExchange, SumWork
from fedrows.flower.wire.message import Message
from fedrows.flower.wire.sums import distributed_mean, heat_terms
from fedrows.privacy import secure_sum, union
from fedrows.privacy.accounts import Releasable
from fedrows.privacy.distributed_mean import DistributedMean
from fedrows.privacy.heat_of_mode import counter_names, heat_coding, heat_tensors
from fedrows.privacy.ledger import AGAINST_SERVER, Entry, Event
from fedrows.privacy.noisy_coding import NoisyCoding
from fedrows.privacy.protocol import ServerHalf
from fedrows.privacy.terms import SumTerms
from fedrows.rows.heat import Heat
from fedrows.rows.params import Submodels

BEYOND = 8  # deviations of noise, by which no honest count is below 0 or above all clients


class NoisyFlowerFleet(PrivateFlowerFleet):
    """The clients of all nodes, of which the server learns noisy sums."""

    unions_ahead = 1  # nodes are asked for rows in one exchange, without a sum

    def heat(self) -> Mapping[str, Heat]:
        """Nothing: nodes have corrected their updates already."""
        none = torch.empty(0, dtype=torch.int64)
        return {table: Heat(none, none.to(torch.float64), 1.0) for table in self.space.tables}

    def gather(self) -> None:
        """Takes in nodes; heat is counted once, for every count spends."""
        FlowerFleet.gather(self)
        if self._heat is None:
            self._count_until_enough()

    def releasable(self) -> Releasable | None:
        """What may leave the run beside the model."""
        if self._heat is None:
            return None
        return self.accounts.releasable(self.space.tables, heat_tensors(self._heat))

    def _count(self, nodes: list[str], complete: bool = False) -> None:
        sum_, privacy = self._exchange("heat", nodes, **self._labels_too()), self.contract.privacy
        terms = heat_terms(self.contract, sum_.facts, self.space)
        sum_.work = SumWork({})
        labels = "labels" in sum_.facts
        self.accounts.spend_(0, self._heat_entries(labels))
        total = self._carry(Lane(sum_, closed(secure_sum.server(terms, self._keys(sum_)))))
        members = self._members([sum_.parties[number] for number in total.clients])
        coding = heat_coding(privacy.dp_heat_noise, len(nodes), privacy.dp_heat_rows)
        counts = total.values.view(np.int64) / coding.steps
        deviation = privacy.dp_heat_noise * math.sqrt(2 * privacy.dp_heat_rows)
        most = len(members) + BEYOND * deviation  # a node that lies can set a count to any number
        counts = counts.clip(-BEYOND * deviation, most)
        if labels:
            have, like = torch.from_numpy(counts[self.space.rows :].copy()).view(2, -1)
            self.labels = LabelCounts(str(self.items), torch.arange(len(have)), have, like)
        counts = np.maximum(counts.clip(max=len(members)), max(1.0, privacy.heat_z * deviation))
        self._heat = {}
        for table, start in self.space.starts.items():
            own = counts[start : start + self.space.sizes[table]].copy()
            every = torch.arange(len(own))
            self._heat[table] = Heat(every, torch.from_numpy(own), float(len(members)))
        self._counts.add_(members)
        if self._heat_file is not None:
            save_heat(self._heat_file, self._heat, self._counts.counts, self.labels)
        self._log(f"Heat is counted with noise by secure sum of {len(total.clients)} nodes.")

    def _heat_entries(self, labels: bool) -> list[Entry]:
        privacy, mechanism = self.contract.privacy, self.contract.privacy.mechanism
        assert mechanism is not None, "noise inside the sum is a mechanism's"
        noise = privacy.dp_heat_noise * math.sqrt(mechanism.counted_share)
        event = Event((noise,), "all", discrete=True)
        names = [f"heat of {table}" for table in self.space.tables]
        names += counter_names(str(self.items)) if labels else ()
        entries = [Entry(mechanism.kind, name, 0, event=event) for name in names]
        return entries + [replace(entry, kind=AGAINST_SERVER) for entry in entries]

    def _union_half(
        self, terms: SumTerms, plan: union.UnionPlan, sum_: SumExchange
    ) -> ServerHalf[np.ndarray]:
        """Asks every node which rows it wants, of all there are."""
        yield dict.fromkeys(sum_.parties, b"")
        return np.arange(self.space.rows)

    def _mean_of(self, parties: int) -> DistributedMean:
        return distributed_mean(self.contract, self.schema, self.space.tables, parties, {})

    def _coding(self, cohort: Tensor, hosts: Mapping[str, list[int]]) -> NoisyCoding:
        return self._mean_of(len(hosts)).coding

    def _work(self, cohort: Tensor, node: str, positions: list[int], start: Submodels) -> Message:
        """The rows that a node asked for, and their noisy heat."""
        message = super()._work(cohort, node, positions, start)
        assert self._heat is not None, "gather counts it"
        counts, total = [np.empty(0)], 1.0
        for table in self.space.tables:
            ids = start.index[table].select(torch.tensor(positions)).ids.unique()
            counts.append(self._heat[table].of(ids).numpy())
            total = self._heat[table].total
        message.parts["heat"] = np.concatenate(counts).astype("<f8").tobytes()
        message.facts["total"] = total
        return message
