"""The two sums of a round, its union and its updates, which may begin in the round before.

Which rows a cohort holds does not depend on the model. So the unions of the next rounds run beside
the secure sum of this one, and the phases of all of them travel in the same messages: in a round
the keys of the third union after it are exchanged, the second one asks for vectors, and the next
one is opened.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedrows.flower.server.sum_exchange import Lane, SumExchange, SumWork
from fedrows.flower.wire.codings import ids_from_bytes
from fedrows.flower.wire.message import Message, WireError
from fedrows.flower.wire.sums import ASKED
from fedrows.privacy import openings
from fedrows.privacy.messages import check
from fedrows.privacy.openings import OpenedSum, Openings
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

    @property
    def is_asked(self) -> bool:
        """Whether nodes were told, or are about to be, which of their clients are asked."""
        return self.lane.sum.work is not None

    def serves_for(
        self, number: int, cohort: Tensor, hosts: Hosts, whom: Mapping[str, Message]
    ) -> bool:
        """Whether it is about these clients, and nobody has fallen silent so far.

        whom: what each node would be told if it were asked now.
        """
        same = self.round == number and torch.equal(self.cohort, cohort) and self.hosts == hosts
        return self.lane.everybody and same and self._asks(whom)

    def _asks(self, whom: Mapping[str, Message]) -> bool:
        """Whether no node was asked for other clients, or of another enrolment."""
        work = self.lane.sum.work
        return work is None or all(
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


class RoundUpdate:
    """A sum of updates under way.

    terms: as far as keys need them. keys: the parties' public keys.
    """

    def __init__(
        self, number: int, sum_: SumExchange, terms: SumTerms, keys: Mapping[int, bytes]
    ) -> None:
        self.round = number
        self._agreed: list[tuple[Openings, SumTerms]] = []
        half = openings.late_server(terms, keys, lambda: self._agreed[0])
        self.lane: Lane[OpenedSum] = Lane(sum_, half)

    def has_keys_for(self, number: int, hosts: Hosts) -> bool:
        """Whether all of these nodes have exchanged keys for the updates of a round."""
        same = self.round == number and {*self.lane.sum.parties.values()} == hosts.keys()
        return self.lane.waits and self.lane.everybody and same

    def add_up_(self, plan: Openings, terms: SumTerms, work: SumWork) -> None:
        """Says what is added up, with the next messages."""
        self._agreed.append((plan, terms))
        self.lane.work_(work)
