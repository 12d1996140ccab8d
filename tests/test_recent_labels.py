"""How a client has rated lately: whose labels an example sees, and how they are weighed."""

from __future__ import annotations

from dataclasses import replace
from math import exp, log
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedrows.data.federation import FederatedData
from fedrows.data.recent_labels import (
    running_log_odds,
    with_labels_beside,
    with_recent_labels,
)
from fedrows.errors import DataError
from fedrows.rows.ragged import Ragged, ragged


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


@pytest.mark.parametrize("add", [with_recent_labels, with_labels_beside])
def test_a_label_changes_later_training_examples_and_a_held_out_label_none(add):
    test, validation = [0, 0, 0, 0, 0, 1], [0, 0, 0, 0, 1, 0]

    def pasts(label: list[int]) -> list[list[float]]:
        data = add(made("aaaaaa", label, test, validation))
        parts = (data.train, data.validation, data.test)
        return [line for part in parts for x in part.numbers.values() for line in x.tolist()]

    first = pasts([1, 0, 1, 0, 0, 1])
    swapped = pasts([1, 0, 0, 1, 0, 1])  # the third and the fourth; the prior stays
    assert [a == b for a, b in zip(first, swapped, strict=True)] == [1, 1, 1, 0, 0, 0]
    assert pasts([1, 0, 1, 0, 1, 0]) == first


def slowly_beside(past: list[tuple[int, int]], item: int, prior: float) -> float:
    """Of one example about an item, from the (item, label) before it."""
    level = slowly([label for _, label in past], 1.0, prior) + logit(prior)
    q = 1 / (1 + exp(-level))
    shares = [exp(-abs(item - other) / 5) for other, _ in past]
    positives = sum(share * label for share, (_, label) in zip(shares, past, strict=True))
    return logit((positives + 2 * q) / (sum(shares) + 2)) - logit(q)


@settings(max_examples=30, deadline=None)
@given(st.data())
def test_labels_beside_are_those_of_a_slow_loop(draw):
    """Of each client the last is held out; one that has no other never trains."""
    logs = draw.draw(
        st.lists(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 1)), max_size=6), max_size=4)
    )
    logs = [[(3, 1), (4, 0), (9, 1)], *logs]
    owner = [client for client, log_ in enumerate(logs) for _ in log_]
    events = [event for log_ in logs for event in log_]
    last = [k == len(log_) - 1 for log_ in logs for k in range(len(log_))]
    label = np.array([y for _, y in events])
    data = FederatedData.build(
        client=np.array(owner),
        ids={"item": np.array([item for item, _ in events])},
        label=label,
        test=np.array(last),
        tables={"item": 21},
        target=("item", None),
    )
    prior = min(max(float(label[~np.array(last)].mean()), 1e-6), 1 - 1e-6)
    found = with_labels_beside(data)
    lines = {"train": [], "test": []}
    for log_ in sorted(filter(None, logs), key=lambda own: len(own) < 2):  # as the data order them
        for k, (item, _) in enumerate(log_):
            value = slowly_beside(log_[:k], item, prior)
            lines["test" if k == len(log_) - 1 else "train"].append(value)
    for part, wanted in lines.items():
        numbers = getattr(found, part).numbers["beside"]
        assert numbers.shape == (len(wanted), 1)
        assert numbers.flatten().tolist() == pytest.approx(wanted, abs=1e-4)


@pytest.mark.parametrize("validated", [0, 2])
@pytest.mark.parametrize("lists", ["ragged", "padded"])
def test_what_is_beside_an_item_can_be_read_from_the_examples_own_list(lists, validated):
    """Four are held out. Their lists tell which of those before them were liked, and no label."""
    item, label = [3, 9, 4, 7, 5, 6, 2, 8], [1, 0, 1, 0, 1, 0, 0, 1]
    liked = [[i for i, y in zip(item[:k], label, strict=False) if y] for k in range(len(item))]
    column = ragged(liked) if lists == "ragged" else torch.tensor(
        [own + [0] * (4 - len(own)) for own in liked]
    )  # fmt: skip

    def beside(labels: list[int], **more: Any) -> list[float]:
        data = FederatedData.build(
            client=np.array(["a"] * 8 + ["b"]),
            ids={"item": np.array([*item, 1]), "history": _and_an_empty_one(column)},
            fields={"item": "item", "history": "item"},
            label=np.array([*labels, 0]),
            validation=np.array([0] * 4 + [1] * validated + [0] * (5 - validated)),
            test=np.array([0] * (4 + validated) + [1] * (4 - validated) + [0]),
            tables={"item": 10},
            target=("item", None),
            padded=["item"],
        )
        found = with_labels_beside(data, **more)
        parts = found.train.numbers["beside"][:4], found.validation.numbers, found.test.numbers
        return torch.cat([parts[0], *(one["beside"] for one in parts[1:])]).flatten().tolist()

    found, prior = beside(label, liked="history"), 2 / 5
    for k, at in enumerate(item):
        level = slowly(label[: min(k, 4)], 1.0, prior) + logit(prior)
        q = 1 / (1 + exp(-level))
        near = [exp(-abs(at - other) / 5) for other in item[:k]]
        positives = sum(x for x, y in zip(near, label, strict=False) if y)
        share = (positives + 2 * q) / (sum(near) + 2)
        assert found[k] == pytest.approx(logit(share) - logit(q), abs=1e-5)
    assert beside([1, 0, 1, 0, 0, 1, 1, 0], liked="history") == found
    assert beside(label)[5:] != found[5:]


def _and_an_empty_one(column):
    """A column with one more example, whose list is empty."""
    if isinstance(column, torch.Tensor):
        return torch.cat([column, column.new_zeros(1, column.shape[1])])
    return Ragged(
        column.values, torch.cat([column.offsets, column.offsets[-1:]]), column.length
    )  # fmt: skip


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
    with pytest.raises(DataError, match=r"Examples of data are about no item, so nothing stands"):
        with_labels_beside(replace(data, target=None))
    with pytest.raises(DataError, match=r"Field 'history' of data does not list items as 'item' h"):
        with_labels_beside(replace(data, target=("item", None)), liked="history")
