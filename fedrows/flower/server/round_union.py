"""The union of a round, which may have been found while the round before was under way.

Which rows a cohort holds does not depend on the model. So the union of the next round runs beside
the secure sum of this one, and the phases of both travel in the same messages. Its keys were
exchanged in the round before this one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedrows.flower.server.sum_exchange import Lane
from fedrows.flower.wire.codings import ids_from_bytes
from fedrows.flower.wire.message import Message, WireError
from fedrows.flower.wire.sums import ASKED
from fedrows.privacy.messages import check
from fedrows.privacy.protocol import ProtocolError
from fedrows.privacy.terms import SumTerms

Hosts = Mapping[str, list[int]]  # node → positions in the cohort


@dataclass
class RoundUnion:
    """A private union, under way or done."""

    round: int
    cohort: Tensor
    hosts: Hosts
    terms: SumTerms
    lane: Lane[np.ndarray]  # which gives its rows, sorted

    def has_keys_for(self, number: int, cohort: Tensor, hosts: Hosts) -> bool:
        """Whether all nodes of a cohort have exchanged keys for its union, and no more."""
        everybody = self.lane.waits and len(self.lane.requests) == len(self.hosts)
        return everybody and self._is_about(number, cohort, hosts)

    def serves_for(
        self, number: int, cohort: Tensor, hosts: Hosts, whom: Mapping[str, Message]
    ) -> bool:
        """Whether it is about these clients, and nobody has fallen silent so far.

        whom: what each node would be told if it were asked now.
        """
        lane = self.lane
        answered = lane.sum.last if lane.done else lane.requests
        everybody = lane.sum.work is not None and len(answered) == len(self.hosts)
        return everybody and self._is_about(number, cohort, hosts) and self._asks(whom)

    def _is_about(self, number: int, cohort: Tensor, hosts: Hosts) -> bool:
        same = self.round == number and torch.equal(self.cohort, cohort)
        return same and self.hosts == hosts

    def _asks(self, whom: Mapping[str, Message]) -> bool:
        """Whether each node was asked for the same clients of the same enrolment."""
        work = self.lane.sum.work
        return work is not None and all(
            work.first[node].facts[fact] == message.facts[fact]
            for node, message in whom.items()
            for fact in ("places", "version")
        )

    def clients_asked(self) -> list[int]:
        """The numbers of the clients who answer which rows they want."""
        return [int(self.cohort[at]) for positions in self.hosts.values() for at in positions]

    def asked(self, keys: Mapping[int, bytes], united: np.ndarray) -> dict[str, np.ndarray]:
        """Which rows of the union each node asks for, of those that have signed it."""
        numbers = {node: number for number, node in self.lane.sum.parties.items()}
        rows, count = {}, len(united)
        for node, message in self.lane.sum.last.items():
            try:
                part = message.parts["asked"]
                body = check(keys, self.terms.context, ASKED, numbers[node], part)
                asked = ids_from_bytes(body, count, count)
            except (WireError, ProtocolError, KeyError):
                continue
            rows[node] = united[asked.numpy()]
        return rows
