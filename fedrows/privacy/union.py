"""Private set union: which rows at least one client of a cohort holds, and nothing about whose.

Each client adds a word uniform among the non-zero ones for every row it holds and 0 for the others.
In the secure sum a row of nobody is 0, and a row of one holder looks like a row of ten. A row of
two or more is missed when its words happen to add up to 0, with odds of at most 1 / (2^bits − 1).

`Direct` has a word per row. `Bloom` is for vocabularies too large for that: a row has `hashes`
cells, and is in the union if none of its cells is 0. False positives only add rows that nobody
holds. A client that finds a row of its own missing keeps what it has for the next round.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedrows.errors import DataError, PlanError
from fedrows.privacy import secure_sum
from fedrows.privacy.keys import MaskWords, NodeKey, random_words
from fedrows.privacy.messages import digest
from fedrows.privacy.protocol import ClientHalf, ProtocolError, ServerHalf
from fedrows.privacy.terms import SumTerms

Ids = NDArray[np.int64]
_BATCH = 1 << 20  # rows looked up at a time


def miss(holders: int, bits: int = 32) -> float:
    """P(the words of so many holders add up to 0): 0 for one, at most 1 / (2^bits − 1)."""
    others = 2.0**bits - 1
    return (1 - (-1 / others) ** (holders - 1)) / 2.0**bits if holders else 1.0


@dataclass(frozen=True)
class Direct:
    """A word per row."""

    vocabulary: int  # rows there are
    word: str = "uint32"

    @property
    def length(self) -> int:
        """Words in a client's vector."""
        return self.vocabulary

    @property
    def missed(self) -> float:
        """The odds, at most, that a row somebody holds is not found."""
        return miss(2, _bits(self.word))

    def entries(self, ids: Ids, client: int) -> MaskWords:
        """A client's vector."""
        vector: MaskWords = np.zeros(self.length, dtype=self.word)
        held = np.unique(_inside(ids, self.vocabulary, client))
        vector[held] = _non_zero(len(held), self.word)
        return vector

    def rows_in(self, total: MaskWords) -> Ids:
        """The union, sorted."""
        return np.flatnonzero(total)


@dataclass(frozen=True)
class Bloom:
    """Cells shared between rows, by hashes that everybody can compute."""

    vocabulary: int
    cells: int
    hashes: int
    word: str = "uint32"
    salt: str = ""  # another one each round, so that it is not always the same rows that collide

    @classmethod
    def for_sets(
        cls,
        vocabulary: int,
        clients: int,
        held: int,
        false_positives: float = 0.01,
        missed: float = 1e-6,
        salt: str = "",
    ) -> Bloom:
        """The smallest filter for `clients` sets of `held` rows each, disjoint at worst.

        cells = −n·ln(p) / ln(2)²  and  hashes = cells/n · ln 2  for n rows at a false-positive rate
        of p; the word is the smallest that misses a row with odds of at most `missed`.
        """
        for name, rate in (("false_positives", false_positives), ("missed", missed)):
            if not 0 < rate < 1:
                raise PlanError(f"{name} is {rate!r}, but must be above 0 and below 1.")
        rows = min(vocabulary, clients * held)
        if rows < 1:
            raise PlanError("A union needs at least one row, one client and one row held.")
        hashes = max(1, round(-math.log2(false_positives)))
        # the exact inverse of p = (1 − e^(−hashes·n/cells))^hashes for a whole number of hashes
        cells = math.ceil(-hashes * rows / math.log1p(-(false_positives ** (1 / hashes))))
        for bits in (8, 16, 32, 64):
            filter_ = cls(vocabulary, cells, hashes, f"uint{bits}", salt)
            if filter_.missed <= missed:
                break
        return filter_

    @property
    def length(self) -> int:
        """Words in a client's vector."""
        return self.cells

    @property
    def missed(self) -> float:
        """The odds, at most, that a row somebody holds is not found: one of its cells is 0."""
        return min(1.0, self.hashes * miss(2, _bits(self.word)))

    def entries(self, ids: Ids, client: int) -> MaskWords:
        """A client's vector."""
        vector: MaskWords = np.zeros(self.length, dtype=self.word)
        held = _inside(ids, self.vocabulary, client)
        places = np.unique([self._cells(held, number) for number in range(self.hashes)])
        vector[places] = _non_zero(len(places), self.word)
        return vector

    def rows_in(self, total: MaskWords) -> Ids:
        """The union and its false positives, sorted; each hash looks at what the last one left."""
        parts = []
        for start in range(0, self.vocabulary, _BATCH):
            ids = np.arange(start, min(start + _BATCH, self.vocabulary))
            for number in range(self.hashes):
                ids = ids[total[self._cells(ids, number)] != 0]
            parts.append(ids)
        return np.concatenate(parts)

    def _cells(self, ids: Ids, number: int) -> Ids:
        """Where hash `number` puts each row."""
        seed = digest(b"fedrows bloom", self.salt.encode(), bytes([number]))
        x = ids.astype(np.uint64) ^ np.frombuffer(seed[:8], dtype="<u8")
        for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
            x = (x ^ (x >> np.uint64(shift))) * np.uint64(factor)
        x = (x ^ (x >> np.uint64(31))) >> np.uint64(32)
        return ((x * np.uint64(self.cells)) >> np.uint64(32)).astype(np.int64)


UnionPlan = Direct | Bloom


@dataclass(frozen=True)
class UnionResult:
    """What the server learns."""

    ids: Ids  # sorted
    total: secure_sum.SumResult


def terms(
    plan: UnionPlan, name: str, cohort: tuple[int, ...], threshold: int, colluding: int = 1
) -> SumTerms:
    """The terms of the sum behind a union, every client masking against all others."""
    about = f"{name}, union {plan}"
    return SumTerms(about, cohort, threshold, plan.length, plan.word, colluding=colluding)


def client(
    terms: SumTerms,
    plan: UnionPlan,
    me: int,
    node: NodeKey,
    registry: Mapping[int, bytes],
    ids: Ids | Callable[[], Ids],
) -> ClientHalf[Ids]:
    """The client half; it returns the union. Its rows may be read late, when they are wanted."""

    def vector(_: object) -> MaskWords:
        return plan.entries(ids() if callable(ids) else ids, me)

    ending = yield from secure_sum.client(terms, me, node, registry, vector)
    size = _id_type(plan)
    if len(ending.answer) % size.itemsize:
        raise ProtocolError(f"The union that client {me} was told in {terms.name} is cut short.")
    return np.frombuffer(ending.answer, dtype=size).astype(np.int64)


def server(
    terms: SumTerms, plan: UnionPlan, registry: Mapping[int, bytes]
) -> ServerHalf[UnionResult]:
    """The server half; it tells the union to all who are still there."""
    total = yield from secure_sum.server(terms, registry)
    ids = plan.rows_in(total.values)
    yield dict.fromkeys(total.answering, ids.astype(_id_type(plan)).tobytes())
    return UnionResult(ids, total)


def _id_type(plan: UnionPlan) -> np.dtype[np.unsignedinteger]:
    return np.dtype("<u4" if plan.vocabulary <= 2**32 else "<u8")


def _bits(word: str) -> int:
    return 8 * np.dtype(word).itemsize


def _non_zero(count: int, word: str) -> MaskWords:
    """Words uniform among the non-zero ones: a 0 is drawn again."""
    words = random_words(count, word)
    while (zero := np.flatnonzero(words == 0)).size:
        words[zero] = random_words(len(zero), word)
    return words


def _inside(ids: Ids, vocabulary: int, client: int) -> Ids:
    ids = np.asarray(ids, dtype=np.int64)
    if ids.size and (ids.min() < 0 or ids.max() >= vocabulary):
        raise DataError(
            f"Client {client} holds a row outside of 0 … {vocabulary - 1}: "
            "the union covers that vocabulary only."
        )
    return ids
