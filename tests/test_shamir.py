"""Shamir's shares: any t of them give the secret back, fewer fit every secret."""

import itertools
import os
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedrows.privacy import shamir


def test_any_t_shares_give_the_secret_back() -> None:
    secret = int.from_bytes(os.urandom(32), "little")
    shares = shamir.share(secret, 3, range(5))
    for chosen in itertools.combinations(shares, 3):
        assert shamir.value_at(0, {one: shares[one] for one in chosen}) == secret


@given(candidate=st.integers(0, 2**256 - 1))
def test_fewer_shares_fit_every_secret(candidate: int) -> None:
    """Whatever secret one suspects, some third share makes it the one that was shared."""
    shares = shamir.share(12345, 3, range(5))
    two = {one: shares[one] for one in (1, 4)}
    third = shamir.value_at(3, {-1: candidate, **two})  # holder −1 stands at x = 0
    assert shamir.value_at(0, {**two, 2: third}) == candidate


def pairs_seen(secret: int) -> np.ndarray[Any, Any]:
    """How often each pair of shares occurs among 5,000 sharings in the field of 5, t = 3."""
    found = np.zeros(25)
    for _ in range(5000):
        shares = shamir.share(secret, 3, range(2), prime=5)
        found[5 * shares[0] + shares[1]] += 1
    return found


def test_two_shares_of_three_are_uniform_whatever_the_secret() -> None:
    for secret in (0, 3):
        assert ((pairs_seen(secret) - 200) ** 2 / 200).sum() < 80  # 24 degrees: p < 1e-7


def test_that_test_fails_with_a_polynomial_of_lower_degree(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = itertools.cycle((lambda prime: 0, shamir.below))
    monkeypatch.setattr(shamir, "below", lambda prime: next(drawn)(prime))
    assert ((pairs_seen(3) - 200) ** 2 / 200).sum() > 80


def test_wrong_shares_are_named() -> None:
    shares = shamir.share(77, 3, range(6))
    shares[0] += 1
    shares[5] += 1
    assert shamir.recover(shares, 3, lambda found: found == 77) == (77, [0, 5])
    assert shamir.recover({0: shares[0], 1: shares[1]}, 2, lambda found: found == 77) is None
