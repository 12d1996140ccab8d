"""The graph of neighbours: mutual, as safe as asked, its odds not below what happens."""

import itertools
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedrows.errors import PlanError
from fedrows.privacy import graph


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
        enough = min(needed, 2 * needed - k - 1)  # colluders that two lists of survivors take
        exposed = any(len(near[one] & colluding) >= enough for one in range(n))
        found[0] += exposed or reached != honest
        found[1] += any(len(near[one] - leaving) < needed for one in range(n))
    return float(found[0]) / tries, float(found[1]) / tries


def test_the_odds_are_not_below_what_happens() -> None:
    n, k, needed = 24, 8, 6
    said = graph.failure(n, k, needed, colluding=0.125, dropping=0.125)
    security, correctness = went_wrong(n, k, needed, bad=3, gone=3, tries=1500)
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
    assert k < 200
    assert 2 * needed > k + 1  # no two lists of survivors are signed by enough neighbours
    smaller, fewer = graph.choose(1000, 0.1, 0.1, security=2**-20)
    assert smaller < k
    assert fewer < needed


def test_the_lowest_threshold_leaves_no_room_for_two_lists_of_survivors() -> None:
    lowest = [graph.lowest_threshold(n, 1) for n in (3, 4, 5, 6, 12)]
    assert lowest == [3, 3, 4, 4, 7]
    for n in range(3, 40):
        for colluding in range(n - 1):
            t = graph.lowest_threshold(n, colluding)
            assert 2 * t > n + colluding
            assert t >= colluding + 2
            assert 2 * (t - 1) <= n + colluding or t - 1 < colluding + 2


@pytest.mark.parametrize(
    ("n", "colluding", "why"), [(6, 0.4, "No graph"), (9, 1.0, "share"), (2, 0, "2 clients")]
)
def test_a_graph_that_cannot_be(n: int, colluding: float, why: str) -> None:
    with pytest.raises(PlanError, match=why):
        graph.choose(n, colluding, 0.1)
