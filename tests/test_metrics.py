"""Metrics against their definitions: pairs counted one by one, clients taken one by one."""

import math
import time

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from fedrows.measure.metrics import Buckets, accuracy, auc, by_bucket, grouped_auc, mean_loss

nan = float("nan")

# Few different scores, so that most are tied; −0.0 ties with 0.0, infinities are allowed.
tied = st.sampled_from([-math.inf, -1.5, -1e-30, -0.0, 0.0, 1e-30, 0.1, 2.0, 3e38, math.inf])
free = st.floats(width=32, allow_nan=False)
examples = st.lists(st.tuples(tied | free, st.booleans(), st.integers(0, 4)), max_size=40)
dtypes = st.sampled_from([torch.float32, torch.float64])


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> str:
    if request.param == "cuda" and not torch.cuda.is_available():
        pytest.skip("needs a GPU")
    return str(request.param)


def slow_auc(scores: Tensor, label: Tensor) -> float:
    """P(s⁺ > s⁻) + ½ P(s⁺ = s⁻), pair by pair."""
    positive, negative = scores[label == 1], scores[label == 0]
    if not len(positive) or not len(negative):
        return nan
    wins = sum((p > n) + 0.5 * (p == n) for p in positive.tolist() for n in negative.tolist())
    return wins / (len(positive) * len(negative))


def slow_grouped_auc(scores: Tensor, label: Tensor, group: Tensor) -> tuple[float, int]:
    """Client by client."""
    total, weight, left_out = 0.0, 0, 0
    for client in group.unique():
        mine = group == client
        value = slow_auc(scores[mine], label[mine])
        if math.isnan(value):
            left_out += 1
        else:
            total, weight = total + value * int(mine.sum()), weight + int(mine.sum())
    return (total / weight if weight else nan), left_out


def columns(
    rows: list[tuple[float, bool, int]], dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    scores, label, group = zip(*rows, strict=True) if rows else ((), (), ())
    return (
        torch.tensor(scores, dtype=dtype),
        torch.tensor(label, dtype=torch.float32),
        torch.tensor(group, dtype=torch.int64),
    )


def tensors(device: str, *values: list[float]) -> list[Tensor]:
    return [torch.tensor(value, device=device) for value in values]


@given(examples, dtypes)
def test_auc_counts_pairs(rows: list[tuple[float, bool, int]], dtype: torch.dtype) -> None:
    scores, label, _ = columns(rows, dtype)
    assert auc(scores, label) == pytest.approx(slow_auc(scores, label), abs=1e-15, nan_ok=True)


@given(examples, dtypes)
def test_grouped_auc_takes_every_client_by_itself(
    rows: list[tuple[float, bool, int]], dtype: torch.dtype
) -> None:
    scores, label, group = columns(rows, dtype)
    value, left_out = grouped_auc(scores, label, group)
    slow_value, slow_left_out = slow_grouped_auc(scores, label, group)
    assert value == pytest.approx(slow_value, abs=1e-15, nan_ok=True)
    assert left_out == slow_left_out


@given(examples, dtypes, st.lists(st.integers(0, 500), min_size=40, max_size=40))
def test_buckets_take_every_example_once(
    rows: list[tuple[float, bool, int]], dtype: torch.dtype, heats: list[int]
) -> None:
    scores, label, _ = columns(rows, dtype)
    heat, losses = torch.tensor(heats[: len(rows)]), torch.arange(len(rows)).to(dtype)
    found = by_bucket(scores, label, losses, Buckets.of_heat(heat))
    assert sum(bucket["examples"] for bucket in found) == len(rows)
    for bucket in found:
        inside = (heat >= bucket["low"]) & (heat <= bucket["high"])
        assert bucket["examples"] == int(inside.sum())
        assert bucket["loss"] == pytest.approx(float(losses[inside].mean()))
        expected = slow_auc(scores[inside], label[inside])
        assert bucket["auc"] == pytest.approx(expected, abs=1e-15, nan_ok=True)


def test_auc_by_hand(device: str) -> None:
    scores, label = tensors(device, [0.1, 0.4, 0.35, 0.8], [0.0, 0.0, 1.0, 1.0])
    assert auc(scores, label) == 0.75  # of four pairs only (0.35, 0.4) is the wrong way round
    assert auc(-scores, label) == 0.25
    assert auc(scores, 1 - label) == 0.25
    assert auc(torch.zeros_like(scores), label) == 0.5
    scores, label = tensors(device, [1.0, 1.0, 0.0, 2.0], [1.0, 0.0, 0.0, 0.0])
    assert auc(scores, label) == 0.5  # one tie, one win, one loss
    assert auc(scores.bfloat16(), label) == 0.5
    assert auc(scores.long(), label.bool().long()) == 0.5


def test_scores_that_differ_in_the_last_bit_are_not_tied() -> None:
    label = torch.tensor([0, 1])
    assert auc(torch.tensor([1.0, 1 + 2**-23]), label) == 1
    assert auc(torch.tensor([-1.0, -1 - 2**-23]), label) == 0
    assert auc(torch.tensor([1.0, 1 + 2**-52], dtype=torch.float64), label) == 1


def test_grouped_auc_by_hand(device: str) -> None:
    # Client 0: both pairs right. Client 2: its one pair wrong. Client 3: positives only.
    # Client 1 has no example, which is not the same as being left out.
    scores, label, group = tensors(
        device, [9, 3, 1, -5, 2, 5.0, 6], [1, 0, 0, 1, 0, 1.0, 1], [0, 2, 0, 2, 0, 3, 3]
    )
    assert grouped_auc(scores, label, group) == ((3 * 1 + 2 * 0) / 5, 1)
    assert grouped_auc(scores, label, torch.zeros_like(group)) == (auc(scores, label), 0)


def test_one_class_only() -> None:
    ones, scores = torch.ones(3), torch.tensor([1.0, 2, 3])
    assert math.isnan(auc(scores, ones))
    assert math.isnan(auc(scores, 0 * ones))
    value, left_out = grouped_auc(scores, ones, torch.tensor([0, 0, 4]))
    assert math.isnan(value)
    assert left_out == 2


def test_no_examples() -> None:
    none, group = torch.zeros(0), torch.zeros(0, dtype=torch.int64)
    assert math.isnan(auc(none, none))
    assert math.isnan(accuracy(none, none))
    assert math.isnan(mean_loss(none))
    value, left_out = grouped_auc(none, none, group)
    assert math.isnan(value)
    assert left_out == 0
    assert by_bucket(none, none, none, Buckets.of_heat(group)) == []


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_diverged_model_gets_nan(dtype: torch.dtype) -> None:
    scores = torch.tensor([nan, 1, 2, 3], dtype=dtype)
    label, group = torch.tensor([0.0, 1, 0, 1]), torch.tensor([0, 0, 1, 1])
    assert math.isnan(auc(scores, label))
    assert math.isnan(accuracy(scores, label))
    assert math.isnan(mean_loss(scores))
    assert math.isnan(grouped_auc(scores, label, group)[0])
    assert grouped_auc(scores, label, group)[1] == 0
    cold, hot = by_bucket(scores, label, scores, Buckets.of_heat(group))
    assert math.isnan(cold["loss"])
    assert math.isnan(cold["auc"])
    assert hot == {"low": 1, "high": 3, "examples": 2, "loss": 2.5, "auc": 1.0}


def test_accuracy_and_loss_by_hand() -> None:
    # A score of 0 predicts the negative class.
    assert accuracy(torch.tensor([2.0, -1, 0, 0]), torch.tensor([1.0, 0, 0, 1])) == 0.75
    assert mean_loss(torch.tensor([1.0, 2, 6])) == 3
    # In float32 this mean would be lost to rounding.
    assert mean_loss(torch.tensor([2.0**24, 1, 1, 2.0**24])) == (2**25 + 2) / 4


def test_buckets_by_hand(device: str) -> None:
    (heat,) = tensors(device, [0, 1, 3, 4, 10, 11, 30, 31, 100, 101, 300, 3000, 3001, 0, 5000])
    buckets = Buckets.of_heat(heat)
    assert buckets.low == [0, 1, 4, 11, 31, 101, 1001, 3001]
    assert buckets.high == [0, 3, 10, 30, 100, 300, 3000, 10000]
    assert buckets.examples == [2, 2, 2, 2, 2, 2, 1, 2]
    assert buckets.of.tolist() == [0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 7, 0, 7]
    assert Buckets.of_heat(heat.double() + 1).low[0] == 1  # no bucket 0 where all are trained on

    heat, scores, label, losses = tensors(
        device, [20, 2, 1, 20], [0.5, 4, 3, 0.5], [1.0, 0, 1, 0], [0.25, 3, 1, 0.75]
    )
    assert by_bucket(scores, label, losses, Buckets.of_heat(heat)) == [
        {"low": 1, "high": 3, "examples": 2, "loss": 2.0, "auc": 0.0},
        {"low": 11, "high": 30, "examples": 2, "loss": 0.5, "auc": 0.5},
    ]


def test_a_million_examples(device: str) -> None:
    number = torch.arange(1_000_000, device=device)
    scores, label = number % 1000 / 8, number % 2
    start = time.perf_counter()
    # 500 odd scores against 500 even ones, a thousand of each: the i-th odd beats the first i even.
    assert auc(scores, label) == 501 / 1000
    # Every client has ten scores in ascending order, five of them odd: 1+2+3+4+5 of 25 pairs.
    value, left_out = grouped_auc(scores, label, number // 10)
    assert value == pytest.approx(15 / 25)
    assert left_out == 0
    assert time.perf_counter() - start < 10  # a fraction of a second, on an idle machine
