"""Terms: what the server and all clients of a secure sum agree on before it starts.

Their digest, the context, goes into every key and every signature, so halves that do not agree
find out with the first message. Keys can be exchanged before it is known what is added up: the
first two phases are bound to who takes part alone, all later ones to that and to what is added up.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np

from fedrows.errors import PlanError
from fedrows.privacy.graph import LIKELY, Graph, failure, lowest_threshold
from fedrows.privacy.messages import digest, pack_ids

WORDS = ("uint8", "uint16", "uint32", "uint64")


@dataclass(frozen=True)
class SumTerms:
    """Who adds up what. `name` says which run, round and use this is, and never serves twice."""

    name: str
    cohort: tuple[int, ...]  # the clients invited, by number
    threshold: int  # fewer clients than this are never added up
    length: int  # words in a vector
    word: str = "uint32"
    neighbours: int | None = None  # k of the graph; None: all mask against all
    needed: int | None = None  # shares that open a secret; with a graph only, see graph.choose
    colluding: int = 1  # so many clients may collude with the server
    openers: int = 0  # clients that all must let a row go before it can be opened
    early_list: bool = False  # clients sign the list of all with their vectors
    about: str = ""  # what is added up; like length and word it need not be known for the keys

    def __post_init__(self) -> None:
        n = len(self.cohort)
        if list(self.cohort) != sorted(set(self.cohort)) or not self.fits(self.cohort):
            raise PlanError(
                f"The cohort of {self.name} must be different numbers from 0 to 2^64 − 1 in rising "
                "order."
            )
        if not 2 <= self.threshold <= n:
            raise PlanError(
                f"The threshold of {self.name} is {self.threshold}, but must be at least 2 and at "
                f"most the {n} clients of the cohort."
            )
        if self.word not in WORDS:
            raise PlanError(f"A word of {self.name} is {self.word!r}: use one of {WORDS}.")
        if self.length < 0:
            raise PlanError(f"The vectors of {self.name} cannot have {self.length} words.")
        if not 0 <= self.openers <= n:
            raise PlanError(
                f"{self.name} cannot have {self.openers} openers in a cohort of {n} clients."
            )
        if self.early_list and self.neighbours is not None:
            raise PlanError(
                f"Clients of {self.name} cannot sign the list of all with their vectors: on a "
                "graph they do not know who is there. Let all mask against all, or leave it."
            )
        self._check_graph(n)
        self._check_guarantee(n)

    def _check_graph(self, n: int) -> None:
        k, needed = self.neighbours, self.needed
        if (k is None) != (needed is None):
            raise PlanError(
                f"{self.name} must say both how many neighbours a client has and how many shares "
                "are needed, or neither: graph.choose finds both."
            )
        if k is not None and needed is not None and not (2 <= needed <= k < n and k % 2 == 0):
            raise PlanError(
                f"{self.name} has {k} neighbours and needs {needed} shares, but the neighbours "
                f"must be an even number below the {n} clients, and the shares at least 2 and at "
                "most the neighbours."
            )

    def _check_guarantee(self, n: int) -> None:
        if not 0 <= self.colluding <= self.threshold - 2:
            raise PlanError(
                f"The threshold of {self.name} is {self.threshold}, too low for {self.colluding} "
                "clients that collude with the server: it must be at least 2 above their number, "
                "or they may find themselves in a sum with a single other client."
            )
        if 0 < self.openers <= self.colluding:
            raise PlanError(
                f"{self.name} has {self.openers} openers, too few for {self.colluding} clients in "
                "league with the server: there must be more of them, so that one is honest."
            )
        if self.neighbours is not None and self.needed is not None:
            shares = self.colluding / n, 1 - self.threshold / n
            odds = failure(n, self.neighbours, self.needed, *shares).security
            if odds > LIKELY:
                raise PlanError(
                    f"{self.name} has {self.neighbours} neighbours and needs {self.needed} shares, "
                    f"too few for {self.colluding} of {n} clients colluding with the server and "
                    f"{n - self.threshold} dropping out: it goes wrong with odds of {odds:.1e}."
                )
        if self.neighbours is None and 2 * self.threshold <= n + self.colluding:
            raise PlanError(
                f"The threshold of {self.name} is {self.threshold}, too low against a server that "
                f"shows different survivors to different clients and has {self.colluding} of {n} "
                f"clients on its side: it must be at least {lowest_threshold(n, self.colluding)}."
            )

    @staticmethod
    def fits(clients: tuple[int, ...]) -> bool:
        """Whether these numbers can stand in a message."""
        return all(0 <= client < 2**64 for client in clients)

    @property
    def dtype(self) -> np.dtype[np.unsignedinteger]:
        """The type of a word."""
        return np.dtype(self.word).newbyteorder("<")

    @property
    def shares_needed(self) -> int:
        """How many shares open a secret."""
        return self.threshold if self.needed is None else self.needed

    @cached_property
    def parties(self) -> bytes:
        """The digest of who takes part in what sum, which keys and shares are bound to."""
        numbers = (self.threshold, self.neighbours, self.needed, self.colluding, self.openers)
        rest = repr((*numbers, self.early_list)).encode()
        return digest(b"fedrows secure sum 3", self.name.encode(), pack_ids(self.cohort), rest)

    @cached_property
    def context(self) -> bytes:
        """The digest of the terms, which masks and all phases behind the shares are bound to."""
        rest = repr((self.length, self.word))
        return digest(b"fedrows vectors", self.parties, self.about.encode(), rest.encode())

    @cached_property
    def invited(self) -> frozenset[int]:
        """The cohort, to look clients up in."""
        return frozenset(self.cohort)

    def circle(self, clients: Sequence[int], view: bytes) -> Circle:
        """Who deals with whom among the clients that advertised keys."""
        return _circle(tuple(clients), self.neighbours, self.openers, view)


@lru_cache(maxsize=8)  # all clients of one process share it
def _circle(clients: tuple[int, ...], neighbours: int | None, openers: int, view: bytes) -> Circle:
    return Circle(clients, neighbours, openers, view)


class Circle:
    """The graph of one round, and its openers; all of it follows from the advertised keys."""

    def __init__(
        self, clients: tuple[int, ...], neighbours: int | None, openers: int, view: bytes
    ) -> None:
        self.clients = frozenset(clients)
        self.view = view
        self._graph = Graph(clients, neighbours, view)
        order = Graph(clients, None, b"openers" + view).order if openers else []
        self.openers = order[:openers]

    def neighbours(self, client: int) -> list[int]:
        """Whom a client masks against and shares its secrets with."""
        return self._graph.neighbours(client)

    def holders(self, client: int) -> list[int]:
        """Who holds a share of a client's secrets: its neighbours and itself."""
        return sorted([*self.neighbours(client), client])

    def peers(self, client: int) -> list[int]:
        """Whose keys a client needs: its neighbours', the openers', and an opener everybody's."""
        if client in self.openers:
            return sorted(self.clients - {client})
        return sorted({*self.neighbours(client), *self.openers} - {client})
