"""The secure sum is blind to one client: what the server sees, and what is never let go."""

import hashlib
import itertools
import os
from contextvars import ContextVar
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from crypto_twin import add_up, altered, far_apart, far_from_uniform, halves, node, registry

import fedrows.privacy.session as session_module
from fedrows.privacy import keys, shamir
from fedrows.privacy.keys import add_stream_, stream
from fedrows.privacy.messages import pack, pack_ids
from fedrows.privacy.protocol import MessageError, ProtocolError, run
from fedrows.privacy.secure_sum import server
from fedrows.privacy.session import Session, mask_key
from fedrows.privacy.terms import SumTerms

FIVE = SumTerms("a test", (0, 1, 2, 3, 4), threshold=3, length=3, colluding=0)
LONG = replace(FIVE, length=100_000)


# What the server sees


def masked_words(value: int) -> np.ndarray[Any, Any]:
    """What the server sees of client 2, whose vector is one value over and over."""
    parts = {one: np.full(LONG.length, 0, dtype=np.uint32) for one in LONG.cohort}
    parts[2][:] = value
    kept: list[bytes] = []

    def keep(message: bytes) -> bytes:
        kept.append(message)
        return message

    add_up(LONG, parts, hostile={2: lambda half: altered(half, 2, keep)})
    return np.frombuffer(kept[0][:-64], dtype=np.uint32)


@pytest.fixture
def one_mask_over_and_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """Broken on purpose: a stream repeats its first word."""

    def repeat(words: Any, key: bytes, *, minus: bool = False) -> None:
        word = stream(key, 1, words.dtype)
        words += np.negative(word) if minus else word

    monkeypatch.setattr(session_module, "add_stream_", repeat)
    monkeypatch.setattr("fedrows.privacy.secure_sum.add_stream_", repeat)


@pytest.fixture
def keys_of_another_round(monkeypatch: pytest.MonkeyPatch) -> None:
    """Broken on purpose: the secrets of a client are the same in every round."""
    registry(FIVE.cohort)  # node keys live longer than this
    same = ContextVar("source", default=lambda count: bytes([7]) * count)
    monkeypatch.setattr("fedrows.privacy.randomness._source", same)


def test_what_the_server_sees_is_uniform() -> None:
    assert far_from_uniform(masked_words(7)) < 7


def test_the_test_of_uniformity_fails_with_a_mask_reused(one_mask_over_and_over: None) -> None:
    assert far_from_uniform(masked_words(7)) > 7


def test_two_inputs_look_the_same() -> None:
    assert far_apart(masked_words(0), masked_words(2**31 + 12345)) < 7


def test_the_test_of_two_inputs_fails_with_a_mask_reused(one_mask_over_and_over: None) -> None:
    assert far_apart(masked_words(0), masked_words(2**31 + 12345)) > 7


def test_two_rounds_of_a_client_are_independent() -> None:
    assert far_from_uniform(masked_words(5) - masked_words(3)) < 7


def test_the_test_of_two_rounds_fails_when_keys_are_not_fresh(keys_of_another_round: None) -> None:
    assert far_from_uniform(masked_words(5) - masked_words(3)) > 7


# What is never let go


def sent(terms: SumTerms, parts: dict[int, Any], late: int) -> dict[int, dict[int, bytes]]:
    """All messages of a sum by phase and client; the late one's vector is kept from the server."""
    kept: dict[int, dict[int, bytes]] = {phase: {} for phase in range(5)}

    def keep(phase: int, one: int) -> Any:
        def note(message: bytes) -> bytes:
            kept[phase][one] = message
            return b"" if (phase, one) == (2, late) else message

        return note

    clients = halves(terms, parts)
    for one, phase in itertools.product(terms.cohort, range(5)):
        clients[one] = altered(clients[one], phase, keep(phase, one))
    result = run(server(terms, registry(terms.cohort)), clients).result
    assert late not in result.clients
    return kept


def test_a_late_vector_stays_masked() -> None:
    """The server opens the late client's pairwise masks, and its vector is still uniform."""
    terms, late = replace(FIVE, length=100_000), 2
    parts = {one: np.zeros(terms.length, dtype=np.uint32) for one in terms.cohort}
    kept = sent(terms, parts, late)
    place = 33 * terms.cohort.index(late)  # of its share among those that others let go of
    shares = {
        holder: int.from_bytes(message[place : place + 33], "little")
        for holder, message in kept[4].items()
    }
    assert len(shares) == 4
    secrets = {
        shamir.value_at(0, dict(three)) for three in itertools.combinations(shares.items(), 3)
    }
    assert len(secrets) == 1  # all four are shares of one secret, the masking key
    key = keys.AgreementKey(secrets.pop().to_bytes(32, "little"))
    assert key.public == kept[0][late][32:64]
    words = np.frombuffer(kept[2][late][:-64], dtype=np.uint32).copy()
    for other in kept[4]:
        mask = mask_key(key, kept[0][other][32:64], terms.context)
        add_stream_(words, mask, minus=late < other)
    assert far_from_uniform(words) < 7  # its self mask alone is left, on a vector of zeros


def to_agreed() -> dict[int, Session]:
    """Five sessions that have all sent their vectors."""
    keys_of = registry(FIVE.cohort)
    sessions = {one: Session(FIVE, one, node(one), keys_of) for one in FIVE.cohort}
    half = server(FIVE, keys_of)
    requests = next(half)
    requests = half.send({one: s.advertise() for one, s in sessions.items()})
    requests = half.send({one: s.share(requests[one]) for one, s in sessions.items()})
    words = np.zeros(FIVE.length, dtype=np.uint32)
    half.send({one: s.mask(requests[one], words) for one, s in sessions.items()})
    return sessions


def signed_lists(sessions: dict[int, Session], survivors: tuple[int, ...]) -> dict[int, bytes]:
    return {one: sessions[one].agree(pack_ids(survivors)) for one in survivors}


def test_a_client_never_lets_go_of_both_kinds_of_share() -> None:
    sessions = to_agreed()
    signed = signed_lists(sessions, FIVE.cohort)
    answer = pack(pack_ids((1, 2)), signed[1], signed[2])
    assert len(sessions[0].open(answer)) == 5 * 33 + 64
    with pytest.raises(ProtocolError, match="leaves the round"):
        sessions[0].agree(pack_ids((0, 1, 2)))
    with pytest.raises(ProtocolError, match="leaves the round"):
        sessions[0].open(answer)


def test_different_lists_of_survivors_are_caught() -> None:
    sessions = to_agreed()
    mine = sessions[0].agree(pack_ids((0, 1, 2)))
    other = sessions[1].agree(pack_ids((0, 1, 2, 3)))
    assert mine != other
    with pytest.raises(MessageError, match=r"Client 1's message .* another list of survivors"):
        sessions[0].open(pack(pack_ids((1,)), other))


@pytest.mark.parametrize(
    ("survivors", "why"),
    [
        ((0, 1), "2 survivors, below 3"),
        ((1, 2, 3), "cannot be"),
        ((0, 1, 9), "cannot be"),
        ((0, 2, 1), "out of order"),
    ],
)
def test_a_list_of_survivors_that_cannot_be(survivors: tuple[int, ...], why: str) -> None:
    with pytest.raises(ProtocolError, match=why):
        to_agreed()[0].agree(pack_ids(survivors))


def test_too_few_signatures_open_nothing() -> None:
    sessions = to_agreed()
    signed = signed_lists(sessions, FIVE.cohort)
    with pytest.raises(ProtocolError, match="2 signatures under the list of survivors, below 3"):
        sessions[0].open(pack(pack_ids((1,)), signed[1]))


def test_a_client_refuses_a_key_that_hides_nothing_from_a_server_that_does_not() -> None:
    sessions = to_agreed()
    sessions[0]._adverts[1] = replace(sessions[0]._adverts[1], masking=bytes(32))
    with pytest.raises(MessageError, match="Client 1's message has a key that hides nothing"):
        sessions[0]._mask_key(1)


# Streams


def first_words(fold: bool) -> np.ndarray[Any, Any]:
    """The first 64 bits of the streams of 2^17 keys; folded, a key is only 32 bits of itself."""
    found = np.empty(1 << 17, dtype=np.uint64)
    for number in range(len(found)):
        key = hashlib.sha256(number.to_bytes(4, "little")).digest()
        if fold:
            words = np.frombuffer(key, dtype=np.uint32)
            key = int(np.bitwise_xor.reduce(words)).to_bytes(32, "little")
        found[number] = stream(key, 1, np.uint64)[0]
    return found


def collisions(words: np.ndarray[Any, Any]) -> int:
    return len(words) - len(np.unique(words))


@pytest.mark.slow
def test_masks_do_not_collide_but_would_with_32_bits_of_seed() -> None:
    assert collisions(first_words(fold=False)) == 0
    assert collisions(first_words(fold=True)) > 0


def test_every_bit_of_a_key_counts() -> None:
    """Two keys that agree in the 32 bits they fold to give different streams."""
    key = os.urandom(32)
    other = bytes([key[0] ^ 1, *key[1:4], key[4] ^ 1, *key[5:]])
    fold = [int(np.bitwise_xor.reduce(np.frombuffer(k, dtype=np.uint32))) for k in (key, other)]
    assert fold[0] == fold[1]
    assert (stream(key, 4, np.uint32) != stream(other, 4, np.uint32)).any()
    for bit in range(256):
        near = (int.from_bytes(key, "little") ^ (1 << bit)).to_bytes(32, "little")
        assert (stream(key, 4, np.uint32) != stream(near, 4, np.uint32)).any()


def test_streams_are_added_and_taken_off() -> None:
    key = os.urandom(32)
    for dtype in (np.uint8, np.uint16, np.uint32, np.uint64):
        words = np.arange(70_003).astype(dtype)
        add_stream_(words, key)
        assert (words - stream(key, 70_003, dtype) == np.arange(70_003).astype(dtype)).all()
        add_stream_(words, key, minus=True)
        assert (words == np.arange(70_003).astype(dtype)).all()
