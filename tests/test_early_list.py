"""Sums whose clients sign the list of all with their vectors, and whose keys come first."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("cryptography")

from crypto_twin import add_up, altered, node, registry, total, vectors

from fedrows.privacy import secure_sum
from fedrows.privacy.messages import pack, pack_ids, unpack
from fedrows.privacy.protocol import ProtocolError, run
from fedrows.privacy.secure_sum import _SECOND
from fedrows.privacy.session import Session
from fedrows.privacy.shamir import SHARE
from fedrows.privacy.terms import SumTerms

FIVE = SumTerms("a test", (0, 1, 2, 3, 4), threshold=4, length=3, early_list=True)


def test_where_nobody_drops_out_there_is_a_message_less() -> None:
    parts = vectors(FIVE)
    outcome = add_up(FIVE, parts)
    assert (outcome.result.values == total(parts, FIVE.cohort, FIVE)).all()
    assert len(outcome.phases) == 4


@pytest.mark.parametrize("phase", range(4))
def test_one_drop_out_in_any_phase(phase: int) -> None:
    """Keys, shares, vectors, and then a second list or the opened masks."""
    parts = vectors(FIVE)
    outcome = add_up(FIVE, parts, {2: phase})
    inside = FIVE.cohort if phase == 3 else (0, 1, 3, 4)
    assert outcome.result.clients == list(inside)
    assert (outcome.result.values == total(parts, inside, FIVE)).all()
    assert len(outcome.phases) == (5 if phase in (1, 2) else 4)  # all are those who have keys


@pytest.mark.parametrize("part", ["list", "vector"])
def test_a_client_that_signs_one_of_the_two_wrongly_is_named(part: str) -> None:
    def tamper(message: bytes) -> bytes:
        place = 40 if part == "list" else -10
        changed = bytearray(message)
        changed[place] ^= 1
        return bytes(changed)

    parts = vectors(FIVE)
    found = add_up(FIVE, parts, hostile={1: lambda half: altered(half, 2, tamper)}).result
    inside = FIVE.cohort if part == "list" else (0, 2, 3, 4)
    assert "does not bear its signature" in found.left_out[1]
    assert (found.values == total(parts, inside, FIVE)).all()


def masked(terms: SumTerms = FIVE) -> tuple[dict[int, Session], dict[int, bytes]]:
    """Five clients that have sent their vectors, and what they signed with these."""
    sessions = {one: Session(terms, one, node(one), registry(terms.cohort)) for one in terms.cohort}
    server = secure_sum.server(terms, registry(terms.cohort))
    next(server)
    requests: Any = server.send({one: its.advertise() for one, its in sessions.items()})
    requests = server.send({one: sessions[one].share(its) for one, its in requests.items()})
    sent = vectors(terms)
    messages = {one: sessions[one].mask(its, sent[one]) for one, its in requests.items()}
    return sessions, {one: message[:96] for one, message in messages.items()}


def shown(signatures: dict[int, bytes], to: int) -> bytes:
    """The signatures of all others, as a client is shown them."""
    others = [one for one in sorted(signatures) if one != to]
    return pack(pack_ids(others), *(signatures[one] for one in others))


# Who is told that client 2 is not in the sum; 4 is in league with the server.
SPLITS = [told for count in range(4) for told in itertools.combinations((0, 1, 3), count)]


def opened_secrets(terms: SumTerms, told: tuple[int, ...]) -> list[str]:
    """Which secrets of client 2 are opened if some honest clients sign a second list without it."""
    sessions, signed = masked(terms)
    fewer = [0, 1, 3, 4]
    second = {one: sessions[one].agree(pack_ids(fewer)) for one in (*told, 4)}
    kinds: dict[str, dict[int, int]] = {"seed": {}, "key": {}}
    for one in (0, 1, 2, 3):
        try:
            reply = sessions[one].open(shown(second if one in told else signed, one))[:-64]
        except ProtocolError:
            assert one in told  # the second list has too few signatures
            continue
        share = reply[2 * SHARE : 3 * SHARE]
        kinds["key" if one in told else "seed"][one] = int.from_bytes(share, "little")
    own = sessions[4]._held[2]  # the colluding client gives both away
    for kind, secret in (("seed", own[0]), ("key", own[1])):
        kinds[kind][4] = int.from_bytes(secret, "little")
    return [kind for kind, held in kinds.items() if len(held) >= terms.threshold]


@pytest.mark.parametrize("told", SPLITS)
def test_two_lists_never_open_both_secrets_of_a_client(told: tuple[int, ...]) -> None:
    """Its seed opens if few are told of the second list, its masking key if all are."""
    expected = {0: ["seed"], 1: ["seed"], 2: [], 3: ["key"]}
    assert opened_secrets(FIVE, told) == expected[len(told)]


def test_at_a_lower_threshold_they_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """Broken on purpose: with 2t no more than the clients and the colluding one, both open."""
    monkeypatch.setattr(SumTerms, "_check_guarantee", lambda terms, n: None)
    assert opened_secrets(replace(FIVE, threshold=3), (0, 1)) == ["seed", "key"]


def test_a_client_opens_for_the_last_list_that_it_signed() -> None:
    sessions, signed = masked()
    sessions[0].agree(pack_ids([0, 1, 3, 4]))
    with pytest.raises(ProtocolError, match="others than this client's peers"):
        sessions[0].open(shown(signed, 0))


def test_a_client_signs_no_third_list() -> None:
    def ask_thrice(half: Any) -> Any:
        """A client that is asked for a second list, and for a third in place of signatures."""
        request = yield next(half)
        request = yield half.send(request)
        yield half.send(request)
        half.send(_SECOND + pack_ids([0, 1, 3, 4]))
        yield half.send(_SECOND + pack_ids([0, 1, 2, 4]))

    outcome = add_up(FIVE, vectors(FIVE), hostile={0: ask_thrice})
    assert "the client leaves the round" in str(outcome.refused[0])


def test_keys_of_one_sum_serve_for_no_other() -> None:
    """What is added up may be known late; who adds up, and in which sum, is bound to the keys."""
    parts = vectors(FIVE)
    early = replace(FIVE, length=0)
    keys = registry(FIVE.cohort)

    def outcome(mine: SumTerms) -> Any:
        others = {one: FIVE for one in FIVE.cohort} | {0: mine}
        clients = {
            one: secure_sum.client(early, one, node(one), keys, parts[one], b"", lambda t=t: t)
            for one, t in others.items()
        }
        return run(secure_sum.server(early, keys, lambda: FIVE), clients)

    assert (outcome(FIVE).result.values == total(parts, FIVE.cohort, FIVE)).all()
    told = outcome(replace(FIVE, about="another model")).result  # its signature is of another sum
    assert told.clients == [1, 2, 3, 4]
    refused = outcome(replace(FIVE, name="another sum"))
    assert "Keys were exchanged for another sum" in str(refused.refused[0])


def test_the_messages_have_the_parts_that_the_tests_above_take_apart() -> None:
    sessions, signed = masked()
    assert {len(part) for part in signed.values()} == {32 + 64}
    assert len(unpack(shown(signed, 0))) == 5
    assert sessions[0].survivors == list(FIVE.cohort)
