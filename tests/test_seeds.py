"""Counter-based randomness: the same draw wherever it is made, and fair draws."""

from __future__ import annotations

import tracemalloc
from collections import Counter
from itertools import combinations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedrows.seeds import (
    BATCH,
    COHORT,
    MAKE,
    SAMPLE,
    SHUFFLE,
    SPLIT,
    START,
    below,
    bits,
    choose,
    client_keys,
    counters,
    key,
    mix,
    normal,
    uniform,
)

USES = [COHORT, BATCH, SHUFFLE, START, SAMPLE, SPLIT, MAKE]
CPU = torch.device("cpu")
int64s = st.integers(-(2**63), 2**63 - 1)


def test_pinned_values():
    """If one of these changes, no run of an earlier version can be repeated."""
    assert key(0) == 0xE220A8397B1DCDAF  # the first output of SplitMix64 from 0
    assert mix(torch.tensor(1)).item() == 0x5692161D100B05E5
    assert key(1, 2, 3) == 2869315087210772132
    assert bits(key(1, 2, 3), torch.arange(2)).tolist() == [
        -1940329224344385344,
        8442993811948235340,
    ]
    keys = client_keys(7, BATCH, 3, torch.tensor([0, 5]))
    assert keys.tolist() == [-7830049020459900404, -8653705361380201782]
    assert below(bits(key(1, 2, 3), torch.arange(5)), 10).tolist() == [8, 4, 4, 4, 5]
    assert choose(0, COHORT, 1, 6040, 5).tolist() == [425, 1766, 3572, 3734, 4368]
    assert choose(0, COHORT, 1, 5, 3).tolist() == [0, 1, 3]
    assert USES == [0, 1, 2, 3, 4, 5, 6]


@given(st.lists(int64s, min_size=1, max_size=8))
def test_host_and_device_mix_alike(words):
    assert mix(torch.tensor(words)).tolist() == mix(np.array(words, dtype=np.int64)).tolist()


def test_mixing_changes_nothing_in_place():
    tensor, array = torch.arange(4), np.arange(4)
    mix(tensor)
    mix(array)
    assert tensor.tolist() == array.tolist() == [0, 1, 2, 3]


def test_a_flipped_bit_flips_half_of_the_output():
    words = bits(key(0), torch.arange(200))
    flipped = [
        (mix(words) ^ mix(words ^ torch.tensor(1 << bit if bit < 63 else -(2**63)))).tolist()
        for bit in range(64)
    ]
    for changed in flipped:
        share = sum((x % 2**64).bit_count() for x in changed) / (64 * len(changed))
        assert share == pytest.approx(0.5, abs=0.03)


def test_a_client_draws_alike_in_any_cohort_and_order():
    clients = torch.tensor([9, 2, 5])
    together = client_keys(1, BATCH, 4, clients)
    for client, its_key in zip(clients, together, strict=True):
        assert client_keys(1, BATCH, 4, client[None])[0] == its_key
    count = counters(3, 4, CPU)
    whole = bits(together[:, None, None], count)  # (K, I, B)
    for k in range(3):
        assert torch.equal(bits(together[k], count), whole[k])
    assert torch.equal(whole[:, 1:, :2], bits(together[:, None, None], count[1:, :2]))


def test_every_use_round_seed_and_client_has_its_own_stream():
    clients = torch.arange(5)
    streams = [
        client_keys(seed, use, round_, clients)
        for seed in (0, 1, 2**63 - 1)
        for use in USES
        for round_ in (1, 2, 10**6)
    ]
    found = torch.cat(streams)
    assert len(found.unique()) == len(found)
    draws = bits(found[:, None], counters(3, 3, CPU).view(-1))
    assert draws.unique().numel() == draws.numel()
    cohorts = {tuple(choose(0, use, r, 1000, 5).tolist()) for use in USES for r in range(20)}
    assert len(cohorts) == 20 * len(USES)


def test_the_order_of_a_keys_numbers_matters():
    assert len({key(1, 2, 3), key(3, 2, 1), key(1, 2), key(1, 2, 0), key(0, 1, 2)}) == 5


def test_step_and_position_have_counters_of_their_own():
    assert counters(2, 3, CPU).tolist() == [[0, 1, 2], [2**32, 2**32 + 1, 2**32 + 2]]


def test_a_single_key_is_a_tensor_of_one():
    for number in range(8):  # some keys are above 2^63, which int64 counts as negative
        word = key(number)
        signed = torch.tensor(word - 2**64 if word >= 2**63 else word)
        assert torch.equal(bits(word, torch.arange(3)), bits(signed, torch.arange(3)))


@given(st.lists(int64s, min_size=1, max_size=8), st.integers(1, 2**53))
def test_below_stays_below(random, limit):
    found = below(torch.tensor([*random, -1, 2**63 - 1]), limit)  # −1 has every bit set
    assert int(found.min()) >= 0
    assert int(found.max()) < limit


def test_below_takes_a_limit_for_each():
    random = bits(key(0), torch.arange(6000)).view(2, 3000)
    found = below(random, torch.tensor([[3], [1]]))
    assert found[1].tolist() == [0] * 3000
    assert found[0].bincount().tolist() == pytest.approx([1000] * 3, abs=100)


def test_uniform_and_normal_look_like_it():
    random = bits(key(0), torch.arange(100_000))
    flat, bell = uniform(random), normal(random)
    assert 0 < flat.min() < 1e-3
    assert 1 - 1e-3 < flat.max() < 1
    assert float(flat.mean()) == pytest.approx(0.5, abs=0.005)
    assert float(bell.mean()) == pytest.approx(0, abs=0.02)
    assert float(bell.std()) == pytest.approx(1, abs=0.02)
    assert normal(torch.tensor([-1, 0, 2**63 - 1, -(2**63)])).isfinite().all()


@pytest.mark.parametrize(("among", "count"), [(5, 2), (13, 2)], ids=["sorting", "drawing"])
def test_every_pair_is_chosen_equally_often(among, count):
    times = 20_000
    found = Counter(tuple(choose(0, COHORT, r, among, count).tolist()) for r in range(times))
    pairs = list(combinations(range(among), count))
    assert set(found) == set(pairs)
    mean = times / len(pairs)
    chi_square = sum((found[pair] - mean) ** 2 / mean for pair in pairs)
    degrees = len(pairs) - 1
    assert chi_square < degrees + 5 * (2 * degrees) ** 0.5


@given(st.integers(1, 40), st.data(), st.integers(0, 2**63 - 1))
def test_the_chosen_are_different_and_ascending(among, draw, seed):
    count = draw.draw(st.integers(0, among))
    found = choose(seed, COHORT, 1, among, count).tolist()
    assert found == sorted(set(found))
    assert len(found) == count
    assert all(0 <= client < among for client in found)


def test_choosing_costs_what_is_chosen():
    choose(0, COHORT, 1, 100, 5)
    tracemalloc.start()
    found = choose(0, COHORT, 1, 10**12, 1000)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(found.unique()) == 1000
    assert found.max() > 10**11
    assert peak < 10**6
