"""Fixed point: a sum is right to its precision, unbiased, and what does not fit is refused."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedrows.privacy.ring import Coding, RangeError


@given(
    values=st.lists(st.floats(-2, 2), min_size=1, max_size=20),
    correction=st.floats(1, 5000),
)
def test_a_sum_is_right_to_its_precision(values: list[float], correction: float) -> None:
    coding = Coding(range=2, clients=len(values), correction=correction)
    words = np.zeros(1, dtype=coding.dtype)
    for value in values:
        words = words + coding.encode(np.array([value]))
    assert abs(float(coding.decode(words)[0]) - np.sum(values)) * correction <= 1e-6 * 1.001
    assert coding.error <= 1e-6


@pytest.mark.parametrize("sign_", [-1, 1])
@pytest.mark.parametrize("clients", [1, 3, 500])
def test_the_extremes_do_not_wrap_around(clients: int, sign_: int) -> None:
    coding = Coding(range=1.7, clients=clients, precision=1e-4)
    words = np.zeros(1, dtype=coding.dtype)
    for _ in range(clients):
        words = words + coding.encode(np.array([sign_ * 1.7]))
    assert float(coding.decode(words)[0]) == pytest.approx(sign_ * 1.7 * clients, abs=1e-4)


def bias(encode: Any, coding: Coding) -> float:
    """How many standard errors the mean of many roundings of 0.3 steps is off."""
    step = 2.0**-coding.fraction
    found = coding.decode(encode(np.full(100_000, 0.3 * step))) / step
    return abs(float(found.mean()) - 0.3) / float(np.sqrt(0.3 * 0.7 / len(found)))


def test_rounding_is_unbiased() -> None:
    coding = Coding(range=1, clients=10)
    assert bias(coding.encode, coding) < 5


def test_the_test_of_rounding_fails_when_it_rounds_down(monkeypatch: pytest.MonkeyPatch) -> None:
    coding = Coding(range=1, clients=10)
    highest = np.uint64(2**64 - 1)
    monkeypatch.setattr(
        "fedrows.privacy.ring.random_words", lambda count, dtype: np.full(count, highest)
    )
    assert bias(coding.encode, coding) > 5


@pytest.mark.parametrize("value", [2.5, -2.5, np.nan, np.inf])
def test_a_value_outside_of_the_range_is_refused(value: float) -> None:
    with pytest.raises(RangeError, match=r"A value of client 7 is .* outside of .* ±2"):
        Coding(range=2, clients=3).encode(np.array([0.0, value]), client=7)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"range": 1e9, "clients": 10**6, "correction": 1e6}, "needs words of .* bits"),
        ({"range": 1e300, "clients": 2}, "needs words of .* bits"),
        ({"range": 0.0, "clients": 2}, "range is 0.0"),
        ({"range": 1.0, "clients": 0}, "clients is 0"),
        ({"range": 1.0, "clients": 2, "precision": float("nan")}, "precision is nan"),
    ],
)
def test_a_budget_that_cannot_hold_is_refused_before_the_start(
    options: dict[str, Any], why: str
) -> None:
    with pytest.raises(RangeError, match=why):
        Coding(**options)


def test_the_word_is_the_smallest_that_holds() -> None:
    assert Coding(range=1, clients=50, precision=1e-3).bits == 32
    assert Coding(range=1.9, clients=1, precision=2.0**-30).bits == 32
    assert Coding(range=2, clients=1, precision=2.0**-30).bits == 64  # 2^31 has no room for a sign
    assert Coding(range=1, clients=50, correction=6000).bits == 64
