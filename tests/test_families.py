"""Rows of one value open so that no combination of what is opened has too few contributors."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from fedrows.errors import PlanError
from fedrows.privacy.families import RowFamilies, contributed_values, refined
from fedrows.privacy.values import Values, derived

MOVIES = 4
GROUPS = {"movie": (0, 4), "gender×movie": (4, 12), "age×movie": (12, 24)}
VALUES = derived(GROUPS)
Holding = dict[tuple[int, int], list[int]]  # client, movie → the rows that it holds


def population(seed: int, clients: int = 7) -> Holding:
    """Clients with a gender and an age each, who hold some movies."""
    draw = np.random.default_rng(seed)
    held: Holding = {}
    for one in range(clients):
        gender, age = int(draw.random() < 0.3), int(draw.integers(0, 3))
        for movie in range(MOVIES):
            if draw.random() < draw.choice([0.3, 0.9]):
                held[one, movie] = [movie, 4 + 4 * gender + movie, 12 + 4 * age + movie]
    return held


def opened(held: Holding, party: Any, minimum: int, turn: int) -> np.ndarray:
    """The rows that open: (24,). party: of each client."""
    holders: list[set[int]] = [set() for _ in range(24)]
    for (client, _), rows in held.items():
        for row in rows:
            holders[row].add(party(client))
    families = RowFamilies.of({"t": np.arange(24)}, {"t": VALUES}, {"t": 1})
    return families.open(np.array([len(x) for x in holders]), minimum, turn)


def fewest(held: Holding, party: Any, rows: np.ndarray, most: int) -> int:
    """The fewest parties whose numbers a combination of the opened sums and the total shows.

    Every client has one number per movie, and all its rows of the movie have it. Some parties D are
    shown if what is known of the others alone has a lower rank: then a combination is 0 on them.
    """
    pairs = list(held)
    sums = [[True] * len(pairs)]
    sums += [[row in held[pair] for pair in pairs] for row in np.flatnonzero(rows)]
    known = np.array(sums, dtype=float)
    parties = np.array([party(client) for client, _ in pairs])
    rank = np.linalg.matrix_rank(known) if pairs else 0
    for size in range(1, most + 1):
        for some in itertools.combinations(np.unique(parties).tolist(), size):
            left = known[:, ~np.isin(parties, some)]
            if (np.linalg.matrix_rank(left) if left.size else 0) < rank:
                return size
    return most + 1


def cases() -> Iterator[tuple[Holding, Any]]:
    for seed in range(60):
        yield population(seed), lambda client: client
        yield population(seed, 9), lambda client: client // 2  # nodes with clients of both genders


@pytest.mark.parametrize("minimum", [2, 3])
def test_no_combination_shows_fewer_than_the_minimum(minimum: int) -> None:
    """All movies, all their variants and the total, for clients and for nodes with several."""
    some = 0
    for turn, (held, party) in enumerate(cases()):
        if len({party(client) for client, _ in held}) < minimum:
            continue
        rows = opened(held, party, minimum, turn)
        some += int(rows[4:].sum())
        assert fewest(held, party, rows, minimum - 1) == minimum
    assert some > 20  # variants did open


def test_by_counts_alone_combinations_show_single_clients() -> None:
    """What opens without the rule: every row with enough holders."""
    shown = 0
    for held, party in cases():
        rows = np.zeros(24, dtype=bool)
        for row in range(24):
            rows[row] = len({party(c) for (c, _), its in held.items() if row in its}) >= 2
        shown += fewest(held, party, rows, 1) == 1
    assert shown > 60  # of 120


def open_rows(counts: dict[int, int], minimum: int = 2, turn: int = 0) -> list[int]:
    families = RowFamilies.of({"t": np.arange(24)}, {"t": VALUES}, {"t": 1})
    held = np.zeros(24, dtype=int)
    held[list(counts)] = list(counts.values())
    return np.flatnonzero(families.open(held, minimum, turn)).tolist()


def test_the_rule_by_hand() -> None:
    """Movie 0 with rows 0 (plain), 4 and 8 (genders), 12, 16 and 20 (ages)."""
    assert open_rows({0: 5, 4: 5}) == [0, 4]  # all are of one gender
    assert open_rows({0: 5, 4: 3, 8: 2}) == [0, 4, 8]
    assert open_rows({0: 5, 4: 4, 8: 1}) == [0]  # the difference would be one client's
    ages = {0: 6, 12: 3, 16: 2, 20: 1}
    assert open_rows(ages, turn=1) == [0, 12]  # 16 hides 20
    assert open_rows(ages, turn=2) == [0]  # it is the genders' turn
    assert open_rows({0: 1, 4: 1}) == []
    assert open_rows({0: 1, 4: 2}) == []  # a value opens by its plain row
    both = {0: 4, 4: 2, 8: 2, 12: 2, 16: 2}
    assert sorted(map(tuple, (open_rows(both, turn=0), open_rows(both, turn=1)))) == [
        (0, 4, 8),
        (0, 12, 16),
    ]  # one family at a time, in turn


def test_of_a_group_with_a_closed_row_one_more_is_closed() -> None:
    """The total less all open movies would be the single holder's of movie 3."""
    assert open_rows({0: 5, 1: 4, 3: 1}) == [0]
    assert open_rows({0: 5, 1: 4}) == [0, 1]
    assert {tuple(open_rows({0: 4, 1: 4, 3: 1}, turn=t)) for t in (0, 1)} == {(0,), (1,)}
    assert open_rows({0: 5, 3: 1}) == []


def test_rows_in_pieces_open_whole() -> None:
    values = {"a": derived({"x": (0, 2), "y×x": (2, 6)}), "b": Values()}
    union = {"a": np.array([0, 2, 4]), "b": np.array([7])}
    families = RowFamilies.of(union, values, {"a": 2, "b": 1})
    assert families.open(np.array([4, 4, 2, 2, 2, 2, 3]), 2, 0).tolist() == [True] * 7
    closed = families.open(np.array([4, 4, 2, 1, 2, 2, 3]), 2, 0)  # one piece has a holder less
    assert closed.tolist() == [True, True, False, False, True, True, True]
    with pytest.raises(PlanError, match="6 pieces of rows, but its families have 7"):
        families.open(np.zeros(6), 2, 0)
    other = RowFamilies.of(union, {"a": Values(), "b": Values()}, {"a": 2, "b": 1})
    assert families.digest != other.digest


def test_a_client_contributes_to_a_value_with_a_row_of_every_family_that_are_not_all_0() -> None:
    owner = np.array([0, 0, 0, 1, 1, 2, 3, 3, 3])
    ids = np.array([0, 4, 12, 0, 4, 1, 4, 8, 20])
    some = np.arange(9) % 2 == 1  # of client 0's rows the second alone is not 0
    assert contributed_values(owner, ids, some, VALUES).tolist() == [True] * 3 + [False] * 6
    assert not contributed_values(owner, ids, some & False, VALUES).any()
    assert contributed_values(owner, ids, some, Values()).tolist() == some.tolist()
    assert refined(VALUES)
    assert not refined(derived({"x": (0, 5)}))
