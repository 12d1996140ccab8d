"""A fleet that carries secure sums: who takes part, what they are told, and who answers."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from torch import Tensor

from fedrows.errors import PlanError
from fedrows.flower.server.fleet import FlowerFleet
from fedrows.flower.server.node_records import LATE
from fedrows.flower.server.round_sums import Hosts
from fedrows.flower.server.sum_exchange import Lane, SumCourse, SumExchange, carried
from fedrows.flower.wire.contract import digest
from fedrows.flower.wire.message import Message
from fedrows.flower.wire.names import SumNames
from fedrows.flower.wire.signing import read_peers

R = TypeVar("R")


class SumFleet(FlowerFleet):
    """The clients of all nodes, which take part in secure sums."""

    def __init__(self, *args: Any, peers: Path) -> None:
        super().__init__(*args)
        self._peers, self._names = read_peers(peers), SumNames()
        self._enrolment.keys = self._peers
        self._sum_course = SumCourse()

    def _hosts(self, cohort: Tensor) -> dict[str, list[int]]:
        """Which positions of the cohort each node that is here hosts."""
        connected, hosts = set(self.transport.nodes()), dict[str, list[int]]()
        for position, number in enumerate(cohort.tolist()):
            name = self.registry.clients[number].node
            if self.registry.nodes[name].address in connected and name in self._peers:
                hosts.setdefault(name, []).append(position)
        return hosts

    def _whom(self, cohort: Tensor, node: str, positions: list[int]) -> Message:
        """Which of its clients a node is asked for."""
        numbers = cohort[positions].tolist()
        places, accepted = self.registry.asked(node, numbers)
        facts = {
            "places": places,
            "numbers": numbers,
            "accepted": accepted,
            "version": self.registry.nodes[node].version,
        }
        return Message("sum", facts)

    def _whom_all(self, cohort: Tensor, hosts: Hosts) -> dict[str, Message]:
        return {
            node: self._whom(cohort, node, list(positions)) for node, positions in hosts.items()
        }

    def _exchange(self, use: str, nodes: list[str], **more: Any) -> SumExchange:
        """A new sum with some nodes."""
        colluding = self.contract.privacy.colluding
        if len(nodes) < colluding + 2:
            raise PlanError(
                f"A secure sum that bears {colluding} colluding nodes needs at least "
                f"{colluding + 2} nodes that are here and whose keys are known, but there are "
                f"{len(nodes)}: start more nodes, or lower `colluding`."
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

    def _carry(
        self, lane: Lane[R], beside: Sequence[Lane[Any]] = (), then: Callable[[], object] = int
    ) -> R:
        """Runs a protocol with the nodes to its end, and others as far as they come meanwhile."""
        try:
            return carried(self._sum_course.steps(lane, beside, then), self._send_by_name)
        finally:
            self._take_note_(lane.sum)
            for other in beside:
                self._take_note_(other.sum, ahead=True)

    def _take_note_(self, sum_: SumExchange, ahead: bool = False) -> None:
        """Learns what nodes have said beside their replies.

        ahead: of a round to come. Who declines that one takes part in those before it.
        """
        for name in sum_.newest:
            self._names.learn_(name)
        for node in sum_.lost & self.registry.nodes.keys():
            self.forget_state_(node)
        heat_can_stay = sum_.facts["use"] == "heat" and self._has_heat
        if not ahead and not heat_can_stay:
            for node in sorted(sum_.declined):
                self._decline_(node)

    @property
    def _has_heat(self) -> bool:
        """Whether heat was counted before."""
        return False

    def _keys(self, sum_: SumExchange) -> dict[int, bytes]:
        return {number: self._peers[node] for number, node in sum_.parties.items()}

    def _send_by_name(
        self, messages: Mapping[str, bytes], awaited: Collection[str]
    ) -> dict[str, bytes | str]:
        """Sends messages to nodes by name, and waits for the answers of some."""
        nodes = self.registry.nodes
        names = {nodes[node].address: node for node in messages if node in nodes}
        sent = {address: messages[node] for address, node in names.items() if address}
        wanted = [address for address, node in names.items() if node in awaited]
        received = self.send_and_wait(sent, self.last.round if self.last else 0, wanted)
        answers: dict[str, bytes | str] = {node: LATE for node in awaited}
        return answers | {names[address]: answer for address, answer in received.items()}
