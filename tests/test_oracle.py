"""Hashed heat: unbiased, as noisy as it says, as private as it says, and small."""

from __future__ import annotations

import math

import numpy as np
import pytest
from attack import bytes_of, proven_epsilon

from fedrows.errors import PlanError
from fedrows.privacy.noise import words
from fedrows.privacy.oracle import Oracle, Sketches, simulated

REPETITIONS = 200
HELD = [np.array([m for m in range(40) if (client * 7 + m) % 40 < m]) for client in range(30)]
TRUE = np.array([sum(m in ids for ids in HELD) for m in range(41)])  # 40 is held by nobody
OWNER = np.repeat(np.arange(30), [len(ids) for ids in HELD])


def collected(epsilon: float, salt: int, source) -> Sketches:
    """What a server has after every client's own report."""
    oracle = Oracle(epsilon, salt, buckets=64, hashes=8)
    sketches = Sketches(oracle)
    for ids in HELD:
        hash_ = int(words(1, source, np.uint64)[0]) % oracle.hashes
        sketches.add_(oracle.report(ids, hash_, source), hash_)
    return sketches


@pytest.mark.parametrize("epsilon", [1, 4])
@pytest.mark.parametrize("way", ["reports", "at once"])
@pytest.mark.slow
def test_the_estimate_is_unbiased_and_its_error_is_right(epsilon, way):
    source = bytes_of(epsilon)
    found, errors = [], []
    for salt in range(REPETITIONS):
        if way == "reports":
            sketches = collected(epsilon, salt, source)
        else:
            oracle = Oracle(epsilon, salt, buckets=64, hashes=8)
            sketches = simulated(oracle, OWNER, np.concatenate(HELD), len(HELD), source)
        assert sketches.clients == len(HELD)
        found.append(sketches.estimate(np.arange(41)))
        errors.append(sketches.error)
    bias, deviation = np.mean(found, axis=0) - TRUE, np.std(found, axis=0)
    # 41 estimates that hardly depend on each other: one in 370 may pass 3 standard errors.
    assert (np.abs(bias) > 3 * deviation / math.sqrt(REPETITIONS)).sum() <= 1
    assert abs(bias.mean()) < 3 * deviation.mean() / math.sqrt(REPETITIONS * 41) * 2
    assert np.sqrt(np.mean(np.square(deviation))) == pytest.approx(np.mean(errors), rel=0.1)


@pytest.mark.parametrize("epsilon", [1, 4])
def test_the_error_is_noise_and_collisions(epsilon):
    alone = simulated(
        Oracle(epsilon, 1, buckets=1024, hashes=4), OWNER[:0], OWNER[:0], 500, bytes_of(1)
    )
    assert alone.error == pytest.approx(math.sqrt(500 * alone.oracle.noise_variance), rel=0.05)
    a = math.exp(-epsilon)
    assert alone.oracle.noise_variance == pytest.approx(2 * a / (1 - a) ** 2, rel=1e-6)


@pytest.mark.parametrize("epsilon", [0.5, 1, 4])
def test_one_id_more_changes_one_bucket_by_one(epsilon):
    oracle = Oracle(epsilon, 5, buckets=32)
    for hash_ in range(20):
        before = oracle.sketch(np.arange(50), hash_)
        change = oracle.sketch(np.arange(51), hash_) - before
        assert np.abs(change).sum() == 1


@pytest.mark.parametrize("epsilon", [1, 4])
def test_an_attack_proves_no_more_than_epsilon(epsilon):
    """And does prove more of a mechanism with half of the noise."""
    oracle = Oracle(epsilon, 5, buckets=200_000)
    nobody = oracle.report(np.empty(0, dtype=np.int64), 0, bytes_of(1)).astype(int)
    noise = oracle.report(np.empty(0, dtype=np.int64), 0, bytes_of(2)).astype(int)

    def attack(weight: int) -> float:  # noise halved is the value doubled
        return max(proven_epsilon(noise + weight >= t, nobody >= t) for t in (1, 2))

    assert 0.9 * epsilon < attack(1) <= epsilon
    assert attack(2) > epsilon


def test_a_report_holds_the_sketch():
    oracle = Oracle(20.0, 9, buckets=128)  # hardly any noise
    ids = np.array([3, 999_999, 5])
    assert np.array_equal(oracle.report(ids, 7, bytes_of(0)), oracle.sketch(ids, 7))
    bucket, sign = oracle.place(ids, 7)
    assert np.array_equal(np.sign(oracle.sketch(ids, 7)[bucket]), sign)


def test_bytes_do_not_depend_on_the_vocabulary():
    """10⁶ features, 500 of them held: at most 64 KiB."""
    oracle = Oracle(1.0)
    report = oracle.report(np.arange(0, 10**6, 2000), 3, bytes_of(1))
    assert report.nbytes + 4 == oracle.bytes_up <= 64 * 1024
    assert Oracle(1.0).report(np.arange(500), 3).nbytes == report.nbytes
    assert Oracle(0.1).report(np.arange(5), 3).dtype == np.int16  # the noise needs the room


def test_hashes_spread():
    oracle = Oracle(1.0, buckets=100, hashes=2)
    bucket, sign = oracle.place(np.arange(100_000), 0)
    other, _ = oracle.place(np.arange(100_000), 1)
    assert np.bincount(bucket, minlength=100) == pytest.approx(1000, rel=0.2)
    assert abs(sign.mean()) < 0.01
    assert (bucket == other).mean() == pytest.approx(0.01, abs=0.002)


def test_bad_input():
    with pytest.raises(PlanError, match="epsilon is 0"):
        Oracle(0)
    with pytest.raises(PlanError, match="buckets is 0"):
        Oracle(1, buckets=0)
    sketches = Sketches(Oracle(1, buckets=16, hashes=4))
    with pytest.raises(PlanError, match=r"report of node 7 has 15 buckets under hash 1"):
        sketches.add_(np.zeros(15, dtype=np.int8), 1, "node 7")
    with pytest.raises(PlanError, match="under hash 4"):
        sketches.add_(np.zeros(16, dtype=np.int8), 4)
    assert sketches.clients == 0
