"""Messages of a secure sum: all of one length, every bad one refused, and its sender named."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from crypto_twin import PHASES, add_up, altered, node, total, vectors

from fedrows.privacy.messages import check, pack, pack_ids, sign, unpack, unpack_ids
from fedrows.privacy.protocol import MessageError, ProtocolError
from fedrows.privacy.terms import SumTerms

FIVE = SumTerms("a test", (0, 1, 2, 3, 4), threshold=3, length=3, colluding=0)


# Clients


def flipped(message: bytes) -> bytes:
    return message[:7] + bytes([message[7] ^ 1]) + message[8:]


HOSTILE = {
    "tampered": flipped,
    "cut short": lambda message: message[:-1],
    "cut to nothing": lambda message: b"",
    "twice": lambda message: message + message,
    "signature tampered": lambda message: message[:-1] + bytes([message[-1] ^ 1]),
}


@pytest.mark.parametrize("phase", range(5), ids=PHASES)
@pytest.mark.parametrize("kind", HOSTILE)
def test_a_bad_message_is_refused_and_its_sender_named(kind: str, phase: int) -> None:
    parts = vectors(FIVE)
    found = add_up(
        FIVE, parts, hostile={3: lambda half: altered(half, phase, HOSTILE[kind])}
    ).result
    inside = [0, 1, 2, 4] if phase <= 2 else [0, 1, 2, 3, 4]
    assert found.clients == inside
    assert (found.values == total(parts, inside, FIVE)).all()
    assert "Client 3's message" in found.left_out[3]
    assert "refused" in found.left_out[3]


def recorded(terms: SumTerms, one: int) -> list[bytes]:
    """All messages that a client sends in a round."""
    kept: list[bytes] = []

    def wrap(half: Any) -> Iterator[bytes]:
        for phase in range(5):
            half = altered(half, phase, lambda message: kept.append(message) or message)
        return half

    add_up(terms, vectors(terms), hostile={one: wrap})
    return kept


def test_all_messages_have_the_same_length_whatever_the_input() -> None:
    lengths = [list(map(len, recorded(FIVE, one))) for one in (0, 0, 3)]
    assert lengths[0] == lengths[1] == lengths[2]


@pytest.mark.parametrize("phase", range(5), ids=PHASES)
@pytest.mark.parametrize("kind", ["another round", "another phase", "another client"])
def test_a_replayed_or_swapped_message_is_refused(kind: str, phase: int) -> None:
    source = replace(FIVE, name="the round before") if kind == "another round" else FIVE
    kept = recorded(source, 2 if kind == "another client" else 3)
    old = kept[(phase + 1) % 5 if kind == "another phase" else phase]
    found = add_up(
        FIVE, vectors(FIVE), hostile={3: lambda half: altered(half, phase, lambda message: old)}
    ).result
    assert "Client 3's message" in found.left_out[3]


def test_a_signature_holds_for_one_round_phase_sender_and_body() -> None:
    keys_of = {1: node(1).public, 2: node(1).public}  # even with the same key
    message = sign(node(1), b"round", "keys", 1, b"body")
    assert check(keys_of, b"round", "keys", 1, message) == b"body"
    for context, phase, sender in (
        (b"other", "keys", 1),
        (b"round", "shares", 1),
        (b"round", "keys", 2),
    ):
        with pytest.raises(MessageError, match=f"Client {sender}'s message .* its signature"):
            check(keys_of, context, phase, sender, message)


def test_a_vector_of_the_wrong_length_leaves_its_client_out() -> None:
    def shorter(message: bytes) -> bytes:  # with a right signature
        return sign(node(1), FIVE.context, "masked", 1, message[:-64][4:])

    parts = vectors(FIVE)
    found = add_up(FIVE, parts, hostile={1: lambda half: altered(half, 2, shorter)}).result
    assert "Client 1's message of phase 'masked' has 8 bytes instead of 12" in found.left_out[1]
    assert (found.values == total(parts, (0, 2, 3, 4), FIVE)).all()


@pytest.mark.parametrize("place", [0, 32], ids=["sealing", "masking"])
def test_a_key_that_hides_nothing_is_refused(place: int) -> None:
    """All zeros is a public key with which every agreement gives the same secret."""

    def zeros(message: bytes) -> bytes:
        body = message[:place] + bytes(32) + message[place + 32 : -64]
        return sign(node(1), FIVE.parties, "keys", 1, body)

    parts = vectors(FIVE)
    found = add_up(FIVE, parts, hostile={1: lambda half: altered(half, 0, zeros)}).result
    assert "Client 1's message of phase 'keys' has a key that hides nothing" in found.left_out[1]
    assert (found.values == total(parts, (0, 2, 3, 4), FIVE)).all()


def test_a_liar_about_shares_is_found_out() -> None:
    parts = vectors(FIVE)

    def lie(message: bytes) -> bytes:
        body = message[:-64]
        wrong = bytes([body[0] ^ 1]) + body[1:]
        return sign(node(0), FIVE.context, "opened", 0, wrong)

    found = add_up(FIVE, parts, hostile={0: lambda half: altered(half, 4, lie)}).result
    assert found.liars == [0]
    assert (found.values == total(parts, FIVE.cohort, FIVE)).all()
    with pytest.raises(ProtocolError, match="do not open client 0's mask"):
        add_up(FIVE, parts, {3: 4, 4: 4}, {0: lambda half: altered(half, 4, lie)})


# The server


def other_key(answer: bytes) -> bytes:
    """The server puts a key of its own in the place of client 1's."""
    parts = unpack(answer)
    forged = bytes([parts[2][0] ^ 1]) + parts[2][1:]
    return pack(*parts[:2], forged, *parts[3:])


def other_digest(answer: bytes) -> bytes:
    """The server tells of other keys of client 1 than it shows, to choose who is near whom."""
    ids, digests, *rest = unpack(answer)
    return pack(ids, digests[:32] + flipped(digests[32:]), *rest)


def swapped_boxes(answer: bytes) -> bytes:
    ids, first, second, *rest = unpack(answer)
    return pack(ids, second, first, *rest)


def tampered_box(answer: bytes) -> bytes:
    ids, first, *rest = unpack(answer)
    return pack(ids, flipped(first), *rest)


@pytest.mark.parametrize(
    ("phase", "down"), [(1, other_key), (1, other_digest), (2, swapped_boxes), (2, tampered_box)]
)
def test_a_client_refuses_what_its_peer_did_not_send(phase: int, down: Any) -> None:
    found = add_up(FIVE, vectors(FIVE), hostile={0: lambda half: altered(half, phase, down=down)})
    error = found.refused[0]
    assert isinstance(error, MessageError)
    assert error.sender == 1
    assert "Client 1's message" in str(error)
    assert found.result.clients == [1, 2, 3, 4]


@pytest.mark.parametrize("phase", [1, 2, 3, 4])
@pytest.mark.parametrize("down", [lambda answer: answer[:-1], lambda answer: answer[:2]])
def test_a_client_leaves_a_server_whose_message_is_cut_short(phase: int, down: Any) -> None:
    found = add_up(FIVE, vectors(FIVE), hostile={0: lambda half: altered(half, phase, down=down)})
    assert 0 in found.refused


def test_a_server_that_shows_different_cohorts_opens_nothing() -> None:
    """Clients that are told of different cohorts cannot open each other's boxes."""

    def without_four(answer: bytes) -> bytes:
        ids, digests, *adverts = unpack(answer)
        return pack(pack_ids(unpack_ids(ids)[:-1]), digests[:-32], *adverts[:-1])

    def with_a_box_more(message: bytes) -> bytes:  # or the server half would leave it out
        boxes = unpack(message[:-64])
        return sign(node(0), FIVE.parties, "shares", 0, pack(*boxes, b"a box for client 4"))

    def wrap(half: Any) -> Any:
        return altered(altered(half, 1, down=without_four), 1, with_a_box_more)

    with pytest.raises(ProtocolError, match="0 of 5 clients came through phase 'masked'"):
        add_up(FIVE, vectors(FIVE), hostile={0: wrap})
