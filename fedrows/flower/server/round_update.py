"""The sum of a round's updates, whose keys may have been exchanged in the round before."""

from __future__ import annotations

from collections.abc import Mapping

from fedrows.flower.server.round_union import Hosts
from fedrows.flower.server.sum_exchange import Lane, SumExchange, SumWork
from fedrows.privacy import openings
from fedrows.privacy.openings import OpenedSum, Openings
from fedrows.privacy.terms import SumTerms


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
