"""A node whose clients' numbers leave with noise on them: its part in noise inside the sum.

A node clips and rounds the update of each of its clients by itself, adds them up, and adds its own
share of the noise before anything is masked. Shares are per node, for the parties of a sum are
nodes, and a node that colludes with the server knows all the noise of its clients. Their size
follows from the contract and from how many nodes are in the sum, never from a message.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedrows.flower.node.node_sums import Arrays, NodeSums
from fedrows.flower.node.private_node import PrivateNode
from fedrows.flower.node.sum_inputs import counter_sets
from fedrows.flower.wire.signing import own_key
from fedrows.flower.wire.sums import cohort, distributed_mean, update_parties, update_terms
from fedrows.privacy import openings
from fedrows.privacy.client_side import AskedTraining, shared_update
from fedrows.privacy.discrete_gaussian import discrete_gaussians
from fedrows.privacy.distributed_mean import DistributedMean
from fedrows.privacy.heat_of_mode import capped_counts, heat_coding
from fedrows.privacy.held_back import HeldBack
from fedrows.privacy.protocol import ClientHalf, ProtocolError
from fedrows.privacy.randomness import fresh
from fedrows.privacy.weighted_mean import ClientUpdates
from fedrows.rows.heat import Heat


class NoisyNode(PrivateNode):
    """Answers the messages of a run whose noise is inside the sums."""

    def _inputs(self, sums: NodeSums, facts: dict[str, Any], parts: dict[str, bytes]) -> Arrays:
        if facts["use"] == "heat":
            return {"words": self._noisy_heat(facts)}
        names, position = self._asked_clients(facts)
        if len(names) > self.contract.plan.clients_per_round:
            raise ProtocolError("More clients are asked than a cohort has: the node drops out.")
        if facts["use"] == "union":
            return {}
        asked = self._asked(sums, facts, names)
        training = self._trained(facts, parts, asked, names, position)
        heat = self._heat_sent(facts, parts, np.unique(asked["wanted"]))
        return {"words": self._noisy_update(facts, heat, training, position)}

    def _use_up_(self, facts: dict[str, Any]) -> None:
        """Takes what a sum spends of its clients, by the node's own count."""
        super()._use_up_(facts)
        privacy = self.contract.privacy
        assert privacy.mechanism is not None, "noise inside the sum is a mechanism's"
        counted = privacy.mechanism.counted_share
        if facts["use"] == "heat":
            counts = len(self._space.tables) + 2 * (facts.get("labels") is not None)
            rho = counts / (2 * privacy.dp_heat_noise**2 * counted)
            self.use.spend_(map(str, self._current.names), rho)
        elif facts["use"] == "update":
            noise = privacy.mechanism.client_noise or 0.0
            names, _ = self._asked_clients(facts)
            self.use.spend_(map(str, names), 1 / (2 * noise**2 * counted))

    def _half(self, sums: NodeSums, facts: dict[str, Any]) -> ClientHalf[Any]:
        if facts["use"] == "heat":
            return super()._half(sums, facts)
        if facts["use"] == "union":
            return _all_rows(self._space.rows)

        def part() -> openings.Part:
            words, mean = sums.inputs(facts["sum"])["words"], self._mean_of(facts, {})
            layout, none = mean.layout({}), np.zeros((0, 1), dtype=mean.coding.dtype)
            agreed = update_terms(self.contract, facts, layout, mean.coding)
            return openings.Part(*agreed, none, np.zeros(0, dtype=bool), words)

        registry, key, me = self._registry(facts), own_key(self._home.folder), int(facts["party"])
        terms = update_parties(self.contract, facts)
        return openings.late_client(terms, me, key, registry, part)

    def _end(self, sums: NodeSums, facts: dict[str, Any], result: Any) -> dict[str, bytes]:
        return super()._end(sums, facts, result) if facts["use"] == "union" else {}

    def _mean_of(self, facts: dict[str, Any], heat: dict[str, Heat]) -> DistributedMean:
        parties = len(cohort(facts))
        return distributed_mean(self.contract, self.model.schema, self._space.tables, parties, heat)

    def _noisy_heat(self, facts: dict[str, Any]) -> np.ndarray:
        """How many clients hold each row, each counting for few rows, with the node's noise.

        The counters of a counted start come behind, each with noise as the count of a table has it.
        """
        privacy, words = self.contract.privacy, []
        coding = heat_coding(privacy.dp_heat_noise, len(cohort(facts)), privacy.dp_heat_rows)
        sets = [(self.data.index[table], rows) for table, rows in self._space.sizes.items()]
        for each in counter_sets(facts, self.contract, self.data):
            sets.append((each, self._space.sizes[facts["labels"]]))
        for index, rows in sets:
            alike = torch.ones(index.clients, dtype=torch.float64)
            held, counts = capped_counts(index, alike, privacy.dp_heat_rows, fresh)
            steps = discrete_gaussians(coding.deviation, rows, fresh)
            steps[held.numpy()] += counts.numpy().astype(np.int64) * coding.steps
            words.append(steps.view(np.uint64))
        return np.concatenate([np.empty(0, dtype=np.uint64), *words])

    def _heat_sent(
        self, facts: dict[str, Any], parts: dict[str, bytes], places: np.ndarray
    ) -> dict[str, Heat]:
        """The noisy heat of the rows that the node asked for; what follows from it is clipped."""
        counts, total = np.frombuffer(parts["heat"], dtype="<f8"), float(facts["total"])
        if len(counts) != len(places) or not (counts > 0).all() or not total > 0:
            raise ProtocolError("The heat that came with the rows is no heat of them.")
        heat = {}
        for table, ids in self._space.by_table(places).items():
            own = counts[np.isin(places, ids + self._space.starts[table])].copy()
            heat[table] = Heat(torch.from_numpy(ids.copy()), torch.from_numpy(own), total)
        return heat

    def _noisy_update(
        self,
        facts: dict[str, Any],
        heat: dict[str, Heat],
        training: AskedTraining,
        position: Tensor,
    ) -> np.ndarray:
        """The clipped updates of the node's clients, added up, with the node's noise."""
        mean, trained = self._mean_of(facts, heat), position[training.clients]
        updates = ClientUpdates(
            shared_update(training, self._space.tables, self.contract.privacy.keep_probability),
            self.data.weights(self.contract.plan.weighting)[trained].numpy(),
            training.clients.numpy(),
            np.arange(len(position)),
            np.zeros(len(trained)),
        )
        every = {table: np.arange(rows) for table, rows in self._space.sizes.items()}
        sent = mean.contribute(updates, every, HeldBack(mean.widths))
        return mean.vectors(mean.layout(every), sent).together()


def _all_rows(rows: int) -> ClientHalf[np.ndarray]:
    """A half that asks for nothing: instead of a union, clients answer for every row."""
    return np.arange(rows)
    yield b""
