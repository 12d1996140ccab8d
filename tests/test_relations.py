"""Linear relations between rows are found in the examples, whether they are declared or not."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from private_runs import run, synthetic
from test_hostile_server_differences import TABLE, movies_like

from fedrows.data.federation import FederatedData
from fedrows.errors import PlanError
from fedrows.privacy.options import Privacy
from fedrows.privacy.relations import undeclared, warning

INDEX = Privacy.of("index", index_epsilon=None, secure_sum="arithmetic")


def items_with_categories(mixed: bool = False) -> FederatedData:
    """An item has one category, unless they are mixed."""
    draw = np.random.default_rng(0)
    client, item = np.repeat(np.arange(20), 10), draw.integers(0, 30, 200)
    return FederatedData.build(
        client=client,
        ids={"item": item, "category": draw.integers(0, 5, 200) if mixed else item % 5},
        label=draw.random(200) < 0.5,
        test=np.zeros(200, dtype=bool),
        tables={"item": 30, "category": 5},
    )


def test_an_undeclared_refinement_is_found_and_said() -> None:
    data = items_with_categories()
    assert undeclared(data) == [("item", "category")]
    assert "Each item belongs to one category: with a linear model" in warning(data)
    assert not warning(items_with_categories(mixed=True))


def test_declared_groups_are_no_surprise() -> None:
    assert undeclared(movies_like()) == []
    assert undeclared(synthetic()) == []


def test_the_same_rows_without_their_groups_are() -> None:
    pairs = undeclared(replace(movies_like(), groups={}))
    assert ("features 3", "features 2") in pairs  # gender×movie and movie
    assert ("features 4", "features 1") in pairs  # age×movie and age
    assert "and 3 more such pairs" in warning(replace(movies_like(), groups={}))


def test_few_examples_are_no_evidence() -> None:
    assert undeclared(items_with_categories().select(np.arange(3).tolist())) == []


def test_a_private_run_says_it_once() -> None:
    wide = replace(movies_like(), groups={})
    said = [note for note in run(wide, INDEX, rounds=1).private.notes if "belongs to one" in note]
    assert len(said) == 1
    alone = Privacy.of("index", index_epsilon=None, min_contributors=1, secure_sum="arithmetic")
    assert not [x for x in run(wide, alone, rounds=1).private.notes if "belongs to one" in x]


def test_groups_that_are_not_true_are_refused() -> None:
    """Group `other×movie` is said to be made of movies, but nobody has a row of it."""
    data = movies_like()
    low = data.tables[TABLE]
    groups = dict(data.groups[TABLE]) | {"other×movie": (low - 40, low)}
    groups["age×movie"] = (groups["age×movie"][0], low - 40)
    wrong = replace(data, groups={TABLE: groups})
    with pytest.raises(PlanError, match=r"Client \d+ holds row \d+ of table weight, but not a row"):
        run(wrong, INDEX, rounds=1)
