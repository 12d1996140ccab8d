"""Secure sum (Bonawitz et al., CCS 2017): the server sees the total alone.

    y_i = x_i + PRG(b_i) + Σ_{j>i} PRG(s_ij) − Σ_{j<i} PRG(s_ij)        mod 2^bits

Masks s_ij cancel in the sum. Of those who sent y the self masks b_i are opened by shares, of those
who dropped out before that the keys behind s_ij; nobody lets go of both for one client, so a vector
that comes too late stays masked by its b_i. With fewer clients than the threshold in any phase
nothing is opened. `session` is the client's side; this file is the server's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from fedrows.privacy.keys import (
    KEY,
    SIGNATURE,
    AgreementKey,
    MaskWords,
    NodeKey,
    add_stream_,
    derive,
)
from fedrows.privacy.messages import check, digest, pack, pack_ids, unpack
from fedrows.privacy.protocol import ClientHalf, MessageError, ProtocolError, ServerHalf
from fedrows.privacy.session import (
    AGREED,
    KEYS,
    MASKED,
    OPENED,
    SHARES,
    Advert,
    Session,
    commit,
    mask_key,
)
from fedrows.privacy.shamir import SHARE, recover
from fedrows.privacy.terms import Circle, SumTerms

T = TypeVar("T")
_SECOND = b"fedrows another list of survivors "  # instead of signatures under the list of all


@dataclass(frozen=True)
class SumResult:
    """What the server is left with."""

    values: MaskWords  # (length,)
    clients: list[int]  # whose vectors are in it
    left_out: dict[int, str]  # who is not in it, or fell silent before the end, and why
    liars: list[int]  # who sent wrong shares, where that could be told
    circle: Circle
    answering: list[int]  # who was there to the end


@dataclass(frozen=True)
class Ending:
    """Where a client stands after its last message, and the server's next request."""

    session: Session
    answer: bytes


def client(
    terms: SumTerms,
    me: int,
    node: NodeKey,
    registry: Mapping[int, bytes],
    vector: MaskWords | Callable[[Session], MaskWords],
    note: bytes = b"",
    known: Callable[[], SumTerms] | None = None,
) -> ClientHalf[Ending]:
    """The client half. A vector may be made late, when the peers' sealed notes have been read.

    known: gives the terms when the vector is wanted; until then only `terms.parties` matters.
    """
    session = Session(terms, me, node, registry, note)
    answer = yield session.advertise()
    answer = yield session.share(answer)
    answer = yield session.mask(answer, vector, known() if known else terms)
    if not terms.early_list:
        answer = yield session.agree(answer)
    elif answer.startswith(_SECOND):
        answer = yield session.agree(answer.removeprefix(_SECOND))
    answer = yield session.open(answer)
    return Ending(session, answer)


def server(
    terms: SumTerms, registry: Mapping[int, bytes], known: Callable[[], SumTerms] | None = None
) -> ServerHalf[SumResult]:
    """The server half: four or five requests, then the sum; or a ProtocolError, nothing opened.

    known: gives the terms when vectors have come; until then only `terms.parties` matters.
    """
    desk = _Desk(terms, registry)

    replies = yield dict.fromkeys(terms.cohort, b"")
    adverts = desk.accept(KEYS, terms.cohort, replies, desk.advert)
    digests = b"".join(digest(adverts[client].body) for client in adverts)
    head = pack(pack_ids(adverts), digests)
    circle = terms.circle(list(adverts), digest(pack_ids(adverts), digests))
    peers = {client: circle.peers(client) for client in adverts}

    keys = replies
    replies = yield {client: head + pack(*(keys[p] for p in peers[client])) for client in adverts}

    def boxes_of(sender: int, body: bytes) -> dict[int, bytes]:
        return dict(zip(peers[sender], unpack(body, len(peers[sender])), strict=True))

    boxes = desk.accept(SHARES, adverts, replies, boxes_of)
    desk.check_openers(circle, boxes)
    inbox = {client: [p for p in peers[client] if p in boxes] for client in boxes}

    replies = yield {
        client: pack(pack_ids(inbox[client]), *(boxes[p][client] for p in inbox[client]))
        for client in boxes
    }
    terms = desk.know_(known() if known else terms)
    signatures, size = dict[int, bytes](), KEY + SIGNATURE  # under the list of survivors
    if terms.early_list and len(boxes) == len(adverts):
        signatures = {client: reply[:size] for client, reply in replies.items()}
        replies = {client: reply[size:] for client, reply in replies.items()}
    masked = desk.accept(MASKED, boxes, replies, desk.words)
    total: MaskWords = np.zeros(terms.length, dtype=terms.dtype)
    for words in masked.values():
        total += words
    survivors = list(masked)

    if not signatures or len(survivors) < len(boxes):
        second = _SECOND if terms.early_list else b""
        signatures = yield dict.fromkeys(survivors, second + pack_ids(survivors))
    wanted = digest(pack_ids(survivors))
    agreed = desk.accept(AGREED, survivors, signatures, lambda sender, body: body)
    agreed = {client: body for client, body in agreed.items() if desk.same(client, body, wanted)}
    desk.enough(AGREED, agreed)

    quorum = terms.threshold - 1  # beside a client's own signature
    signers = {client: [p for p in agreed if p != client][:quorum] for client in agreed}
    replies = yield {
        client: pack(pack_ids(signers[client]), *(signatures[p] for p in signers[client]))
        for client in agreed
    }

    def shares_of(sender: int, body: bytes) -> dict[int, int]:
        if len(body) != SHARE * len(boxes):
            raise ValueError("has the wrong length")
        cuts = range(0, len(body), SHARE)
        numbers = [int.from_bytes(body[i : i + SHARE], "little") for i in cuts]
        return dict(zip(boxes, numbers, strict=True))

    shares = desk.accept(OPENED, agreed, replies, shares_of)
    for client in boxes:
        held_shares = {holder: held[client] for holder, held in shares.items()}
        if client in masked:
            add_stream_(total, desk.self_mask(client, adverts[client], held_shares), minus=True)
            continue
        key = desk.masking_key(client, adverts[client], held_shares)
        for other in masked:  # it added the mask if it is the smaller of the two
            pair_key = mask_key(key, adverts[other].masking, terms.context)
            add_stream_(total, pair_key, minus=other < client)
    return SumResult(total, survivors, desk.left_out, sorted(desk.liars), circle, list(shares))


class _Desk:
    """Where the server checks what comes in, and keeps the names of those who failed."""

    def __init__(self, terms: SumTerms, registry: Mapping[int, bytes]) -> None:
        self.terms, self.registry = terms, registry
        self._context = terms.parties
        self.left_out: dict[int, str] = {}
        self.liars: set[int] = set()
        self._probe = AgreementKey()

    def know_(self, terms: SumTerms) -> SumTerms:
        """Takes in what is added up, by the parties who have exchanged keys."""
        if terms.parties != self.terms.parties:
            raise ProtocolError(f"Keys were exchanged for another sum than {terms.name}.")
        self.terms, self._context = terms, terms.context
        return terms

    def accept(
        self,
        phase: str,
        asked: Iterable[int],
        replies: Mapping[int, bytes],
        read: Callable[[int, bytes], T],
    ) -> dict[int, T]:
        """What each client that was asked replied; who did not, or wrongly, is left out."""
        accepted: dict[int, T] = {}
        for client in asked:
            if client not in replies:
                self.left_out[client] = f"Client {client} did not answer in phase {phase!r}."
                continue
            try:
                body = check(self.registry, self._context, phase, client, replies[client])
                accepted[client] = read(client, body)
            except ProtocolError as error:
                self.left_out[client] = str(error)
            except ValueError as error:
                self.left_out[client] = str(MessageError(client, f"of phase {phase!r} {error}"))
        self.enough(phase, accepted)
        return accepted

    def enough(self, phase: str, left: Mapping[int, object]) -> None:
        """A ProtocolError if fewer clients are left than the threshold."""
        if len(left) < self.terms.threshold:
            raise ProtocolError(
                f"{len(left)} of {len(self.terms.cohort)} clients came through phase {phase!r} of "
                f"{self.terms.name}, but {self.terms.threshold} are needed: nothing was opened."
            )

    def check_openers(self, circle: Circle, left: Mapping[int, object]) -> None:
        """A ProtocolError if an opener has dropped out: without it no row could be opened."""
        for client in circle.openers:
            if client not in left:
                raise ProtocolError(
                    f"Opener {client} of {self.terms.name} dropped out before the vectors were "
                    "sent: nothing was opened."
                )

    def advert(self, sender: int, body: bytes) -> Advert:
        """A client's keys; those with which every secret would be the same are no keys."""
        advert = Advert.read(sender, body)
        try:
            for public in (advert.sealing, advert.masking):
                self._probe.agree(public, b"probe")
        except ValueError:
            raise ValueError("has a key that hides nothing") from None
        return advert

    def words(self, sender: int, body: bytes) -> MaskWords:
        """A masked vector."""
        wanted = self.terms.length * self.terms.dtype.itemsize
        if len(body) != wanted:
            raise ValueError(f"has {len(body)} bytes instead of {wanted}")
        return np.frombuffer(body, dtype=self.terms.dtype)

    def same(self, sender: int, body: bytes, wanted: bytes) -> bool:
        """Whether a client signed the list of survivors; it is left out if not."""
        if body != wanted:
            error = MessageError(sender, f"of phase {AGREED!r} signs another list of survivors")
            self.left_out[sender] = str(error)
        return body == wanted

    def self_mask(self, client: int, advert: Advert, shares: Mapping[int, int]) -> bytes:
        """The key of the self mask of a client that is in the sum."""
        seed = self._secret(client, shares, lambda seed: commit(seed) == advert.commitment)
        return derive(seed, b"self" + self.terms.context)

    def masking_key(self, client: int, advert: Advert, shares: Mapping[int, int]) -> AgreementKey:
        """The masking key of a client that dropped out."""
        return AgreementKey(
            self._secret(client, shares, lambda key: AgreementKey(key).public == advert.masking)
        )

    def _secret(
        self, client: int, shares: Mapping[int, int], right: Callable[[bytes], bool]
    ) -> bytes:
        """A client's secret from its shares, once it has been checked against the advert."""

        def fits(number: int) -> bool:
            return number < 2 ** (8 * KEY) and right(number.to_bytes(KEY, "little"))

        needed = self.terms.threshold
        recovered = recover(shares, needed, fits) if len(shares) >= needed else None
        if recovered is None:
            raise ProtocolError(
                f"The {len(shares)} shares that came back do not open client {client}'s mask in "
                f"{self.terms.name}, for which {needed} right ones are needed: nothing was opened."
            )
        self.liars.update(recovered[1])
        return recovered[0].to_bytes(KEY, "little")
