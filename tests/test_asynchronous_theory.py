"""Rows of a quadratic under asynchronous rounds: the simulator against the known answer."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "docs"))
import delayed_rows as theory
import make_asynchronous_theory as page

STEPS = 120


@pytest.fixture(scope="module", params=theory.RULES)
def run(request: pytest.FixtureRequest) -> tuple[str, np.ndarray]:
    return request.param, theory.simulated(request.param, STEPS, seed=1)


def test_a_row_that_everybody_holds_follows_the_recurrence(run: tuple[str, np.ndarray]) -> None:
    rule, rows = run
    hot = theory.of_kind(rows, theory.CLIENTS)[:, 0]
    np.testing.assert_allclose(hot, theory.expected(rule, theory.CLIENTS, STEPS), rtol=1e-12)


@pytest.mark.parametrize("holders", [10, 100])
def test_colder_rows_follow_it_on_average(run: tuple[str, np.ndarray], holders: int) -> None:
    rule, rows = run
    found = theory.of_kind(rows, holders)
    off = np.abs(found.mean(1) - theory.expected(rule, holders, STEPS))
    assert (off <= 4 * found.std(1) / np.sqrt(found.shape[1]) + 1e-12).all()
    other = "version" if rule != "version" else "none"  # and the answer of another rule is far off
    away = np.abs(found.mean(1) - theory.expected(other, holders, STEPS))
    assert away.max() > 5 * off.max()


def test_by_hand() -> None:
    """D = 1 and q = 1/2: the row has moved or not; and a recurrence of three steps."""
    assert theory.factor("version", 3, 10) == 0.5
    assert theory.factor("row", 1, theory.CLIENTS) == pytest.approx(2**-0.5)
    q = theory.chance(100)
    assert theory.factor("row", 1, 100) == pytest.approx(1 - q + q / 2**0.5)
    h = theory.RATE
    assert theory.expected("none", 10, 3) == pytest.approx([1, 1 - h, 1 - 2 * h, 1 - 3 * h])


@pytest.mark.parametrize("delay", [0, 1, 4, 9])
def test_the_largest_rate(delay: int) -> None:
    """Just below the limit the error dies out; just above it grows."""
    for share, grows in ((0.98, False), (1.02, True)):
        error = [1.0] * (delay + 1)
        for _ in range(4000):
            error.append(error[-1] - share * theory.largest_rate(delay) * error[-1 - delay])
        assert (max(map(abs, error[-100:])) > 1) == grows


@pytest.mark.slow
def test_slow_clients_that_disagree_shift_a_cold_row_less_by_row_than_by_version() -> None:
    ends = {}
    for rule in theory.RULES:
        rows = theory.fast_and_slow(rule, 500, seed=2)
        ends[rule] = float(theory.of_kind(rows, 10)[200:].mean())
        assert ends[rule] == pytest.approx(theory.ends_at(rule, 10), abs=0.08)
    assert ends["none"] < ends["row"] < ends["version"] / 2


@pytest.mark.slow
def test_the_page_has_the_tables_as_they_are() -> None:
    text = page.PAGE.read_text("utf-8")
    assert page.written(text) == text
    assert page.settings() in text
