"""A counted start of a deployment: nodes count their labels before the first round, once.

In the clear every node counts for all its clients, and what it sends is checked against the rows
that they have enrolled with (`read_labels`). An answer that is refused costs its node that answer:
its clients train like all others. In a private run both counters are in the sum that counts heat.

The start values are those of a simulation (`start_shared_`). Clients work out where their own
biases begin from the prior, which goes out with every request to train.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import torch

from fedrows.data.federation import FederatedData
from fedrows.data.label_counts import LabelCounts, items_of
from fedrows.errors import FedrowsError
from fedrows.flower.server.exchange import short_kind
from fedrows.flower.server.fleet import POLL, FlowerFleet
from fedrows.flower.server.node_records import LATE
from fedrows.flower.server.private_sums import PrivateSumFleet
from fedrows.flower.wire.clients import no_ids
from fedrows.flower.wire.label_counters import PRIOR, read_labels
from fedrows.flower.wire.message import Message, WireError, pack
from fedrows.model import Model
from fedrows.rows.params import Params
from fedrows.simulator.counted_start import start_shared_

REASON = "labels"  # by which refused counters are counted


class DeployedStart:
    """Where a deployed run begins: counted once, and known to everybody who joins later."""

    def __init__(
        self, fleet: FlowerFleet, model: Model, data: FederatedData, log: Callable[[str], None]
    ) -> None:
        assert model.biases is not None, "the contract has checked it"
        self.fleet, self.biases, self.table, self._log = fleet, model.biases, items_of(data), log
        self.padded = self.table in data.padded
        if isinstance(fleet, PrivateSumFleet):
            fleet.items = self.table

    @property
    def prior(self) -> float:
        """The share of positives over all items; 0 if they are not counted yet."""
        return self.fleet.begun.get(PRIOR, 0.0)

    def restore_(self, prior: float) -> None:
        """Takes the prior of a run that goes on."""
        self.fleet.begun = {PRIOR: prior} if prior else {}

    def set_(self, params: Params) -> None:
        """Sets the biases that all clients share; counts first."""
        self.fleet.gather()
        if isinstance(self.fleet, PrivateSumFleet):
            assert self.fleet.labels is not None, "they are counted with the first heat"
            counts = self.fleet.labels
        else:
            counts = labels_in_the_clear(self.fleet, self.table, self._log)
        start_shared_(params, self.biases, counts, self.padded, self.fleet.contract.plan)
        self.restore_(counts.prior)


def labels_in_the_clear(fleet: FlowerFleet, table: str, log: Callable[[str], None]) -> LabelCounts:
    """The counters of the nodes that are here, added up; they are asked until there are any."""
    taken: dict[str, LabelCounts] = {}
    refused: set[str] = set()  # nodes that are not asked again
    while True:
        nodes, connected = fleet.registry.nodes, set(fleet.transport.nodes())
        asked = {
            name: node.address
            for name, node in nodes.items()
            if node.address in connected and name not in refused | taken.keys()
        }
        answers = fleet.send_and_wait({x: _request(fleet, name) for name, x in asked.items()}, 0)
        for name, address in asked.items():
            answer = answers.get(address, LATE)
            if isinstance(answer, bytes) and short_kind(answer) == "state-lost":
                fleet.forget_state_(name)
                answer = "its node has lost its state"
            if isinstance(answer, str):
                log(f"The labels of node {name!r} are not counted yet: {answer}.")
                continue
            try:
                taken[name] = _read(fleet, name, answer, table)
            except WireError as error:
                refused.add(name)
                fleet.rejected[REASON] += 1
                fleet.records.refuse(name, REASON)
                log(f"The labels of node {name!r} are not counted: {error}")
        if any(len(counts.ids) for counts in taken.values()):
            log(f"Labels are counted: {len(taken)} of {len(nodes)} nodes have sent theirs.")
            return _sum(table, list(taken.values()))
        if not nodes.keys() - refused - taken.keys():
            raise FedrowsError(
                "start is 'counted', but no node has sent counts of its labels that can be used: "
                "mend what the log says of them, or choose start zero."
            )
        time.sleep(POLL)
        fleet.gather()


def _request(fleet: FlowerFleet, name: str) -> bytes:
    facts = {"version": fleet.registry.nodes[name].version, **fleet.about_run}
    return pack(Message("count-labels", facts))


def _read(fleet: FlowerFleet, name: str, answer: bytes, table: str) -> LabelCounts:
    """A node's counters, checked against what its clients have enrolled with."""
    if short_kind(answer) == "declined":
        raise WireError("Its policy does not allow it, and its own log says why.")
    ids = [client.index[table] for client in fleet.registry.clients if client.node == name]
    held, holders = torch.unique(torch.cat([no_ids(), *ids]), return_counts=True)
    return read_labels(answer, table, held, holders)


def _sum(table: str, parts: Sequence[LabelCounts]) -> LabelCounts:
    """Counters added up, for every row that anybody counts.

    Not for those of the heat: it has no row whose weight is nothing beside that of all clients.
    """
    ids = torch.unique(torch.cat([counts.ids for counts in parts]))
    have, like = torch.zeros(2, len(ids), dtype=torch.float64)
    for counts in parts:
        position = torch.searchsorted(ids, counts.ids)
        have[position] += counts.examples
        like[position] += counts.positives
    return LabelCounts(table, ids, have, like)
