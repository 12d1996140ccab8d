"""Randomized response: unbiased, as noisy as it says, and as private as it says."""

from __future__ import annotations

import math

import numpy as np
import pytest
from attack import bytes_of, proven_epsilon

from fedrows.errors import PlanError
from fedrows.privacy.noise import binomials, choose, normals, uniforms
from fedrows.privacy.response import Response, floored

REPETITIONS, CLIENTS = 200, 400
COUNTS = np.array([0, 3, 100, 400])  # clients that have each of four bits


@pytest.mark.parametrize("epsilon", [1e-3, 0.5, 1, 4, 12])
def test_epsilon_is_what_was_asked_for_and_never_more(epsilon):
    response = Response.symmetric(epsilon)
    assert epsilon * (1 - 1e-3) - 1e-6 <= response.epsilon <= epsilon
    assert response.keep + response.lie == pytest.approx(1, abs=1e-9)


def test_numbers_by_hand():
    response = Response(0.75, 0.25)
    assert response.epsilon == pytest.approx(math.log(3))
    assert response.estimate(np.array([25, 30, 75]), 100).tolist() == [0, 10, 100]
    assert response.error(np.array([0, 50]), 100) == pytest.approx(math.sqrt(100 * 3 / 16) / 0.5)
    assert Response(0.5, 0.1).epsilon == pytest.approx(math.log(5), abs=1e-8)
    assert Response(0.9, 0.5).epsilon == pytest.approx(math.log(5), abs=1e-8)
    uneven = Response(0.5, 0.25)
    assert uneven.error(np.array([40]), 100) == pytest.approx(math.sqrt(10 + 60 * 3 / 16) / 0.25)


@pytest.mark.parametrize("epsilon", [1, 4])
def test_the_estimate_is_unbiased_and_its_error_is_right(epsilon):
    response, source = Response.symmetric(epsilon), bytes_of(epsilon)
    bits = np.arange(CLIENTS)[:, None] < COUNTS  # (clients, 4)
    found = np.array(
        [
            response.estimate(response.answer(bits, source).sum(0), CLIENTS)
            for _ in range(REPETITIONS)
        ]
    )
    error = response.error(COUNTS, CLIENTS)
    assert (np.abs(found.mean(0) - COUNTS) < 3 * error / math.sqrt(REPETITIONS)).all()
    assert found.std(0) == pytest.approx(error, rel=0.2)


@pytest.mark.parametrize("epsilon", [1, 4])
def test_sums_drawn_at_once_are_sums_of_answers(epsilon):
    response, source = Response.symmetric(epsilon), bytes_of(epsilon)
    ones = response.ones(np.repeat(COUNTS, 4000), CLIENTS, source).reshape(4, -1)
    found = response.estimate(ones, CLIENTS)
    error = response.error(COUNTS, CLIENTS)
    assert (np.abs(found.mean(1) - COUNTS) < 4 * error / math.sqrt(4000)).all()
    assert found.std(1) == pytest.approx(error, rel=0.05)
    assert ones.min() >= 0
    assert ones.max() <= CLIENTS


@pytest.mark.parametrize("epsilon", [1, 4])
def test_an_attack_proves_no_more_than_epsilon(epsilon):
    """And does prove more of a mechanism that lies half as often as it should."""
    response, trials = Response.symmetric(epsilon), 200_000

    def attack(mechanism: Response) -> float:
        one = mechanism.answer(np.ones(trials, dtype=bool), bytes_of(1))
        zero = mechanism.answer(np.zeros(trials, dtype=bool), bytes_of(2))
        return max(proven_epsilon(one, zero), proven_epsilon(~zero, ~one))

    assert 0.9 * epsilon < attack(response) <= response.epsilon
    assert attack(Response(1 - response.lie / 2, response.lie / 2)) > response.epsilon


def test_the_floor():
    errors = np.array([3.0, 3.0, 0.1])
    assert floored(np.array([-5.0, 8.0, 0.4]), errors).tolist() == [3, 8, 1]
    assert floored(np.array([-5.0, 4.0, 0.4]), errors, z=2).tolist() == [6, 6, 1]
    assert floored(np.array([-5.0, 8.0, 0.4]), errors, z=0).tolist() == [1, 8, 1]


@pytest.mark.parametrize("epsilon", [0, -1, math.inf, math.nan])
def test_epsilon_must_be_a_number_above_0(epsilon):
    with pytest.raises(PlanError, match="above 0"):
        Response.symmetric(epsilon)


@pytest.mark.parametrize(
    "chances", [(0.5, 0.5), (0.2, 0.4), (1, 0.5), (0.5, 0), (0.5, 0.5 - 2**-40)]
)
def test_chances_must_make_sense(chances):
    with pytest.raises(PlanError, match="randomized response"):
        Response(*chances)


def test_noise_has_the_moments_of_its_distribution():
    drawn = normals(400_001, bytes_of(3))
    assert len(drawn) == 400_001
    assert drawn.mean() == pytest.approx(0, abs=0.01)
    assert drawn.var() == pytest.approx(1, abs=0.01)
    assert (drawn**4).mean() == pytest.approx(3, abs=0.06)
    flat = uniforms(100_000, bytes_of(4))
    assert flat.min() > 0
    assert flat.max() < 1
    assert flat.mean() == pytest.approx(0.5, abs=0.005)


@pytest.mark.parametrize(("trials", "chance"), [(0, 0.3), (1, 0.3), (7, 0.9), (10**9, 3e-7)])
def test_binomials(trials, chance):
    drawn = binomials(np.full(20_000, trials), chance, bytes_of(5))
    deviation = math.sqrt(trials * chance * (1 - chance))
    assert drawn.mean() == pytest.approx(trials * chance, abs=4 * deviation / math.sqrt(20_000))
    assert drawn.std() == pytest.approx(deviation, rel=0.05)


def test_choosing_is_fair_and_costs_what_it_chooses():
    for among, count in [(10, 3), (10, 8)]:
        source = bytes_of(6)
        hits = np.bincount(
            np.concatenate([choose(among, count, source) for _ in range(3000)]), minlength=among
        )
        assert hits == pytest.approx(3000 * count / among, rel=0.12)
    far = choose(10**15, 1000, bytes_of(7))
    assert len(np.unique(far)) == 1000
    assert far.mean() == pytest.approx(5e14, rel=0.06)
    assert choose(5, 5).tolist() == [0, 1, 2, 3, 4]
    assert choose(5, 0).tolist() == []


def test_the_systems_randomness_is_the_default():
    response = Response.symmetric(1)
    bits = np.zeros(256, dtype=bool)
    assert not np.array_equal(response.answer(bits), response.answer(bits))
