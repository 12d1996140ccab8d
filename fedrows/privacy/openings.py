"""Minimum contributors: a row of a secure sum is opened only if enough clients really hold it.

Some clients of the cohort are openers, drawn by the digest of all advertised keys. Client i and
opener c share a key. What goes into the secure sum, per client:

    rows      x_i[r] + Σ_c PRF(k_ic, r)           x_i[r] = 0 where i does not hold r
    extra     what is opened in any case, because there is noise on it
    count c   [i holds r] + PRF'(k_ic, r)          for every opener c
    tag c     Σ_r ρ_c[r]·[i holds r] + PRF''(k_ic)

ρ_c is a secret of opener c that it has sealed to all clients, not to the server. Once the sum is
opened, its rows are still padded. The server shows opener c its counts and tags. The opener takes
off the pads of exactly those clients that all have signed to be in the sum, and checks the counts
against the tags; then it lets go of Σ_i PRF(k_ic, r) for the rows with enough holders, and of no
other. Rows that are refinements of each other open by the rule of `families`. Without all openers
no row can be opened. The server learns which rows open, not how many hold them; the openers learn
the counts.

At the end each client is shown which rows the openers say they let go, signed. One honest opener
that kept its pads keeps a row closed, and of `colluding` + 1 openers one is honest. So a client may
send a row again only if that many openers have signed that they kept it. Without such a proof it
counts the row as sent: a server that hides what it opened gets no number twice.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedrows.errors import DataError, PlanError
from fedrows.privacy import secure_sum
from fedrows.privacy.families import RowFamilies
from fedrows.privacy.keys import KEY, MaskWords, NodeKey, add_stream_, derive, stream
from fedrows.privacy.messages import check, pack, pack_ids, unpack, unpack_ids
from fedrows.privacy.protocol import (
    ClientHalf,
    LastRequests,
    MessageError,
    ProtocolError,
    ServerHalf,
)
from fedrows.privacy.randomness import fresh
from fedrows.privacy.session import Session
from fedrows.privacy.terms import SumTerms

Bits = NDArray[np.bool_]
TAGS = 4  # independent tags per opener
_ROWS, _PADS = "rows", "pads"  # what an opener signs


@dataclass(frozen=True)
class Openings:
    """What is added up, and how many holders a row must have."""

    name: str
    cohort: tuple[int, ...]
    rows: int  # of the union
    width: int  # words in a row
    minimum: int  # holders that a row must have
    extra: int = 0  # words that are opened in any case
    openers: int = 2
    word: str = "uint32"
    families: RowFamilies | None = None  # rows that are refinements of others; None: there are none
    turn: int = 0  # the number of the round; it decides which family of a value is first
    about: str = ""  # what else was agreed about the rows

    def __post_init__(self) -> None:
        if not 1 <= self.minimum <= len(self.cohort):
            raise PlanError(
                f"A row of {self.name} needs {self.minimum} contributors, but must need at least 1 "
                f"and at most the {len(self.cohort)} clients of the cohort."
            )
        if self.openers < 1:
            raise PlanError(f"{self.name} has {self.openers} openers, but needs at least 1.")
        if self.word not in ("uint32", "uint64"):
            raise PlanError(f"A word of {self.name} is {self.word!r}: use uint32 or uint64.")
        if len(self.cohort) >= 2**16:
            raise PlanError(f"The cohort of {self.name} has more than {2**16 - 1} clients.")

    def terms(self, threshold: int, **more: Any) -> SumTerms:
        """The terms of the sum behind it."""
        about = f"{self.about}, {self.rows} rows of {self.width} from {self.minimum} holders on"
        if self.families is not None:
            about += f", families {self.families.digest.hex()}, turn {self.turn}"
        return SumTerms(
            self.name,
            self.cohort,
            threshold,
            self.length,
            self.word,
            openers=self.openers,
            about=about,
            **more,
        )

    @property
    def lane(self) -> np.dtype[np.unsignedinteger]:
        """The type of a count; several share a word, and no sum of them can spill over."""
        return np.dtype("<u1" if len(self.cohort) < 2**8 else "<u2")

    @property
    def length(self) -> int:
        """Words in a client's vector."""
        return self.rows * self.width + self.extra + self.openers * self._claim

    @property
    def _counts(self) -> int:
        """Words that the counts of all rows take."""
        return -(-self.rows * self.lane.itemsize // np.dtype(self.word).itemsize)

    @property
    def _claim(self) -> int:
        """Words for one opener: counts and tags."""
        return self._counts + TAGS

    def may_open(self, counts: NDArray[Any]) -> Bits:
        """The rows that may be opened, given how many clients hold each."""
        if self.families is None or self.minimum == 1:
            return np.asarray(counts >= self.minimum)
        return self.families.open(counts, self.minimum, self.turn)

    def padded(self, vector: MaskWords) -> MaskWords:
        """The part of a vector that holds the rows."""
        return vector[: self.rows * self.width]

    def open(self, vector: MaskWords) -> MaskWords:
        """The part of a vector that is opened in any case."""
        return vector[self.rows * self.width :][: self.extra]

    def claim(self, vector: MaskWords, number: int) -> MaskWords:
        """The part of a vector that is for an opener, by its place among them."""
        start = self.rows * self.width + self.extra + number * self._claim
        return vector[start : start + self._claim]

    def tags(self, seed: bytes, counts: NDArray[Any]) -> MaskWords:
        """Σ_r ρ[r]·counts[r] for the ρ of a seed."""
        factors = stream(derive(seed, b"tags"), TAGS * self.rows, self.word)
        products = factors.reshape(TAGS, self.rows) * counts.astype(self.word)
        tags: MaskWords = products.sum(axis=1, dtype=self.word)
        return tags

    def pack_counts(self, counts: NDArray[Any]) -> MaskWords:
        """Counts side by side in words."""
        lanes = np.zeros(self._counts * np.dtype(self.word).itemsize, dtype=np.uint8).view(
            self.lane
        )
        lanes[: self.rows] = counts
        return lanes.view(self.word)

    def unpack_counts(self, words: MaskWords) -> NDArray[np.unsignedinteger[Any]]:
        """The counts in some words."""
        return words.copy().view(self.lane)[: self.rows]


@dataclass(frozen=True)
class OpenedSum:
    """What the server is left with."""

    rows: MaskWords  # (rows, width), 0 where a row was not opened
    opened: Bits  # (rows,)
    extra: MaskWords
    total: secure_sum.SumResult


@dataclass(frozen=True)
class Part:
    """What one client puts into a sum, and the terms of that sum."""

    plan: Openings
    terms: SumTerms
    values: MaskWords
    holds: Bits
    extra: MaskWords | None = None


def client(
    plan: Openings,
    terms: SumTerms,
    me: int,
    node: NodeKey,
    registry: Mapping[int, bytes],
    values: MaskWords,
    holds: Bits,
    extra: MaskWords | None = None,
) -> ClientHalf[Bits]:
    """The client half; it returns which rows count as sent. The others may be sent again."""
    part = Part(plan, terms, values, holds, extra)
    _check(part, me)
    return late_client(terms, me, node, registry, lambda: part)


def late_client(
    terms: SumTerms,
    me: int,
    node: NodeKey,
    registry: Mapping[int, bytes],
    known: Callable[[], Part],
) -> ClientHalf[Bits]:
    """The client half of a sum whose rows are not known before its keys are exchanged.

    terms: of the parties alone. known: what the client puts in, once its vector is wanted.
    """
    made: list[Part] = []

    def learn() -> SumTerms:
        made.append(known())
        _check(made[0], me)
        return made[0].terms

    def vector(session: Session) -> MaskWords:
        plan, values, holds, extra = (part := made[0]).plan, part.values, part.holds, part.extra
        words: MaskWords = np.zeros(plan.length, dtype=plan.word)
        plan.padded(words)[:] = values.reshape(-1)
        if extra is not None:
            plan.open(words)[:] = extra
        for number, opener in enumerate(session.circle.openers):
            claim = plan.claim(words, number)
            claim[:-TAGS] = plan.pack_counts(holds)
            claim[-TAGS:] = plan.tags(_seed(session, opener), holds)
            add_stream_(claim, session.key(opener, _about("claim", opener)))
            add_stream_(plan.padded(words), session.key(opener, _about("rows", opener)))
        return words

    ending = yield from secure_sum.client(terms, me, node, registry, vector, fresh(KEY), learn)
    session, answer, plan = ending.session, ending.answer, made[0].plan
    if me in session.circle.openers:
        answer = yield _let_go(plan, session, answer)
    return _sent(plan, session, answer)


def server(plan: Openings, terms: SumTerms, registry: Mapping[int, bytes]) -> ServerHalf[OpenedSum]:
    """The server half. Should an opener fall silent, no row is opened."""
    return late_server(terms, registry, lambda: (plan, terms))


def late_server(
    terms: SumTerms, registry: Mapping[int, bytes], known: Callable[[], tuple[Openings, SumTerms]]
) -> ServerHalf[OpenedSum]:
    """The server half of a sum whose rows are not known before its keys are exchanged.

    terms: of the parties alone. known: what is added up, once vectors have come.
    """
    total = yield from secure_sum.server(terms, registry, lambda: known()[1])
    openers, (plan, terms) = total.circle.openers, known()
    replies = yield {
        opener: plan.claim(total.values, number).tobytes()
        for number, opener in enumerate(openers)
        if opener in total.answering
    }
    table = plan.padded(total.values).reshape(plan.rows, plan.width).copy()
    statements: dict[int, bytes] = {}  # what each opener signed to have let go
    rows: list[Bits] = []
    for opener in openers:
        try:
            if opener not in replies:
                raise ProtocolError(f"Opener {opener} did not answer: no row was opened.")
            parts = _parts(opener, replies[opener], 2)
            bits = _bits(plan, opener, check(registry, terms.context, _ROWS, opener, parts[0]))
            statements[opener] = parts[0]
            if rows and (bits != rows[0]).any():
                raise MessageError(opener, "opens other rows than another opener's")
            pads = check(registry, terms.context, _PADS, opener, parts[1])
            if len(pads) != bits.sum() * plan.width * table.itemsize:
                raise MessageError(opener, "of phase 'pads' has the wrong length")
        except ProtocolError as error:
            total.left_out[opener] = str(error)
            continue
        rows.append(bits)
        table[bits] -= np.frombuffer(pads, dtype=plan.word).reshape(-1, plan.width)
    opened = rows[0] if len(rows) == len(openers) else np.zeros(plan.rows, dtype=np.bool_)
    table[~opened] = 0
    who = sorted(statements)
    proof = pack(pack_ids(who), *(statements[client] for client in who))
    yield LastRequests(dict.fromkeys(total.answering, proof))
    return OpenedSum(table, opened, plan.open(total.values).copy(), total)


def _let_go(plan: Openings, session: Session, request: bytes) -> bytes:
    """An opener's message: which rows have enough holders, and its pads of those alone."""
    me, openers = session.me, session.circle.openers
    claim = np.frombuffer(request, dtype=np.uint8).copy()
    if len(claim) != plan.claim(np.zeros(plan.length, plan.word), openers.index(me)).nbytes:
        raise ProtocolError(f"What opener {me} was shown has the wrong length: nothing is let go.")
    words = claim.view(plan.word)
    for client in session.survivors:
        add_stream_(words, session.key(client, _about("claim", me)), minus=True)
    counts = plan.unpack_counts(words[:-TAGS])
    right = (plan.tags(_seed(session, me), counts) == words[-TAGS:]).all()
    if not right or (plan.rows and counts.max() > len(session.survivors)):
        raise ProtocolError(
            f"The counts that opener {me} was shown in {session.terms.name} are not those of the "
            "clients in the sum: nothing is let go."
        )
    opened = plan.may_open(counts)
    pads: MaskWords = np.zeros(plan.rows * plan.width, dtype=plan.word)
    for client in session.survivors:
        add_stream_(pads, session.key(client, _about("rows", me)))
    chosen = pads.reshape(plan.rows, plan.width)[opened].tobytes()
    bits = np.packbits(opened).tobytes()
    return pack(session.sign(_ROWS, bits), session.sign(_PADS, chosen))


def _sent(plan: Openings, session: Session, answer: bytes) -> Bits:
    """The rows that count as sent: those that any opener let go; all of them without a proof."""
    everything = np.ones(plan.rows, dtype=np.bool_)
    try:
        first, *statements = unpack(answer)
        signers = unpack_ids(first)
    except ValueError:
        return everything
    if len(signers) != len(statements) or not set(signers) <= set(session.circle.openers):
        return everything
    if len(signers) <= session.terms.colluding:
        return everything
    sent = np.zeros(plan.rows, dtype=np.bool_)
    for opener, statement in zip(signers, statements, strict=True):
        sent |= _bits(plan, opener, session.check(_ROWS, opener, statement))
    return sent


def _seed(session: Session, opener: int) -> bytes:
    """The secret behind an opener's tags."""
    if len(session.notes[opener]) != KEY:
        raise MessageError(opener, "of phase 'shares' brings no secret for its tags")
    return session.notes[opener]


def _about(what: str, opener: int) -> str:
    """The purpose of a pad's key; two openers share one pair of keys, so it names the opener."""
    return f"{what} of opener {opener}"


def _parts(sender: int, message: bytes, count: int) -> list[bytes]:
    try:
        return unpack(message, count)
    except ValueError as error:
        raise MessageError(sender, str(error)) from None


def _bits(plan: Openings, sender: int, body: bytes) -> Bits:
    if len(body) != -(-plan.rows // 8):
        raise MessageError(sender, "of phase 'rows' has the wrong length")
    return np.unpackbits(np.frombuffer(body, dtype=np.uint8), count=plan.rows).astype(np.bool_)


def _check(part: Part, me: int) -> None:
    """A DataError unless a client's part has the agreed shapes, and its decoys are 0."""
    plan, values, holds, extra = part.plan, part.values, part.holds, part.extra
    shapes = {
        "values": (values, (plan.rows, plan.width), plan.word),
        "holds": (holds, (plan.rows,), "bool"),
        "extra": (np.zeros(0, plan.word) if extra is None else extra, (plan.extra,), plan.word),
    }
    for name, (array, shape, dtype) in shapes.items():
        if array.shape != shape or array.dtype != np.dtype(dtype):
            raise DataError(
                f"Client {me}'s {name} are {array.dtype} of shape {array.shape}, but must be "
                f"{dtype} of shape {shape}."
            )
    if values[~holds].any():
        raise DataError(
            f"Client {me} sends values for a row that it does not hold: they must be 0."
        )
