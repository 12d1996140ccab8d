"""How a client has rated lately: whose labels an example sees, and how they are weighed."""

from __future__ import annotations

from dataclasses import replace
from math import log

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedrows.data.federation import FederatedData
from fedrows.data.recent_labels import running_log_odds, with_recent_labels
from fedrows.errors import DataError


def logit(share: float) -> float:
    return log(share / (1 - share))


def slowly(past: list[int], decay: float, prior: float) -> float:
    """Of one example, from the labels before it."""
    positives = examples = 0.0
    for age, label in enumerate(reversed(past)):
        positives += decay**age * label
        examples += decay**age
    return logit((positives + 5 * prior) / (examples + 5)) - logit(prior)


def made(client: str, label: list[int], test: list[int], validation: list[int]) -> FederatedData:
    return FederatedData.build(
        client=np.array(list(client)),
        ids={"item": np.arange(len(client))},
        label=np.array(label),
        test=np.array(test),
        validation=np.array(validation),
        tables={"item": len(client)},
    )


@settings(max_examples=50, deadline=None)
@given(st.lists(st.lists(st.integers(0, 1), max_size=6), min_size=1, max_size=5))
def test_running_means_are_those_of_a_slow_loop(clients):
    label = torch.tensor([y for own in clients for y in own], dtype=torch.float32)
    splits = torch.tensor(np.cumsum([0, *map(len, clients)]))
    decays, prior = (0.5, 0.9, 1.0), 0.3
    before, after = running_log_odds(label, splits, decays, prior)
    wanted = [
        [slowly(own[:k], d, prior) for d in decays] for own in clients for k in range(len(own))
    ]
    assert before.flatten().tolist() == pytest.approx(np.ravel(wanted).tolist())
    ends = [[slowly(own, d, prior) for d in decays] for own in clients]
    assert after.flatten().tolist() == pytest.approx(np.ravel(ends).tolist())


def test_examples_see_training_labels_of_their_own_client_before_them():
    """Client a trains on three, holds out one for each purpose; b trains on one; c tests only."""
    data = made("abaaacab", [1, 0, 0, 1, 1, 1, 0, 1], [0, 0, 0, 0, 0, 1, 1, 1],
                [0, 0, 0, 0, 1, 0, 0, 0])  # fmt: skip
    found = with_recent_labels(data, decays=(0.5, 1.0))
    p = 2 / 4  # of a's 1, 0, 1 and b's 0
    rows = {"train": [[], [1], [1, 0], []], "validation": [[1, 0, 1]],
            "test": [[1, 0, 1], [0], []]}  # fmt: skip
    for part, pasts in rows.items():
        numbers = getattr(found, part).numbers["lately"]
        wanted = [[slowly(past, d, p) for d in (0.5, 1.0)] for past in pasts]
        assert numbers.dtype == torch.float32
        assert numbers.tolist() == [pytest.approx(line, abs=1e-6) for line in wanted]


def test_a_label_changes_later_training_examples_and_a_held_out_label_none():
    test, validation = [0, 0, 0, 0, 0, 1], [0, 0, 0, 0, 1, 0]

    def pasts(label: list[int]) -> list[list[float]]:
        data = with_recent_labels(made("aaaaaa", label, test, validation))
        parts = (data.train, data.validation, data.test)
        return [line for part in parts for line in part.numbers["lately"].tolist()]

    first = pasts([1, 0, 1, 0, 0, 1])
    swapped = pasts([1, 0, 0, 1, 0, 1])  # the third and the fourth; the prior stays
    assert [a == b for a, b in zip(first, swapped, strict=True)] == [1, 1, 1, 0, 0, 0]
    assert pasts([1, 0, 1, 0, 1, 0]) == first


def test_new_rows_must_say_how_their_client_has_rated():
    data = with_recent_labels(made("aab", [1, 0, 1], [0, 0, 1], [0, 0, 0]))
    with pytest.raises(DataError, match=r"The frame has no column 'lately', which the model reads"):
        data.encode({"item": [1]})
    encoded = data.encode({"item": [1], "lately": [[0.5, 0.25, 0.0]]})
    assert encoded.examples.numbers["lately"].tolist() == [[0.5, 0.25, 0.0]]


def test_what_has_no_past_is_refused():
    data = made("aab", [1, 0, 1], [0, 0, 1], [0, 0, 0])
    with pytest.raises(DataError, match=r"The labels of data are numbers, but a mean of past lab"):
        with_recent_labels(replace(data, labels="numbers"))
    with pytest.raises(DataError, match=r"data has a field 'item' already: give the numbers anot"):
        with_recent_labels(data, "item")
