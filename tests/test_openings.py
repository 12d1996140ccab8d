"""Minimum contributors: a row opens only with enough holders, whatever the server says."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from crypto_twin import altered, far_from_uniform, node, registry
from hypothesis import given, settings
from hypothesis import strategies as st

from fedrows.errors import DataError, PlanError
from fedrows.privacy import openings
from fedrows.privacy.messages import pack, pack_ids, sign, unpack, unpack_ids
from fedrows.privacy.openings import TAGS, Openings
from fedrows.privacy.protocol import Outcome, ProtocolError, run
from fedrows.privacy.terms import Circle, SumTerms

COHORT = (0, 1, 2, 3, 4, 5)
PLAN = Openings("a test", COHORT, rows=20, width=3, minimum=3, extra=2)
Part = tuple[Any, Any, Any]  # values, holds, extra


def parts(plan: Openings, seed: int = 0) -> dict[int, Part]:
    draw = np.random.default_rng(seed)
    found = {}
    for one in plan.cohort:
        holds = draw.random(plan.rows) < 0.45
        values = draw.integers(0, 2**32, (plan.rows, plan.width)).astype(plan.word)
        extra = draw.integers(0, 2**32, plan.extra).astype(plan.word)
        found[one] = (values * holds[:, None], holds, extra)
    return found


def add_up(
    plan: Openings, given_: dict[int, Part], drop: Any = None, hostile: Any = None, **more: Any
) -> Outcome[Any, Any]:
    terms, keys = plan.terms(**{"threshold": 4, **more}), registry(plan.cohort)
    clients: dict[int, Any] = {
        one: openings.client(plan, terms, one, node(one), keys, *given_[one]) for one in plan.cohort
    }
    for one in plan.cohort if hostile else ():
        clients[one] = hostile(one, clients[one])
    return run(openings.server(plan, terms, keys), clients, drop)


def check(plan: Openings, given_: dict[int, Part], found: Outcome[Any, Any]) -> None:
    """The rows with enough holders are the sum in the clear, the others 0."""
    inside = found.result.total.clients
    counts = sum(given_[one][1].astype(int) for one in inside)
    opened = counts >= plan.minimum
    rows = np.zeros((plan.rows, plan.width), dtype=plan.word)
    extra = np.zeros(plan.extra, dtype=plan.word)
    for one in inside:
        rows, extra = rows + given_[one][0], extra + given_[one][2]
    assert (found.result.opened == opened).all()
    assert (found.result.rows == rows * opened[:, None]).all()
    assert (found.result.extra == extra).all()
    for sent in found.clients.values():
        assert (sent == opened).all()


@settings(max_examples=15, deadline=None)
@given(
    rows=st.integers(0, 9),
    width=st.integers(1, 3),
    minimum=st.integers(1, 6),
    openers=st.integers(1, 4),
    word=st.sampled_from(("uint32", "uint64")),
    seed=st.integers(0, 99),
)
def test_rows_open_by_their_holders(
    rows: int, width: int, minimum: int, openers: int, word: str, seed: int
) -> None:
    plan = Openings("any", COHORT, rows, width, minimum, 2, openers, word)
    given_ = parts(plan, seed)
    found = add_up(plan, given_, colluding=min(1, openers - 1))
    check(plan, given_, found)
    assert set(found.clients) == set(COHORT)
    assert not found.refused


@pytest.fixture
def one_and_four(monkeypatch: pytest.MonkeyPatch) -> None:
    """The openers are clients 1 and 4, instead of a draw."""
    true = SumTerms.circle

    def circle(terms: SumTerms, clients: list[int], view: bytes) -> Circle:
        return replace(true(terms, clients, view), openers=(1, 4))

    monkeypatch.setattr(SumTerms, "circle", circle)


@pytest.mark.parametrize("gone", [0, 2, 3, 5])
def test_who_dropped_out_is_not_counted(one_and_four: None, gone: int) -> None:
    """Some row has the minimum only with the one that dropped out, and stays closed."""
    given_ = parts(PLAN)
    before = sum(given_[one][1].astype(int) for one in COHORT)
    found = add_up(PLAN, given_, {gone: 2})
    check(PLAN, given_, found)
    assert ((before >= 3) & ~found.result.opened).any()


@pytest.mark.parametrize("phase", [2, 3, 4, 5])
@pytest.mark.parametrize("opener", [1, 4])
def test_without_an_opener_no_row_opens(one_and_four: None, opener: int, phase: int) -> None:
    given_ = parts(PLAN)
    found = add_up(PLAN, given_, {opener: phase})
    assert not found.result.opened.any()
    assert not found.result.rows.any()
    assert f"Opener {opener} did not answer" in found.result.total.left_out[opener]
    assert set(found.clients) == set(COHORT) - {opener}
    for sent in found.clients.values():
        assert sent.all()  # one opener's word is no proof where one may lie
    extra = np.zeros(PLAN.extra, dtype=PLAN.word)
    for one in found.result.total.clients:
        extra = extra + given_[one][2]
    assert (found.result.extra == extra).all()  # what needs no opener is opened


def test_an_opener_that_leaves_before_the_vectors_ends_the_round(one_and_four: None) -> None:
    with pytest.raises(
        ProtocolError, match=r"Opener 4 .* dropped out before the vectors were sent"
    ):
        add_up(PLAN, parts(PLAN), {4: 1})


def test_a_client_sends_nothing_without_an_opener(one_and_four: None) -> None:
    """A server that hides an opener's boxes gets no vector that only one opener pads."""

    def without_four(answer: bytes) -> bytes:
        ids, *boxes = unpack(answer)
        known = unpack_ids(ids)
        kept = [(one, box) for one, box in zip(known, boxes, strict=True) if one != 4]
        return pack(pack_ids(one for one, _ in kept), *(box for _, box in kept))

    def wrap(one: int, half: Any) -> Any:
        return altered(half, 2, down=without_four) if one == 0 else half

    found = add_up(PLAN, parts(PLAN), hostile=wrap)
    assert "leaves out opener 4" in str(found.refused[0])


def asks_an_opener(request: bytes) -> bool:
    return len(request) == 4 * (PLAN.rows // 4 + TAGS)


def forging(change: Any) -> Any:
    """The server shows the openers something else than their part of the sum."""

    def wrap(one: int, half: Any) -> Any:
        def down(answer: bytes) -> bytes:
            if not asks_an_opener(answer):
                return answer
            words = np.frombuffer(answer, dtype=np.uint32).copy()
            change(words)
            return words.tobytes()

        return altered(half, 5, down=down)

    return wrap


def one_more(words: Any) -> None:
    words[0] += 1  # the first row has a holder more


def all_more(words: Any) -> None:
    words[:-TAGS] += 0x03030303


def other_tag(words: Any) -> None:
    words[-1] += 1


def both(words: Any) -> None:
    words[0] += 1
    words[-TAGS:] += 1


@pytest.mark.parametrize("change", [one_more, all_more, other_tag, both])
def test_an_opener_lets_nothing_go_for_forged_counts(change: Any) -> None:
    found = add_up(PLAN, parts(PLAN), hostile=forging(change))
    assert not found.result.opened.any()
    assert len(found.refused) == PLAN.openers
    for error in found.refused.values():
        assert "are not those of the clients in the sum" in str(error)


def test_forged_counts_pass_where_the_server_knows_the_secret_of_the_tags(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Broken on purpose: once ρ is known a forgery opens a row, so it is the tags that held."""
    monkeypatch.setattr(openings, "_seed", lambda session, opener: bytes(32))
    given_ = parts(PLAN)
    counts = sum(part[1].astype(int) for part in given_.values())
    row = int(np.flatnonzero((counts > 0) & (counts < 3))[0])
    more = np.zeros(PLAN.rows, dtype=np.uint32)
    more[row] = 3

    def forge(words: Any) -> None:
        words[:-TAGS] += PLAN.pack_counts(more)
        words[-TAGS:] += PLAN.tags(bytes(32), more)

    assert add_up(PLAN, given_, hostile=forging(forge)).result.opened[row]


def padded_words(plan: Openings) -> Any:
    """What the server has of rows that do not open, when all vectors are 0 and nobody holds any."""
    kept = []
    true = openings.secure_sum.server

    def server(*arguments: Any) -> Any:
        total = yield from true(*arguments)
        kept.append(plan.padded(total.values).copy())
        return total

    nothing = np.zeros((plan.rows, plan.width), dtype=plan.word), np.zeros(plan.rows, dtype=bool)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(openings.secure_sum, "server", server)
        found = add_up(plan, {one: (*nothing, None) for one in plan.cohort})
    assert not found.result.opened.any()
    return kept[0]


LARGE = replace(PLAN, rows=1000, width=100, extra=0)


def test_what_does_not_open_is_uniform() -> None:
    assert far_from_uniform(padded_words(LARGE)) < 7


def test_that_test_fails_without_pads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(openings, "add_stream_", lambda *arguments, **named: None)
    assert far_from_uniform(padded_words(LARGE)) > 7


def test_openers_that_open_different_rows_open_none(one_and_four: None) -> None:
    context = PLAN.terms(4).context

    def other_rows(message: bytes) -> bytes:
        bits, pads = unpack(message)
        forged = bytes([bits[0] ^ 1]) + bits[1:-64]
        return pack(sign(node(4), context, "rows", 4, forged), pads)

    def wrap(one: int, half: Any) -> Any:
        return altered(half, 5, other_rows) if one == 4 else half

    found = add_up(PLAN, parts(PLAN), hostile=wrap)
    assert not found.result.opened.any()
    assert "Client 4's message opens other rows" in found.result.total.left_out[4]


def test_a_client_believes_only_what_the_openers_signed(one_and_four: None) -> None:
    def other_rows(answer: bytes) -> bytes:
        ids, first, *rest = unpack(answer)
        return pack(ids, bytes([first[0] ^ 1]) + first[1:], *rest)

    def wrap(one: int, half: Any) -> Any:
        return altered(half, 5, down=other_rows) if one == 0 else half

    found = add_up(PLAN, parts(PLAN), hostile=wrap)
    assert "Client 1's message of phase 'rows' does not bear" in str(found.refused[0])


def test_a_row_that_any_opener_let_go_counts_as_sent(one_and_four: None) -> None:
    """Opener 4 may be the honest one: what it let go may be open, whatever opener 1 says."""
    context = PLAN.terms(4).context

    def other_rows(message: bytes) -> bytes:
        bits, pads = unpack(message)
        return pack(sign(node(4), context, "rows", 4, bytes([bits[0] ^ 1]) + bits[1:-64]), pads)

    def wrap(one: int, half: Any) -> Any:
        return altered(half, 5, other_rows) if one == 4 else half

    given_ = parts(PLAN)
    counts = sum(part[1].astype(int) for part in given_.values())
    found = add_up(PLAN, given_, hostile=wrap)
    enough = counts >= PLAN.minimum
    enough[7] = True  # the bit that opener 4 turned, or one of its own
    assert not found.result.opened.any()
    assert (found.clients[0] == enough).all()


def test_with_three_openers_two_are_proof_enough() -> None:
    """The third falls silent, so nothing opens, and rows that the two kept may be sent again."""
    plan = replace(PLAN, openers=3)
    given_ = parts(plan)
    counts = sum(part[1].astype(int) for part in given_.values())
    chosen: list[int] = []

    def wrap(one: int, half: Any) -> Any:
        def down(answer: bytes) -> bytes:
            if not chosen and asks_an_opener(answer):
                chosen.append(one)
                return answer[:-1]  # it refuses, and falls silent
            return answer

        return altered(half, 5, down=down)

    found = add_up(plan, given_, hostile=wrap)
    assert not found.result.opened.any()
    others = found.clients.keys() - set(chosen)
    assert len(others) == 5
    for one in others:
        assert (found.clients[one] == (counts >= plan.minimum)).all()


def test_counts_share_words_without_spilling_over() -> None:
    for n, lane in ((255, 1), (256, 2), (1000, 2)):
        plan = Openings("x", tuple(range(n)), rows=7, width=1, minimum=2)
        assert plan.lane.itemsize == lane
        counts = np.array([n, 0, n, n, 1, n, n])
        added = plan.pack_counts(counts // 2) + plan.pack_counts(counts - counts // 2)
        assert (plan.unpack_counts(added) == counts).all()


@pytest.mark.parametrize(("cohort", "odds"), [(255, -100), (1000, -60)])
def test_wrong_counts_hardly_ever_pass_the_check(cohort: int, odds: int) -> None:
    """A count off by δ shifts a tag by ρ·δ, which the server would have to guess modulo 2^bits.

    δ is below the lane's size, so it costs at most the lane's bits but one.
    """
    plan = Openings("x", tuple(range(cohort)), rows=7, width=1, minimum=2)
    bits, lost = 8 * np.dtype(plan.word).itemsize, 8 * plan.lane.itemsize - 1
    assert -TAGS * (bits - lost) <= odds


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"minimum": 7}, "needs 7 contributors, but .* at most the 6 clients"),
        ({"minimum": 0}, "needs 0 contributors"),
        ({"openers": 0}, "0 openers"),
        ({"word": "uint16"}, "use uint32 or uint64"),
    ],
)
def test_openings_that_cannot_be(changes: dict[str, Any], why: str) -> None:
    with pytest.raises(PlanError, match=why):
        replace(PLAN, **changes)


def test_a_client_with_wrong_shapes_or_decoys_that_are_not_zero() -> None:
    values, holds, extra = parts(PLAN)[0]
    wrong: list[tuple[Part, str]] = [
        ((values[:-1], holds, extra), r"values are uint32 of shape \(19, 3\)"),
        ((values, holds.astype(int), extra), "holds are int64"),
        ((values, holds, None), r"extra are uint32 of shape \(0,\)"),
        ((np.ones_like(values), holds, extra), "that it does not hold"),
    ]
    terms = PLAN.terms(4)
    for part, why in wrong:
        with pytest.raises(DataError, match=why):
            next(openings.client(PLAN, terms, 0, node(0), registry(COHORT), *part))
