"""The secure sum: exact whoever drops out when, and closed below its threshold."""

import itertools
import runpy
import sys
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from crypto_twin import PHASES, add_up, halves, node, registry, total, vectors
from hypothesis import given, settings
from hypothesis import strategies as st

from fedrows.errors import FedrowsError, PlanError
from fedrows.privacy import keys
from fedrows.privacy.keys import NodeKey
from fedrows.privacy.protocol import ProtocolError, run
from fedrows.privacy.secure_sum import server
from fedrows.privacy.session import Session
from fedrows.privacy.terms import SumTerms

FIVE = SumTerms("a test", (0, 1, 2, 3, 4), threshold=3, length=3, colluding=0)
NEVER = len(PHASES)  # the phase in which a client that stays drops out


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


@pytest.mark.slow(minutes=1)
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


def check_random(terms: SumTerms, drop: dict[int, int]) -> None:
    parts = vectors(terms)
    found = add_up(terms, parts, drop)
    inside = [one for one in terms.cohort if drop.get(one, NEVER) > 2]
    assert found.result.clients == inside
    assert (found.result.values == total(parts, inside, terms)).all()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_a_hundred_clients_with_random_drop_outs(seed: int) -> None:
    terms = SumTerms("all with all", tuple(range(100)), 67, 50)
    check_random(terms, random_drops(100, 0.33, seed))


@settings(max_examples=25, deadline=None)
@given(
    cohort=st.sets(st.integers(0, 2**64 - 1), min_size=3, max_size=5),
    length=st.integers(0, 70),
    word=st.sampled_from(("uint8", "uint16", "uint32", "uint64")),
)
def test_any_cohort_length_and_word(cohort: set[int], length: int, word: str) -> None:
    terms = SumTerms("any", tuple(sorted(cohort)), 3, length, word, colluding=0)
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


# Bad terms


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"threshold": 6}, "threshold .* is 6, but must be at least 2 and at most the 5"),
        ({"threshold": 1}, "threshold .* is 1"),
        ({"threshold": 2, "colluding": 1}, "too low for 1 clients that collude"),
        ({"colluding": 2}, "too low for 2 clients that collude"),
        ({"colluding": 1}, "shows different survivors .* 1 of 5 clients .* at least 4"),
        ({"threshold": 2}, "shows different survivors .* 0 of 5 clients .* at least 3"),
        ({"cohort": (0, 0, 1)}, "different numbers"),
        ({"cohort": (2, 1, 3)}, "rising order"),
        ({"cohort": (-1, 1, 3)}, "different numbers from 0"),
        ({"word": "float32"}, "float32"),
        ({"length": -1}, "-1 words"),
        ({"openers": 6}, "6 openers"),
        ({"threshold": 4, "colluding": 1, "openers": 1}, "1 openers, too few for 1 clients"),
    ],
)
def test_terms_that_cannot_hold_are_refused(changes: dict[str, Any], why: str) -> None:
    with pytest.raises(PlanError, match=why):
        replace(FIVE, **changes)


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
