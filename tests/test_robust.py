"""Clipping and trimming, against loops over rows, and against clients that lie."""

from __future__ import annotations

import math
from collections import defaultdict

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from twin import index_of

from fedrows.errors import PlanError
from fedrows.robust import clip_norms_, trim
from fedrows.rows.params import Params, Submodels, total

ROWS = 5
CLOSE = {"rtol": 0, "atol": 1e-12}
cohorts = st.lists(st.sets(st.integers(0, ROWS - 1), max_size=5), min_size=1, max_size=9)
shares = st.sampled_from([0.0, 0.1, 0.2, 0.25, 0.34, 0.49])


def numbers(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, dtype=torch.float64, generator=generator)


def uploads(held, width: int = 3, seed: int = 0) -> Submodels:
    index = {"t": index_of(held), "u": index_of([set(), *held[1:]])}
    rows = {t: numbers(len(x.ids), width, seed=seed + k) for k, (t, x) in enumerate(index.items())}
    dense = {
        "bias": numbers(len(held), seed=seed + 2),
        "w": numbers(len(held), 2, 3, seed=seed + 3),
    }
    return Submodels(index, rows, dense)


def column(*values: float, held=None) -> Submodels:
    """One row of one number, held by all clients unless said otherwise."""
    held = [{0}] * len(values) if held is None else held
    return Submodels(
        {"t": index_of(held)}, {"t": torch.tensor(values, dtype=torch.float64).view(-1, 1)}, {}
    )


# Clipping


@given(cohorts, st.sampled_from([0.01, 1.0, 3.0, 1e6]))
def test_clipping_bounds_every_client_and_leaves_the_rest_alone(held, bound):
    update = uploads(held)
    before = update.map(Tensor.clone)
    norms = update.norms()
    clipped = clip_norms_(update, bound)
    assert clipped.tolist() == (norms > bound).tolist()
    torch.testing.assert_close(update.norms(), norms.clamp(max=bound), **CLOSE)
    for k in range(len(held)):
        mine, its = update.slice(k, k + 1), before.slice(k, k + 1)
        factor = min(1.0, bound / float(norms[k])) if norms[k] > 0 else 1.0
        for x, y in zip(mine.rows.values(), its.rows.values(), strict=True):
            torch.testing.assert_close(x, y * factor, **CLOSE)
        torch.testing.assert_close(mine.dense["w"], its.dense["w"] * factor, **CLOSE)
        if not clipped[k]:
            assert torch.equal(mine.dense["w"], its.dense["w"])


def test_a_norm_beyond_float32_is_clipped_too():
    update = column(3e30, -4e30, 0.5, held=[{0, 1}, {0}]).map(Tensor.float)
    assert clip_norms_(update, 10.0).tolist() == [True, False]
    assert update.rows["t"].flatten().tolist() == pytest.approx([6, -8, 0.5])


@pytest.mark.parametrize("bound", [0.0, -1.0, math.nan, math.inf])
def test_a_bound_must_be_positive(bound):
    with pytest.raises(PlanError, match="give a positive number"):
        clip_norms_(column(1.0), bound)


# Trimming


def slow_mean(values: list[float], share: float) -> float | None:
    """The trimmed mean; None where nothing is dropped."""
    drop = math.floor(share * len(values) + 1e-9)
    kept = sorted(values)[drop : len(values) - drop]
    return sum(kept) / len(kept) if drop else None


def slow_trim(update: Submodels, share: float) -> Submodels:
    """One row and one number after another."""
    result = update.map(Tensor.clone)
    for table, rows in update.rows.items():
        entries = defaultdict(list)
        for entry, id_ in enumerate(update.index[table].ids.tolist()):
            entries[id_].append(entry)
        for its in entries.values():
            for c in range(rows.shape[1]):
                mean = slow_mean([float(rows[entry, c]) for entry in its], share)
                if mean is not None:
                    result.rows[table][its, c] = mean
    for name, dense in update.dense.items():
        flat = result.dense[name].view(len(dense), -1)
        for c in range(flat.shape[1]):
            mean = slow_mean(flat[:, c].tolist(), share)
            if mean is not None:
                flat[:, c] = mean
    return result


@given(cohorts, st.sampled_from([1, 3]), shares, st.integers(0, 99))
def test_trimming_is_the_loop_over_rows(held, width, share, seed):
    update = uploads(held, width, seed)
    before = update.map(Tensor.clone)
    mine, expected = trim(update, share), slow_trim(update, share)
    for table, rows in expected.rows.items():
        torch.testing.assert_close(mine.rows[table], rows, **CLOSE)
        assert torch.equal(update.rows[table], before.rows[table])  # a new one is given back
    for name, dense in expected.dense.items():
        torch.testing.assert_close(mine.dense[name], dense, **CLOSE)
    assert mine.index is update.index


def test_trimming_by_hand():
    assert trim(column(1, 2, 3, 4, 100), 0.2).rows["t"].flatten().tolist() == [3] * 5
    assert trim(column(100, 1, 4, 3, 2), 0.4).rows["t"].flatten().tolist() == [3] * 5
    assert trim(column(1, 2, 3, 100), 0.2).rows["t"].flatten().tolist() == [1, 2, 3, 100]
    assert trim(column(1, 100, held=[{0}, {1}]), 0.49).rows["t"].flatten().tolist() == [1, 100]


@given(cohorts)
def test_nothing_dropped_is_nothing_changed(held):
    update = uploads(held)
    for share in (0.0, 1 / (len(held) + 2)):
        same = trim(update, share)
        for table, rows in update.rows.items():
            assert torch.equal(same.rows[table], rows)
        assert torch.equal(same.dense["w"], update.dense["w"])


def test_the_share_is_taken_as_on_paper():
    """29 % of 100 are 29, although 0.29 · 100 is 28.999999999999996 in floats."""
    values = [0.0] * 71 + [1000.0] * 29
    assert trim(column(*values), 0.29).rows["t"].max() == 0
    assert trim(column(*values), 0.28).rows["t"].max() > 0


def test_half_as_nearly_as_floats_can_say_it_leaves_the_middle():
    almost = math.nextafter(0.5, 0)
    assert trim(column(1, 2, 6, 9), almost).rows["t"].flatten().tolist() == [4] * 4
    assert trim(column(1, 2, 6, 9, 9), almost).rows["t"].flatten().tolist() == [6] * 5


@given(
    st.lists(st.floats(-1, 1), min_size=3, max_size=12),
    st.lists(st.floats(-1e300, 1e300) | st.sampled_from([1e300, -1e300]), min_size=1, max_size=5),
    st.randoms(use_true_random=False),
)
def test_a_minority_of_liars_stays_between_two_honest_clients(honest, lies, chance):
    """Whatever they send and wherever they stand, if each end drops as many as they are."""
    values = [*honest, *lies]
    share = (len(lies) + 0.5) / len(values)
    if share >= 0.5:
        return
    chance.shuffle(values)
    rows = trim(column(*values), share).rows["t"]
    assert min(honest) - 1e-12 <= float(rows.min()) <= float(rows.max()) <= max(honest) + 1e-12
    assert bool((rows == rows[0]).all())


def test_the_model_moves_as_the_honest_do():
    """Of ten holders two lie about a row by a million: its plain mean follows them."""
    honest = numbers(8, 4) * 0.01 + 1
    update = Submodels(
        {"t": index_of([{0, 1}] * 8 + [{0}] * 2)},
        {"t": torch.cat([honest.repeat_interleave(2, 0), torch.full((2, 4), 1e6)]).double()},
        {"b": torch.cat([honest, torch.full((2, 4), -1e6).double()])},
    )
    weights = torch.ones(10, dtype=torch.float64)

    def moved(update: Submodels) -> Params:
        params = Params({"t": torch.zeros(2, 4).double()}, {"b": torch.zeros(4).double()})
        total(update, weights, weights).add_(params)
        return params

    plain, trimmed = moved(update), moved(trim(update, 0.2))
    assert float(plain.tables["t"][0].min()) > 1e5
    assert bool(((trimmed.tables["t"][0] - 1).abs() < 0.05).all())
    assert bool(((trimmed.tables["t"][1] - 0.8).abs() < 0.05).all())  # 8 of 10 hold it
    assert bool(((trimmed.dense["b"] - 1).abs() < 0.05).all())


@given(cohorts, shares)
def test_trimming_does_not_depend_on_the_order_of_clients(held, share):
    update = uploads(held)
    index = update.index["t"]
    order = torch.arange(len(held)).flip(0)
    flipped = index.select(order)
    assert flipped.source is not None
    other = Submodels({"t": flipped}, {"t": update.rows["t"][flipped.source]}, {})
    there = trim(other, share).rows["t"]
    assert torch.equal(there, trim(update, share).rows["t"][flipped.source])


@pytest.mark.parametrize("share", [-0.1, 0.5, 1.0, math.nan])
def test_a_share_must_leave_something(share):
    with pytest.raises(PlanError, match=r"from 0 to below 0\.5"):
        trim(column(1.0), share)
