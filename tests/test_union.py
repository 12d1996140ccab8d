"""The private union: every row that somebody holds, none of them with its number of holders."""

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from crypto_twin import far_apart, node, registry
from hypothesis import given, settings
from hypothesis import strategies as st

from fedrows.errors import DataError, PlanError
from fedrows.privacy import union
from fedrows.privacy.protocol import Outcome, run
from fedrows.privacy.union import Bloom, Direct, UnionPlan

COHORT = (0, 1, 2, 3, 4)
PLANS = (Direct(400), Bloom.for_sets(400, clients=5, held=10, false_positives=1e-6))


def unite(plan: UnionPlan, sets: dict[int, Any], drop: Any = None) -> Outcome[Any, Any]:
    terms, keys = union.terms(plan, "a test", COHORT, 3, colluding=0), registry(COHORT)
    clients = {
        one: union.client(terms, plan, one, node(one), keys, np.array(sets[one], dtype=np.int64))
        for one in COHORT
    }
    return run(union.server(terms, plan, keys), clients, drop)


@settings(max_examples=10, deadline=None)
@given(sets=st.lists(st.sets(st.integers(0, 399), max_size=10), min_size=5, max_size=5))
@pytest.mark.parametrize("plan", PLANS, ids=["direct", "bloom"])
def test_the_union_is_found_and_told(plan: UnionPlan, sets: list[set[int]]) -> None:
    found = unite(plan, {one: sorted(sets[one]) for one in COHORT})
    assert found.result.ids.tolist() == sorted(set().union(*sets))
    assert set(found.clients) == set(COHORT)
    for told in found.clients.values():
        assert told.tolist() == found.result.ids.tolist()


@pytest.mark.parametrize("plan", PLANS, ids=["direct", "bloom"])
def test_who_drops_out_before_its_vector_is_not_in_it(plan: UnionPlan) -> None:
    sets = {one: [one, 10 * one + 7, 399] for one in COHORT}
    found = unite(plan, sets, {1: 2, 3: 4})
    wanted = sorted({row for one in (0, 2, 3, 4) for row in sets[one]})
    assert found.result.ids.tolist() == wanted
    assert found.result.total.clients == [0, 2, 3, 4]
    assert set(found.clients) == {0, 2, 4}


def sums(holders: int, entries: Any) -> np.ndarray[Any, Any]:
    """What the server sees of 20,000 rows with so many holders each."""
    rows = np.arange(20_000)
    return np.asarray(sum(entries(rows, one) for one in range(holders)), dtype=np.uint32)


def test_a_row_of_one_holder_looks_like_a_row_of_five() -> None:
    entries = Direct(20_000).entries
    assert far_apart(sums(1, entries), sums(5, entries)) < 7


def test_that_test_fails_where_rows_are_counted() -> None:
    def ones(rows: Any, client: int) -> Any:  # broken on purpose: a bit per row held
        return np.ones(len(rows), dtype=np.uint32)

    assert far_apart(sums(1, ones), sums(5, ones)) > 7


@pytest.mark.parametrize("holders", [1, 2, 3, 4])
def test_the_odds_of_a_miss_are_those_of_counting(holders: int) -> None:
    words = list(itertools.product(range(1, 8), repeat=holders))  # all words of 3 bits but 0
    zero = sum(sum(one) % 8 == 0 for one in words)
    assert union.miss(holders, bits=3) == pytest.approx(zero / len(words))


def test_a_miss_is_as_rare_as_said() -> None:
    assert union.miss(0) == 1
    assert union.miss(1) == 0
    assert max(union.miss(k) for k in range(1, 60)) == union.miss(2) <= 1 / (2**32 - 1) * 1.0001
    assert Direct(10).missed == union.miss(2)
    plan = Direct(200_000, "uint8")
    rows = np.arange(plan.vocabulary)
    total = plan.entries(rows, 0) + plan.entries(rows, 1)
    expected = plan.vocabulary / 255
    assert abs((total == 0).sum() - expected) < 5 * np.sqrt(expected)


def test_words_are_never_zero() -> None:
    assert (Direct(100_000, "uint8").entries(np.arange(100_000), 0) != 0).all()


def large(missed: float) -> tuple[Bloom, set[int], Any]:
    """A million features, 50 clients of 500 each, their vectors added up in the clear."""
    plan = Bloom.for_sets(10**6, clients=50, held=500, missed=missed, salt="round 3")
    draw = np.random.default_rng(0)
    held: set[int] = set()
    total = np.zeros(plan.length, dtype=plan.word)
    for one in range(50):
        rows = draw.choice(10**6, 500, replace=False)
        total = total + plan.entries(rows, one)
        held |= set(rows.tolist())
    return plan, held, total


@pytest.mark.parametrize(("missed", "word"), [(1e-6, "uint32"), (2e-4, "uint16")])
def test_a_large_vocabulary_fits_into_a_mebibyte(missed: float, word: str) -> None:
    plan, held, total = large(missed)
    assert plan.word == word
    assert total.nbytes + 64 <= 2**20
    found = set(plan.rows_in(total).tolist())
    false = found - held
    assert len(false) <= 0.01 * (10**6 - len(held))
    assert len(held - found) <= 40  # about two on average; all rows of a lost cell go together


def test_a_smaller_word_misses_more_as_said() -> None:
    plan, held, total = large(missed=0.05)
    assert plan.word == "uint8"
    lost = held - set(plan.rows_in(total).tolist())
    assert 0 < len(lost) <= plan.missed * len(held)


def test_the_salt_moves_the_false_positives() -> None:
    plan = Bloom.for_sets(10_000, clients=2, held=50)
    rows = np.arange(100)
    found = [
        set(one.rows_in(one.entries(rows, 0)).tolist()) - set(rows.tolist())
        for one in (replace(plan, salt="a"), replace(plan, salt="b"))
    ]
    assert found[0] != found[1]


def test_a_row_outside_of_the_vocabulary_is_refused() -> None:
    for plan in PLANS:
        for row in (-1, 400):
            with pytest.raises(DataError, match="Client 7 holds a row outside of 0 … 399"):
                plan.entries(np.array([3, row]), 7)


@pytest.mark.parametrize(
    "options", [{"false_positives": 0.0}, {"false_positives": 1.0}, {"missed": 0.0}, {"held": 0}]
)
def test_a_filter_that_cannot_be(options: dict[str, Any]) -> None:
    with pytest.raises(PlanError):
        Bloom.for_sets(**{"vocabulary": 100, "clients": 5, "held": 5, **options})
