"""The secure sum: exact whoever drops out when, closed below its threshold, blind to one client."""

import hashlib
import itertools
import os
import runpy
import sys
from collections import Counter
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from crypto_twin import (
    PHASES,
    add_up,
    altered,
    far_apart,
    far_from_uniform,
    halves,
    node,
    registry,
    total,
    vectors,
)
from hypothesis import given, settings
from hypothesis import strategies as st

import fedrows.privacy.session as session_module
from fedrows.errors import FedrowsError, PlanError
from fedrows.privacy import graph, keys, shamir
from fedrows.privacy.keys import NodeKey, add_stream_, stream
from fedrows.privacy.messages import check, pack, pack_ids, sign, unpack, unpack_ids
from fedrows.privacy.protocol import MessageError, ProtocolError, collect, run
from fedrows.privacy.ring import Coding, RangeError
from fedrows.privacy.secure_sum import server
from fedrows.privacy.session import Session, mask_key
from fedrows.privacy.terms import Terms

FIVE = Terms("a test", (0, 1, 2, 3, 4), threshold=3, length=3)
NEVER = len(PHASES)  # the phase in which a client that stays drops out


# ------------------------------------------------------------------ drop-outs


def check_pattern(pattern: tuple[int, ...]) -> None:
    """The sum is exact, or refused, as the number of clients that stay demands."""
    parts = vectors(FIVE)
    drop = dict(enumerate(pattern))
    if sum(phase == NEVER for phase in pattern) < FIVE.threshold:
        with pytest.raises(ProtocolError, match="nothing was opened"):
            add_up(FIVE, parts, drop)
        return
    found = add_up(FIVE, parts, drop)
    inside = [one for one in FIVE.cohort if drop[one] > PHASES.index("masked")]
    assert found.result.clients == inside
    assert (found.result.values == total(parts, inside, FIVE)).all()
    assert not found.refused
    for one in set(FIVE.cohort) - set(inside):
        assert f"Client {one} did not answer" in found.result.left_out[one]


def test_every_pattern_of_drop_outs_up_to_who_it_is() -> None:
    for number, pattern in enumerate(
        itertools.combinations_with_replacement(range(NEVER + 1), len(FIVE.cohort))
    ):
        turn = number % 5
        check_pattern(pattern[turn:] + pattern[:turn])


@pytest.mark.slow
def test_every_pattern_of_drop_outs() -> None:
    for pattern in itertools.product(range(NEVER + 1), repeat=len(FIVE.cohort)):
        check_pattern(pattern)


@pytest.mark.parametrize("phase", range(5), ids=PHASES)
def test_below_the_threshold_the_sum_ends_in_that_phase(phase: int) -> None:
    with pytest.raises(ProtocolError, match=f"2 of 5 clients came through phase '{PHASES[phase]}'"):
        add_up(FIVE, vectors(FIVE), dict.fromkeys((0, 2, 3), phase))


def random_drops(n: int, share: float, seed: int) -> dict[int, int]:
    draw = np.random.default_rng(seed)
    gone = draw.choice(n, int(share * n), replace=False)
    return {int(one): int(draw.integers(NEVER)) for one in gone}


def check_random(terms: Terms, drop: dict[int, int]) -> None:
    parts = vectors(terms)
    found = add_up(terms, parts, drop)
    inside = [one for one in terms.cohort if drop.get(one, NEVER) > 2]
    assert found.result.clients == inside
    assert (found.result.values == total(parts, inside, terms)).all()


def test_a_hundred_clients_on_a_graph_with_random_drop_outs() -> None:
    k, needed = graph.choose(100, colluding=0.05, dropping=0.1)
    terms = Terms("a graph", tuple(range(100)), 90, 50, neighbours=k, needed=needed)
    check_random(terms, random_drops(100, 0.1, seed=1))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_a_hundred_clients_with_random_drop_outs(seed: int) -> None:
    terms = Terms("all with all", tuple(range(100)), 67, 50)
    check_random(terms, random_drops(100, 0.33, seed))


@settings(max_examples=25, deadline=None)
@given(
    cohort=st.sets(st.integers(0, 2**64 - 1), min_size=3, max_size=5),
    length=st.integers(0, 70),
    word=st.sampled_from(("uint8", "uint16", "uint32", "uint64")),
)
def test_any_cohort_length_and_word(cohort: set[int], length: int, word: str) -> None:
    terms = Terms("any", tuple(sorted(cohort)), 3, length, word)
    parts = vectors(terms)
    assert (add_up(terms, parts).result.values == total(parts, cohort, terms)).all()


def test_a_long_vector_crosses_the_chunks_of_the_stream() -> None:
    terms = replace(FIVE, length=40_001)
    parts = vectors(terms)
    found = add_up(terms, parts, {1: 2}).result
    assert (found.values == total(parts, (0, 2, 3, 4), terms)).all()


def test_the_driver_counts_what_it_carries() -> None:
    phases = add_up(FIVE, vectors(FIVE), {4: 2}).phases
    assert [phase.asked for phase in phases] == [5, 5, 5, 4, 4]
    assert [phase.answered for phase in phases] == [5, 5, 4, 4, 4]
    assert phases[0].bytes_up == 5 * (3 * 32 + 64)
    assert phases[2].most_up == 3 * 4 + 64
    assert all(phase.client_seconds > 0 and phase.server_seconds > 0 for phase in phases)


# ------------------------------------------------------------------ what is never let go


def sent(terms: Terms, parts: dict[int, Any], late: int) -> dict[int, dict[int, bytes]]:
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


# ------------------------------------------------------------------ hostile messages


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


def recorded(terms: Terms, one: int) -> list[bytes]:
    """All messages that a client sends in a round."""
    kept: list[bytes] = []

    def wrap(half: Any) -> Iterator[bytes]:
        for phase in range(5):
            half = altered(half, phase, lambda message: kept.append(message) or message)
        return half

    add_up(terms, vectors(terms), hostile={one: wrap})
    return kept


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
        return sign(node(1), FIVE.context, "keys", 1, body)

    parts = vectors(FIVE)
    found = add_up(FIVE, parts, hostile={1: lambda half: altered(half, 0, zeros)}).result
    assert "Client 1's message of phase 'keys' has a key that hides nothing" in found.left_out[1]
    assert (found.values == total(parts, (0, 2, 3, 4), FIVE)).all()


def test_a_client_refuses_a_key_that_hides_nothing_from_a_server_that_does_not() -> None:
    sessions = to_agreed()
    sessions[0]._adverts[1] = replace(sessions[0]._adverts[1], masking=bytes(32))
    with pytest.raises(MessageError, match="Client 1's message has a key that hides nothing"):
        sessions[0]._mask_key(1)


def test_a_client_that_answers_twice_is_left_out() -> None:
    replies, twice = collect([(0, b"a"), (1, b"b"), (0, b"c"), (0, b"d")])
    assert replies == {1: b"b"}
    assert list(twice) == [0]
    assert "Client 0 answered twice" in twice[0]


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
        return sign(node(0), FIVE.context, "shares", 0, pack(*boxes, b"a box for client 4"))

    def wrap(half: Any) -> Any:
        return altered(altered(half, 1, down=without_four), 1, with_a_box_more)

    with pytest.raises(ProtocolError, match="0 of 5 clients came through phase 'masked'"):
        add_up(FIVE, vectors(FIVE), hostile={0: wrap})


def test_terms_that_differ_are_found_out_at_once() -> None:
    other = halves(replace(FIVE, threshold=4), vectors(FIVE))
    with pytest.raises(ProtocolError, match="0 of 5 clients came through phase 'keys'"):
        run(server(FIVE, registry(FIVE.cohort)), other)


def test_a_stranger_is_left_out() -> None:
    known = registry(FIVE.cohort) | {4: NodeKey().public}
    found = run(server(FIVE, known), halves(FIVE, vectors(FIVE))).result
    assert found.clients == [0, 1, 2, 3]
    missing = {one: key for one, key in known.items() if one != 4}
    found = run(server(FIVE, missing), halves(FIVE, vectors(FIVE))).result
    assert "Client 4 has no registered node key" in found.left_out[4]


# ------------------------------------------------------------------ what the server sees


LONG = replace(FIVE, length=100_000)


def masked_words(value: int, **changes: Any) -> np.ndarray[Any, Any]:
    """What the server sees of client 2, whose vector is one value over and over."""
    terms = replace(LONG, **changes)
    parts = {one: np.full(terms.length, 0, dtype=np.uint32) for one in terms.cohort}
    parts[2][:] = value
    kept: list[bytes] = []

    def keep(message: bytes) -> bytes:
        kept.append(message)
        return message

    add_up(terms, parts, hostile={2: lambda half: altered(half, 2, keep)})
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


def test_all_messages_have_the_same_length_whatever_the_input() -> None:
    lengths = [list(map(len, recorded(FIVE, one))) for one in (0, 0, 3)]
    assert lengths[0] == lengths[1] == lengths[2]


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


# ------------------------------------------------------------------ Shamir's shares


def test_any_t_shares_give_the_secret_back() -> None:
    secret = int.from_bytes(os.urandom(32), "little")
    shares = shamir.share(secret, 3, range(5))
    for chosen in itertools.combinations(shares, 3):
        assert shamir.value_at(0, {one: shares[one] for one in chosen}) == secret


@given(candidate=st.integers(0, 2**256 - 1))
def test_fewer_shares_fit_every_secret(candidate: int) -> None:
    """Whatever secret one suspects, some third share makes it the one that was shared."""
    shares = shamir.share(12345, 3, range(5))
    two = {one: shares[one] for one in (1, 4)}
    third = shamir.value_at(3, {-1: candidate, **two})  # holder −1 stands at x = 0
    assert shamir.value_at(0, {**two, 2: third}) == candidate


def pairs_seen(secret: int) -> np.ndarray[Any, Any]:
    """How often each pair of shares occurs among 5,000 sharings in the field of 5, t = 3."""
    found = np.zeros(25)
    for _ in range(5000):
        shares = shamir.share(secret, 3, range(2), prime=5)
        found[5 * shares[0] + shares[1]] += 1
    return found


def test_two_shares_of_three_are_uniform_whatever_the_secret() -> None:
    for secret in (0, 3):
        assert ((pairs_seen(secret) - 200) ** 2 / 200).sum() < 80  # 24 degrees: p < 1e-7


def test_that_test_fails_with_a_polynomial_of_lower_degree(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = itertools.cycle((lambda prime: 0, shamir.below))
    monkeypatch.setattr(shamir, "below", lambda prime: next(drawn)(prime))
    assert ((pairs_seen(3) - 200) ** 2 / 200).sum() > 80


def test_wrong_shares_are_named() -> None:
    shares = shamir.share(77, 3, range(6))
    shares[0] += 1
    shares[5] += 1
    assert shamir.recover(shares, 3, lambda found: found == 77) == (77, [0, 5])
    assert shamir.recover({0: shares[0], 1: shares[1]}, 2, lambda found: found == 77) is None


# ------------------------------------------------------------------ fixed point


@given(
    values=st.lists(st.floats(-2, 2), min_size=1, max_size=20),
    correction=st.floats(1, 5000),
)
def test_a_sum_is_right_to_its_precision(values: list[float], correction: float) -> None:
    coding = Coding(range=2, clients=len(values), correction=correction)
    words = np.zeros(1, dtype=coding.dtype)
    for value in values:
        words = words + coding.encode(np.array([value]))
    assert abs(float(coding.decode(words)[0]) - np.sum(values)) * correction <= 1e-6 * 1.001
    assert coding.error <= 1e-6


@pytest.mark.parametrize("sign_", [-1, 1])
@pytest.mark.parametrize("clients", [1, 3, 500])
def test_the_extremes_do_not_wrap_around(clients: int, sign_: int) -> None:
    coding = Coding(range=1.7, clients=clients, precision=1e-4)
    words = np.zeros(1, dtype=coding.dtype)
    for _ in range(clients):
        words = words + coding.encode(np.array([sign_ * 1.7]))
    assert float(coding.decode(words)[0]) == pytest.approx(sign_ * 1.7 * clients, abs=1e-4)


def bias(encode: Any, coding: Coding) -> float:
    """How many standard errors the mean of many roundings of 0.3 steps is off."""
    step = 2.0**-coding.fraction
    found = coding.decode(encode(np.full(100_000, 0.3 * step))) / step
    return abs(float(found.mean()) - 0.3) / float(np.sqrt(0.3 * 0.7 / len(found)))


def test_rounding_is_unbiased() -> None:
    coding = Coding(range=1, clients=10)
    assert bias(coding.encode, coding) < 5


def test_the_test_of_rounding_fails_when_it_rounds_down(monkeypatch: pytest.MonkeyPatch) -> None:
    coding = Coding(range=1, clients=10)
    highest = np.uint64(2**64 - 1)
    monkeypatch.setattr(
        "fedrows.privacy.ring.random_words", lambda count, dtype: np.full(count, highest)
    )
    assert bias(coding.encode, coding) > 5


@pytest.mark.parametrize("value", [2.5, -2.5, np.nan, np.inf])
def test_a_value_outside_of_the_range_is_refused(value: float) -> None:
    with pytest.raises(RangeError, match=r"A value of client 7 is .* outside of .* ±2"):
        Coding(range=2, clients=3).encode(np.array([0.0, value]), client=7)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"range": 1e9, "clients": 10**6, "correction": 1e6}, "needs words of .* bits"),
        ({"range": 1e300, "clients": 2}, "needs words of .* bits"),
        ({"range": 0.0, "clients": 2}, "range is 0.0"),
        ({"range": 1.0, "clients": 0}, "clients is 0"),
        ({"range": 1.0, "clients": 2, "precision": float("nan")}, "precision is nan"),
    ],
)
def test_a_budget_that_cannot_hold_is_refused_before_the_start(
    options: dict[str, Any], why: str
) -> None:
    with pytest.raises(RangeError, match=why):
        Coding(**options)


def test_the_word_is_the_smallest_that_holds() -> None:
    assert Coding(range=1, clients=50, precision=1e-3).bits == 32
    assert Coding(range=1.9, clients=1, precision=2.0**-30).bits == 32
    assert Coding(range=2, clients=1, precision=2.0**-30).bits == 64  # 2^31 has no room for a sign
    assert Coding(range=1, clients=50, correction=6000).bits == 64


# ------------------------------------------------------------------ the graph


@given(n=st.integers(3, 40), half=st.integers(1, 10), seed=st.binary(min_size=1, max_size=4))
def test_neighbours_are_mutual_and_k_each(n: int, half: int, seed: bytes) -> None:
    made = graph.Graph(range(n), 2 * half, seed)
    for one in range(n):
        near = made.neighbours(one)
        assert len(set(near)) == min(2 * half, n - 1)
        assert one not in near
        assert all(one in made.neighbours(other) for other in near)


def test_the_order_follows_from_the_seed_alone() -> None:
    assert graph.Graph(range(50), 6, b"a").order == graph.Graph(range(50), 6, b"a").order
    assert graph.Graph(range(50), 6, b"a").order != graph.Graph(range(50), 6, b"b").order


def went_wrong(n: int, k: int, needed: int, bad: int, gone: int, tries: int) -> tuple[float, float]:
    """How often a round goes wrong in security and in correctness, tried out."""
    draw = np.random.default_rng(0)
    found = np.zeros(2)
    for number in range(tries):
        made = graph.Graph(range(n), k, number.to_bytes(4, "little"))
        colluding = set(draw.choice(n, bad, replace=False).tolist())
        leaving = set(draw.choice(n, gone, replace=False).tolist())
        near = {one: set(made.neighbours(one)) for one in range(n)}
        honest = set(range(n)) - colluding - leaving
        reached, todo = set(), [min(honest)]
        while todo:
            one = todo.pop()
            reached.add(one)
            todo += (near[one] & honest) - reached
        exposed = any(len(near[one] & colluding) >= needed for one in range(n))
        found[0] += exposed or reached != honest
        found[1] += any(len(near[one] - leaving) < needed for one in range(n))
    return float(found[0]) / tries, float(found[1]) / tries


def test_the_odds_are_not_below_what_happens() -> None:
    n, k, needed = 20, 6, 4
    said = graph.failure(n, k, needed, colluding=0.2, dropping=0.15)
    security, correctness = went_wrong(n, k, needed, bad=4, gone=3, tries=1500)
    assert 0.02 < security <= said.security < 1
    assert 0.1 < correctness <= said.correctness < 1


def test_the_chance_of_colluders_is_that_of_counting() -> None:
    hands = list(itertools.combinations(range(8), 3))
    for marked in (0, 2, 5):
        counted = Counter(sum(card < marked for card in hand) for hand in hands)
        for c, odds in enumerate(graph._drawn(8, marked, 3)):
            assert odds == pytest.approx(counted[c] / len(hands))


def test_the_chosen_graph_is_as_safe_as_asked() -> None:
    k, needed = graph.choose(1000, colluding=0.1, dropping=0.1)
    odds = graph.failure(1000, k, needed, 0.1, 0.1)
    assert odds.security <= 2**-40
    assert odds.correctness <= 2**-40
    assert k < 100
    hard, more = graph.choose(1000, 0.1, 0.1, malicious=True)
    assert hard > k
    assert more > needed


@pytest.mark.parametrize(
    ("n", "colluding", "why"), [(6, 0.4, "No graph"), (9, 1.0, "share"), (2, 0, "2 clients")]
)
def test_a_graph_that_cannot_be(n: int, colluding: float, why: str) -> None:
    with pytest.raises(PlanError, match=why):
        graph.choose(n, colluding, 0.1)


# ------------------------------------------------------------------ bad terms


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"threshold": 6}, "threshold .* is 6, but must be at least 2 and at most the 5"),
        ({"threshold": 1}, "threshold .* is 1"),
        ({"threshold": 2}, "too low for 1 clients in league"),
        ({"colluding": 2}, "too low for 2 clients in league"),
        ({"malicious": True}, "too low against a server that breaks the protocol"),
        ({"cohort": (0, 0, 1)}, "different numbers"),
        ({"cohort": (2, 1, 3)}, "rising order"),
        ({"cohort": (-1, 1, 3)}, "different numbers from 0"),
        ({"word": "float32"}, "float32"),
        ({"length": -1}, "-1 words"),
        ({"openers": 6}, "6 openers"),
        ({"openers": 1}, "1 openers, too few for 1 clients in league"),
        ({"neighbours": 2, "needed": 2}, "2 neighbours and needs 2 shares, too few"),
        ({"neighbours": 4}, "both"),
        ({"neighbours": 3, "needed": 2}, "even number"),
        ({"neighbours": 4, "needed": 5}, "even number"),
    ],
)
def test_terms_that_cannot_hold_are_refused(changes: dict[str, Any], why: str) -> None:
    with pytest.raises(PlanError, match=why):
        replace(FIVE, **changes)


def test_a_vector_of_another_shape_is_refused_by_its_own_client() -> None:
    parts = vectors(FIVE) | {1: np.zeros(4, dtype=np.uint32), 2: np.zeros(3, dtype=np.int32)}
    found = add_up(FIVE, parts)
    assert "Client 1's vector is uint32 of shape (4,)" in str(found.refused[1])
    assert "Client 2's vector is int32" in str(found.refused[2])
    assert found.result.clients == [0, 3, 4]


def test_a_client_outside_of_the_cohort_is_refused() -> None:
    with pytest.raises(FedrowsError, match="Client 9 is not in the cohort"):
        Session(FIVE, 9, node(9), {})


def test_without_cryptography_one_sentence_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "cryptography.exceptions", None)
    with pytest.raises(FedrowsError, match=r"need the package cryptography: pip install"):
        runpy.run_path(str(keys.__file__))
