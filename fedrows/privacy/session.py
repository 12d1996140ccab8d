"""A client's side of a secure sum: what it knows in one round, and its five messages.

    keys    two fresh public keys and a commitment to its self mask
    shares  shares of its two secrets, a box for each peer
    masked  vector + self mask ± a mask for each peer
    agreed  its signature under the list of those who are in the sum
    opened  one share per client: of the self mask if it is in the sum, of its key if it is not

Whatever does not fit is refused with an error that names who sent it. What is added up may become
known with the third message: keys are bound to the parties, and masks to what is added up as well.
With an early list the fourth message is spared where nobody drops out: a client to whom all peers
sent shares signs the list of all with its vector. It signs another only if somebody has no vector.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from fedrows.errors import PlanError
from fedrows.privacy.keys import (
    KEY,
    AgreementKey,
    MaskWords,
    NodeKey,
    add_stream_,
    derive,
    seal,
    unseal,
)
from fedrows.privacy.messages import check, digest, pack, pack_ids, sign, unpack, unpack_ids
from fedrows.privacy.protocol import MessageError, ProtocolError
from fedrows.privacy.randomness import fresh
from fedrows.privacy.shamir import SHARE, share
from fedrows.privacy.terms import Circle, SumTerms

KEYS, SHARES, MASKED, AGREED, OPENED = "keys", "shares", "masked", "agreed", "opened"


@dataclass(frozen=True)
class Advert:
    """What a client makes public at the start of a round."""

    sealing: bytes  # the key that boxes to it are sealed with
    masking: bytes  # the key that its pairwise masks come from
    commitment: bytes  # to its self mask

    @classmethod
    def read(cls, sender: int, body: bytes) -> Advert:
        """The advert in a message's body."""
        if len(body) != 3 * KEY:
            raise MessageError(sender, f"of phase {KEYS!r} has the wrong length")
        return cls(body[:KEY], body[KEY : 2 * KEY], body[2 * KEY :])

    @property
    def body(self) -> bytes:
        """The message's body again."""
        return self.sealing + self.masking + self.commitment


def commit(seed: bytes) -> bytes:
    """What binds a client to the seed of its self mask without showing it."""
    return digest(b"fedrows self mask", seed)


def mask_key(own: AgreementKey, other: bytes, context: bytes) -> bytes:
    """The key of the mask between two clients; the server makes the same of a recovered key."""
    return own.agree(other, b"mask" + context)


def check_different(terms: SumTerms, registry: Mapping[int, bytes]) -> None:
    """Raises a ProtocolError if one node key stands for two clients of a sum."""
    if len({registry.get(client) for client in terms.cohort}) < len(terms.cohort):
        raise ProtocolError(
            f"Two clients of {terms.name} have the same node key, or no known one: one party would "
            "play several, and the sum could show this client's vector."
        )


class Session:
    """One client in one round."""

    def __init__(
        self,
        terms: SumTerms,
        me: int,
        node: NodeKey,
        registry: Mapping[int, bytes],
        note: bytes = b"",
    ) -> None:
        if me not in terms.cohort:
            raise PlanError(f"Client {me} is not in the cohort of {terms.name}.")
        check_different(terms, registry)
        self.terms, self.me, self.node, self.registry = terms, me, node, registry
        self._context = terms.parties  # what messages and keys are bound to at present
        self.notes = {me: note}  # from each peer, sealed on the way
        self.survivors: list[int] = []  # who is in the sum
        self._sealing, self._masking = AgreementKey(), AgreementKey()
        self._seed = fresh(KEY)
        self._advert = Advert(self._sealing.public, self._masking.public, commit(self._seed))
        self._adverts: dict[int, Advert] = {}
        self._shared: dict[int, bytes] = {}
        self._held: dict[int, tuple[bytes, bytes]] = {}  # shares of (seed, masking key)
        self._circle: Circle | None = None

    @property
    def circle(self) -> Circle:
        """Who deals with whom; known once the keys are."""
        if self._circle is None:
            raise ProtocolError("Nobody's keys are known before phase 'shares'.")
        return self._circle

    def key(self, peer: int, purpose: str) -> bytes:
        """The secret that this client and a peer share for one purpose."""
        if peer not in self._shared:
            public = self._sealing.public if peer == self.me else self._adverts[peer].sealing
            try:
                self._shared[peer] = self._sealing.agree(public, b"pair" + self.terms.parties)
            except ValueError:
                raise MessageError(peer, "has a key that hides nothing") from None
        return derive(self._shared[peer], purpose.encode() + self._context)

    def sign(self, phase: str, body: bytes) -> bytes:
        """A message of this client."""
        return sign(self.node, self._context, phase, self.me, body)

    def check(self, phase: str, sender: int, message: bytes) -> bytes:
        """The body of a peer's message."""
        return check(self.registry, self._context, phase, sender, message)

    def advertise(self) -> bytes:
        """The message of phase keys."""
        return self.sign(KEYS, self._advert.body)

    def share(self, answer: bytes) -> bytes:
        """The message of phase shares; the answer shows everybody's keys, or their digests."""
        ids_part, digests, *adverts = self._parts(answer, 2)
        ids = self._ids(ids_part)
        if len(digests) != KEY * len(ids) or not set(ids) <= set(self.terms.cohort):
            raise self._wrong("shows keys of others than the cohort")
        if len(ids) < self.terms.threshold:
            raise self._wrong(f"shows {len(ids)} clients, below {self.terms.threshold}")

        def digest_of(client: int) -> bytes:  # the digest of a client's keys
            start = KEY * bisect_left(ids, client)
            return digests[start : start + KEY]

        if self.me not in ids or digest_of(self.me) != digest(self._advert.body):
            raise self._wrong("shows another key of this client than its own")
        self._circle = circle = self.terms.circle(ids, digest(ids_part, digests))
        peers = circle.peers(self.me)
        if len(adverts) != len(peers):
            raise self._wrong("does not show the keys of this client's peers")
        for peer, message in zip(peers, adverts, strict=True):
            body = self.check(KEYS, peer, message)
            if digest(body) != digest_of(peer):
                raise MessageError(peer, "has other keys than those that all were told of")
            self._adverts[peer] = Advert.read(peer, body)
        return self.sign(SHARES, pack(*map(self._box, peers, self._shares(peers))))

    def _shares(self, peers: list[int]) -> list[tuple[bytes, bytes]]:
        """The shares of its two secrets for each peer. Keeps its own."""
        holders, threshold = self.circle.clients, self.terms.threshold
        seeds = share(int.from_bytes(self._seed, "little"), threshold, holders)
        keys = share(int.from_bytes(self._masking.secret, "little"), threshold, holders)
        shares = {
            h: (seeds[h].to_bytes(SHARE, "little"), keys[h].to_bytes(SHARE, "little"))
            for h in holders
        }
        self._held[self.me] = shares[self.me]
        return [shares[peer] for peer in peers]

    def _box(self, peer: int, shares: tuple[bytes, bytes]) -> bytes:
        text = pack(*shares, self.notes[self.me])
        return seal(self.key(peer, f"box {self.me}"), text, self._about(self.me, peer))

    def _about(self, sender: int, receiver: int) -> bytes:
        """What a box is bound to, the list of all clients and their keys included."""
        return digest(self.terms.parties, self.circle.view, pack_ids((sender, receiver)))

    def mask(
        self,
        answer: bytes,
        vector: MaskWords | Callable[[Session], MaskWords],
        terms: SumTerms | None = None,
    ) -> bytes:
        """The message of phase masked; the answer brings the boxes sealed for this client.

        terms: what is added up by those who have exchanged keys, if it was not known before.
        """
        terms = terms or self.terms
        if terms.parties != self.terms.parties:
            raise ProtocolError(f"Keys were exchanged for another sum than {terms.name}.")
        ids_part, *boxes = self._parts(answer, 1)
        ids = self._ids(ids_part)
        if len(ids) != len(boxes) or not set(ids) <= set(self._adverts):
            raise self._wrong("brings boxes of others than this client's peers")
        for peer, box in zip(ids, boxes, strict=True):
            self._open_box(peer, box)
        if len(self._held) < terms.threshold:
            raise self._wrong(
                f"leaves {len(self._held)} holders of this client's shares, below {terms.threshold}"
            )
        if missing := set(self.circle.openers) - {*ids, self.me}:
            raise self._wrong(f"leaves out opener {min(missing)}")
        self.terms, self._context = terms, terms.context
        words = self._vector(vector(self) if callable(vector) else vector)
        add_stream_(words, derive(self._seed, b"self" + self.terms.context))
        for peer in self._held.keys() - {self.me}:
            add_stream_(words, self._mask_key(peer), minus=self.me > peer)
        return self._early_list() + self.sign(MASKED, words.tobytes())

    def _early_list(self) -> bytes:
        """Its signature under the list of all, if the terms have it and all are there."""
        if not self.terms.early_list or len(self._held) < len(self.circle.clients):
            return b""
        self.survivors = list(self.circle.clients)
        return self.sign(AGREED, digest(pack_ids(self.survivors)))

    def _mask_key(self, peer: int) -> bytes:
        try:
            return mask_key(self._masking, self._adverts[peer].masking, self.terms.context)
        except ValueError:
            raise MessageError(peer, "has a key that hides nothing") from None

    def _open_box(self, peer: int, box: bytes) -> None:
        text = unseal(self.key(peer, f"box {peer}"), box, self._about(peer, self.me))
        try:
            parts = unpack(text or b"", 3)
        except ValueError:
            parts = []
        if not parts or len(parts[0]) != SHARE or len(parts[1]) != SHARE:
            raise MessageError(peer, "of phase 'shares' cannot be opened")
        self._held[peer] = (parts[0], parts[1])
        self.notes[peer] = parts[2]

    def _vector(self, vector: MaskWords) -> MaskWords:
        """A copy of the vector to mask."""
        if vector.shape != (self.terms.length,) or vector.dtype != self.terms.dtype:
            raise PlanError(
                f"Client {self.me}'s vector is {vector.dtype} of shape {vector.shape}, but "
                f"{self.terms.name} adds up {self.terms.word} of shape ({self.terms.length},)."
            )
        return vector.copy()

    def agree(self, answer: bytes) -> bytes:
        """The message of phase agreed; the answer is the list of those who are in the sum.

        A client that signed the list of all with its vector may sign a second one, and no more. It
        opens once, for the last list that it has signed.
        """
        ids = self._ids(answer)
        if not set(ids) <= set(self.circle.clients) or self.me not in ids:
            raise self._wrong("has a list of survivors that cannot be")
        if not set(ids) <= self._held.keys():
            raise self._wrong("calls a client a survivor that sent no shares")
        if len(ids) < self.terms.threshold:
            raise self._wrong(f"has {len(ids)} survivors, below {self.terms.threshold}")
        self.survivors = ids
        return self.sign(AGREED, digest(answer))

    def open(self, answer: bytes) -> bytes:
        """The message of phase opened; the answer shows what the peers have signed."""
        ids_part, *messages = self._parts(answer, 1)
        ids = self._ids(ids_part)
        if len(ids) != len(messages) or not set(ids) <= self._held.keys() & set(self.survivors):
            raise self._wrong("shows signatures of others than this client's peers")
        wanted = digest(pack_ids(self.survivors))
        for peer, message in zip(ids, messages, strict=True):
            if self.check(AGREED, peer, message) != wanted:
                raise MessageError(peer, "of phase 'agreed' signs another list of survivors")
        if (signatures := len({*ids, self.me})) < self.terms.threshold:
            raise self._wrong(
                f"shows {signatures} signatures under the list of survivors, below "
                f"{self.terms.threshold}"
            )
        held, self._held = self._held, {}  # let go of once, and never of both kinds
        alive = set(self.survivors)
        return self.sign(
            OPENED, b"".join(held[client][0 if client in alive else 1] for client in sorted(held))
        )

    def _parts(self, answer: bytes, least: int) -> list[bytes]:
        try:
            parts = unpack(answer)
        except ValueError as error:
            raise self._wrong(str(error)) from None
        if len(parts) < least:
            raise self._wrong("is cut short")
        return parts

    def _ids(self, part: bytes) -> list[int]:
        try:
            return unpack_ids(part)
        except ValueError as error:
            raise self._wrong(str(error)) from None

    def _wrong(self, what: str) -> ProtocolError:
        return ProtocolError(
            f"The server's message to client {self.me} in {self.terms.name} {what}: "
            "the client leaves the round."
        )
