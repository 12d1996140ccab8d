"""Terms: what the server and all clients of a secure sum agree on before it starts.

Their digest, the context, goes into every key and every signature, so halves that do not agree
find out with the first message. Keys can be exchanged before it is known what is added up: the
first two phases are bound to who takes part alone, all later ones to that and to what is added up.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np

from fedrows.errors import PlanError
from fedrows.privacy.messages import digest, pack_ids
from fedrows.privacy.thresholds import lowest_threshold

WORDS = ("uint8", "uint16", "uint32", "uint64")


@dataclass(frozen=True)
class SumTerms:
    """Who adds up what. `name` says which run, round and use this is, and never serves twice."""

    name: str
    cohort: tuple[int, ...]  # the clients invited, by number
    threshold: int  # fewer clients are never added up, and as many shares open a secret
    length: int  # words in a vector
    word: str = "uint32"
    colluding: int = 1  # so many clients may collude with the server
    openers: int = 0  # clients that all must let a row go before it can be opened
    early_list: bool = False  # clients sign the list of all with their vectors
    about: str = ""  # what is added up; like length and word it need not be known for the keys

    def __post_init__(self) -> None:
        n = len(self.cohort)
        fits = all(0 <= client < 2**64 for client in self.cohort)  # into a message
        if list(self.cohort) != sorted(set(self.cohort)) or not fits:
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
        self._check_guarantee(n)

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
        if 2 * self.threshold <= n + self.colluding:
            raise PlanError(
                f"The threshold of {self.name} is {self.threshold}, too low against a server that "
                f"shows different survivors to different clients and has {self.colluding} of {n} "
                f"clients on its side: it must be at least {lowest_threshold(n, self.colluding)}."
            )

    @property
    def dtype(self) -> np.dtype[np.unsignedinteger]:
        """The type of a word."""
        return np.dtype(self.word).newbyteorder("<")

    @cached_property
    def parties(self) -> bytes:
        """The digest of who takes part in what sum, which keys and shares are bound to."""
        rest = repr((self.threshold, self.colluding, self.openers, self.early_list)).encode()
        return digest(b"fedrows secure sum 4", self.name.encode(), pack_ids(self.cohort), rest)

    @cached_property
    def context(self) -> bytes:
        """The digest of the terms, which masks and all phases behind the shares are bound to."""
        rest = repr((self.length, self.word))
        return digest(b"fedrows vectors", self.parties, self.about.encode(), rest.encode())

    def circle(self, clients: Sequence[int], view: bytes) -> Circle:
        """The clients that advertised keys, and the openers among them."""
        return Circle(tuple(clients), _openers(tuple(clients), self.openers, view), view)


@dataclass(frozen=True)
class Circle:
    """The clients that go on with a sum, which all follows from the keys that they advertised."""

    clients: tuple[int, ...]  # in rising order
    openers: tuple[int, ...]
    view: bytes  # the digest of all keys

    def peers(self, client: int) -> list[int]:
        """Whom a client masks against and shares its secrets with: all others."""
        return [other for other in self.clients if other != client]


@lru_cache(maxsize=8)  # all clients of one process share it
def _openers(clients: tuple[int, ...], count: int, view: bytes) -> tuple[int, ...]:
    """The first clients of a random order; nobody can choose it without choosing all keys."""

    def position(client: int) -> bytes:
        return hashlib.sha256(b"fedrows openers" + view + client.to_bytes(8, "little")).digest()

    return tuple(sorted(clients, key=position)[:count]) if count else ()
