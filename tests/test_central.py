"""User-level privacy: sensitivities by brute force, the noise, the rows, and the accounting."""

from __future__ import annotations

import math

import dp_accounting
import numpy as np
import pytest
import torch
from attack import bytes_of, proven_epsilon
from torch import Tensor
from twin import index_of

from fedrows.algorithm import Round
from fedrows.algorithms.fedsubavg import FedSubAvg
from fedrows.errors import PlanError
from fedrows.privacy.heat_of_mode import capped_counts, private_heat
from fedrows.privacy.ledger import Ledger
from fedrows.privacy.mechanism import Touched, draw_cohort
from fedrows.privacy.mechanisms.gaussian import Gaussian
from fedrows.privacy.noise import GridNoise
from fedrows.privacy.noisy_mean import corrected
from fedrows.rows.heat import Heat, heat_of
from fedrows.rows.index import Index
from fedrows.rows.params import Params, RowTotal, Submodels, Total, total

ROWS, WIDTH = 12, 2
PARAMS = Params({"a": torch.zeros(ROWS, WIDTH), "b": torch.zeros(5, 1)}, {"bias": torch.zeros(3)})


_NOTHING = torch.empty(0, dtype=torch.int64)
NO_HEAT = {table: Heat(_NOTHING, _NOTHING.double(), 1.0) for table in PARAMS.tables}


def released_by(how, update, weights, params, cohort, source) -> Total:
    """The private mean of corrected updates, as the total of one pseudo-client."""
    exact = how.clipped(update, weights)
    part = sum(index.lengths for index in exact.index.values()).double().clamp(min=1).rsqrt()
    touched = {}
    for table, index in exact.index.items():
        ids, inverse = torch.unique(index.ids, return_inverse=True)
        counts = torch.zeros(len(ids), dtype=torch.float64)
        counts.index_add_(0, inverse, part[index.owner])
        sums = torch.zeros(len(ids), exact.rows[table].shape[1], dtype=torch.float64)
        touched[table] = Touched(ids, counts, sums.index_add_(0, inverse, exact.rows[table]))
    dense = {name: x.sum(0) for name, x in exact.dense.items()}
    sizes = {table: len(x) for table, x in params.tables.items()}
    rows, means = how.noised(touched, dense, sizes, cohort, source)
    totals = {}
    for table, (ids, mean) in rows.items():
        index, values = Index(ids, torch.tensor([0, len(ids)])), mean.to(params.tables[table])
        totals[table] = RowTotal(index, values, values.new_ones(len(ids)))
    made, one = {n: x.to(params.dense[n]) for n, x in means.items()}, torch.ones(1).double()
    return Total(totals, made, one, cohort * how.mean_share, one)


def updates(clients: list[int], size: float = 1.0) -> Submodels:
    """Updates of some clients, each a function of its number alone."""
    held: dict[str, list[list[int]]] = {"a": [], "b": []}
    rows: dict[str, list[Tensor]] = {"a": [torch.zeros(0, WIDTH)], "b": [torch.zeros(0, 1)]}
    dense = []
    for client in clients:
        rng = np.random.default_rng(client)
        for table, (count, width) in {"a": (ROWS, WIDTH), "b": (5, 1)}.items():
            mine = np.flatnonzero(rng.random(count) < 0.4).tolist()
            held[table].append(mine)
            drawn = rng.normal(size=(len(mine), width)) * rng.choice([0.01, 1, 100])
            rows[table].append(torch.tensor(size * drawn, dtype=torch.float32))
        dense.append(torch.tensor(size * rng.normal(size=3), dtype=torch.float32))
    return Submodels(
        {table: index_of(its) for table, its in held.items()},
        {table: torch.cat(its) for table, its in rows.items()},
        {"bias": torch.stack(dense) if dense else torch.zeros(0, 3)},
    )


def summed(how: Gaussian, clients: list[int]) -> np.ndarray:
    """Everything that noise is added to, as one vector."""
    weights = torch.tensor([10.0 ** (client % 4) for client in clients])
    made = how.clipped(updates(clients), weights)
    whole = [made.dense["bias"].sum(0)]
    for table, x in PARAMS.tables.items():
        full = torch.zeros(x.shape, dtype=torch.float64)
        whole.append(full.index_add_(0, made.index[table].ids, made.rows[table]).flatten())
    return torch.cat([part.flatten() for part in whole]).numpy()


@pytest.mark.parametrize("cap", [None, 1.0, 50.0])
def test_a_user_moves_the_sum_by_no_more_than_the_clip(cap):
    how, cohort = Gaussian(clip=0.7, weight_cap=cap), list(range(8))
    everybody = summed(how, cohort)
    moved = []
    for client in cohort:
        others = [c for c in cohort if c != client]
        moved.append(np.linalg.norm(everybody - summed(how, others)))
        for stranger in range(20, 26):
            replaced = np.linalg.norm(everybody - summed(how, [*others, stranger]))
            assert replaced <= 2 * 0.7 + 1e-12
    assert max(moved) <= 0.7 + 1e-12
    assert max(moved) > 0.69  # the bound is reached, so nothing is wasted


def test_the_mean_over_the_cohorts_own_weight_would_break_the_bound():
    """Why the denominator is fixed: one heavy user moves everybody else's part."""

    def mean(clients: list[int]) -> float:
        weights = np.array([1000.0 if client == 0 else 1.0 for client in clients])
        values = np.array([-0.7 if client == 0 else 0.7 for client in clients])
        return float((weights * values).sum() / weights.sum())

    cohort = list(range(8))
    assert abs(mean(cohort) - mean(cohort[1:])) > 0.7 / len(cohort)


def test_small_updates_are_left_alone_and_broken_ones_count_as_zero():
    how = Gaussian(clip=1e4)
    plain = updates([1, 2, 3])
    made = how.clipped(plain, torch.ones(3))
    assert torch.equal(made.rows["a"], plain.rows["a"].double())
    for value in (math.nan, math.inf):
        broken = updates([1, 2, 3])
        broken.dense["bias"][1, 0] = value
        norms = how.clipped(broken, torch.ones(3)).norms()
        assert norms[1] == 0
        assert norms[0] > 0
    nothing = how.clipped(updates([1], size=0.0), torch.ones(1))
    assert nothing.norms().tolist() == [0]


@pytest.mark.parametrize(("sampling", "bound"), [("poisson", 1.0), ("fixed", math.sqrt(2))])
def test_a_user_moves_the_counts_of_rows_by_no_more_than_their_bound(sampling, bound):
    def counts(clients: list[int]) -> np.ndarray:
        index = updates(clients).index
        sizes = index["a"].lengths + index["b"].lengths
        part = sizes.double().clamp(min=1).rsqrt()
        made = [
            torch.zeros(len(x), dtype=torch.float64).index_add_(
                0, index[table].ids, part[index[table].owner]
            )
            for table, x in PARAMS.tables.items()
        ]
        return torch.cat(made).numpy()

    cohort = list(range(6))
    for client in cohort:
        others = [c for c in cohort if c != client]
        after = [others] if sampling == "poisson" else [[*others, s] for s in range(30, 40)]
        for neighbour in after:
            assert np.linalg.norm(counts(cohort) - counts(neighbour)) <= bound + 1e-12
    assert Gaussian(sampling=sampling, select_noise=3.0).select_deviation == 3 * bound
    assert Gaussian(sampling=sampling, clip=0.5, noise=3.0).noise_deviation == (
        1.5 if sampling == "poisson" else 3.0
    )


def test_without_noise_it_is_the_corrected_mean():
    how = Gaussian(clip=1e4, noise=1e-12, select_noise=1e-9, select_threshold=1e-3)
    update, algorithm = updates([1, 2, 3]), FedSubAvg()
    heat = {t: heat_of(index, torch.ones(3)) for t, index in update.index.items()}
    facts = Round(1, 0.1, 3, 3.0, torch.arange(3))
    clear, private = PARAMS.copy(), PARAMS.copy()
    sums = total(update, torch.ones(3), torch.ones(3))
    algorithm.step_(clear, {}, sums, heat, facts)
    factors = {t: heat[t].correction(i, torch.float32) for t, i in update.index.items()}
    released = released_by(how, corrected(update, factors), torch.ones(3), private, 3, bytes_of(1))
    algorithm.step_(private, {}, released, NO_HEAT, facts)
    for name, x in {**clear.tables, **clear.dense}.items():
        mine = {**private.tables, **private.dense}[name]
        assert torch.allclose(mine, x, rtol=1e-5, atol=1e-6), name
    for table, rows in released.rows.items():
        assert rows.index.ids.tolist() == update.index[table].ids.unique().tolist()


@pytest.mark.parametrize("sampling", ["poisson", "fixed"])
def test_the_noise_is_as_large_as_it_says(sampling):
    how = Gaussian(clip=0.5, noise=2.0, select_threshold=-1e3, sampling=sampling)
    params = Params({"a": torch.zeros(4000, 3)}, {"bias": torch.zeros(20_000)})
    nothing = Submodels(
        {"a": index_of([])}, {"a": torch.zeros(0, 3)}, {"bias": torch.zeros(0, 20_000)}
    )
    released = released_by(how, nothing, torch.ones(0), params, 10, bytes_of(1))
    expected = 2.0 * 0.5 * (1 if sampling == "poisson" else 2) / 10
    assert float(released.dense["bias"].std()) == pytest.approx(expected, rel=0.02)
    assert len(released.rows["a"].index.ids) == 4000  # all pass so low a threshold
    assert float(released.rows["a"].values.std()) == pytest.approx(expected, rel=0.02)
    assert abs(float(released.dense["bias"].mean())) < 0.03 * expected


def test_rows_that_nobody_touched_are_chosen_by_noise_at_the_cost_of_what_is_chosen():
    rows = 10**9
    params = Params({"a": torch.zeros(1, 1).expand(rows, 1)}, {})
    held = [[3, 5, 999_999_999]] * 40
    update = Submodels({"a": index_of(held)}, {"a": torch.ones(120, 1)}, {})
    how = Gaussian(select_noise=1.0, select_threshold=5.0, sampling="poisson")
    released = released_by(how, update, torch.ones(40), params, 40, bytes_of(1)).rows["a"]
    ids = released.index.ids
    by_chance = 0.5 * math.erfc(5 / math.sqrt(2)) * rows  # 287 of them
    assert len(ids) - 3 == pytest.approx(by_chance, abs=5 * math.sqrt(by_chance))
    assert {3, 5, 999_999_999} <= set(ids.tolist())  # 40/√3 stands far above the threshold
    assert torch.equal(ids, ids.unique())
    assert float(ids.double().mean()) == pytest.approx(rows / 2, rel=0.2)


def test_untouched_rows_are_found_around_the_touched():
    how = Gaussian(select_threshold=0.0)  # a half of them passes
    hits = np.zeros(8)
    source = bytes_of(2)
    for _ in range(2000):
        found = how._untouched(np.array([0, 1, 4, 7]), 8, source)
        hits[found] += 1
    assert hits[[0, 1, 4, 7]].tolist() == [0, 0, 0, 0]
    assert hits[[2, 3, 5, 6]] / 2000 == pytest.approx(0.5, abs=0.05)


@pytest.mark.slow
def test_an_attack_on_the_noise_proves_no_more_than_the_ledger_says():
    """And proves more of half the noise."""
    how, trials, delta = Gaussian(noise=2.0, sampling="poisson"), 100_000, 1e-3
    ledger = Ledger(delta)
    ledger.add_(how.entry(1, 10, 10, tables=False))  # everybody is sampled
    claimed = ledger.spent("model/user")

    def attack(deviation: float) -> float:
        add = [GridNoise(deviation, 1, bytes_of(seed)) for seed in (1, 2)]
        with_it = add[0](torch.full((trials,), how.clip, dtype=torch.float64)).numpy()
        without = add[1](torch.zeros(trials, dtype=torch.float64)).numpy()
        cuts = np.linspace(0, 4, 9)
        return max(proven_epsilon(with_it >= cut, without >= cut, delta) for cut in cuts)

    assert attack(how.noise_deviation) <= claimed
    assert attack(how.noise_deviation / 2) > claimed


def test_sums_are_on_one_grid_whatever_lies_beneath():
    add = GridNoise(1.0, 100, bytes_of(1))
    for value in (0.0, 1 / 3, 1e-9):
        steps = add(torch.full((100,), value, dtype=torch.float64)) / add.grid
        assert torch.equal(steps, steps.round())
    assert add.deviation == pytest.approx(1, abs=1e-6)
    assert add.deviation > 1


def test_private_heat():
    index = index_of([[0, 1, 2, 3, 4, 5], [0], [0, 5], [0, 5, 9]])
    how = Gaussian(sampling="poisson")
    heat, entry = private_heat(index, 11, how, 1e-9, most=6, source=bytes_of(1))
    assert heat.ids.tolist() == list(range(11))
    floored = [4, 1, 1, 1, 1, 3, 1, 1, 1, 1, 1]
    assert heat.counts.tolist() == pytest.approx(floored, abs=1e-6)
    assert heat.total == 4
    assert (entry.kind, entry.event.sampling) == ("model/user", "all")
    noisy, _ = private_heat(index, 11, how, 5.0, most=4, z=2, source=bytes_of(1))
    assert float(noisy.counts.min()) == 2 * 5.0 * math.sqrt(4)


def test_the_support_of_heat_shows_nobody():
    """A user who alone holds rows 9 and 10, or rows 3 and 4; the federations lie side by side."""
    how, trials, delta = Gaussian(), 4000, 1e-3

    def released(last: list[int], noise: float) -> np.ndarray:
        one = [[0, 1], [0, 2], last]
        held = [[12 * trial + row for row in rows] for trial in range(trials) for rows in one]
        heat, _ = private_heat(
            index_of(held), 12 * trials, how, noise, most=2, z=0.0, source=bytes_of(5)
        )
        assert torch.equal(heat.ids, torch.arange(12 * trials))  # whoever holds what
        return heat.counts.view(trials, 12).numpy()

    def game(noise: float) -> float:
        lone, other = released([9, 10], noise), released([3, 4], noise)
        guess = [x[:, 9] + x[:, 10] - x[:, 3] - x[:, 4] for x in (lone, other)]
        cuts = [-4.0, -1.0, 0.0, 1.0, 4.0]
        return max(proven_epsilon(guess[0] > cut, guess[1] > cut, delta) for cut in cuts)

    ledger = Ledger(delta)
    ledger.add_(private_heat(index_of([[0]]), 1, how, 1.5, most=2)[1])
    claimed = ledger.spent("model/user-replaced")
    assert game(1.5) <= claimed
    assert game(0.2) > claimed  # so the game would notice if there were less noise


def test_heats_sensitivity_by_brute_force():
    """Federations that differ in their last user, who holds more rows than may count."""
    most, rng = 3, np.random.default_rng(0)

    def counts(held: list[list[int]], seed: int) -> np.ndarray:
        shares = torch.tensor([1.0, 0.3, 1.0, 1.0], dtype=torch.float64)[: len(held)]
        ids, found = capped_counts(index_of(held), shares, most, bytes_of(seed))
        whole = np.zeros(20)
        whole[ids.numpy()] = found.numpy()
        return whole

    removed, replaced = [], []
    for seed in range(200):
        drawn = [np.sort(rng.choice(20, rng.integers(1, 9), replace=False)) for _ in range(5)]
        *others, user, stranger = (its.tolist() for its in drawn)
        before = counts([*others, user], seed)
        removed.append(np.linalg.norm(before - counts(others, seed)))
        replaced.append(np.linalg.norm(before - counts([*others, stranger], seed)))
    assert max(removed) == pytest.approx(math.sqrt(most))
    assert max(replaced) == pytest.approx(math.sqrt(2 * most))


@pytest.mark.parametrize("sampling", ["poisson", "fixed"])
def test_the_entry_is_the_sampler_really_used(sampling):
    how = Gaussian(noise=1.0, select_noise=4.0, sampling=sampling)
    ledger = Ledger(1e-5)
    for number in range(1, 11):
        ledger.add_(how.entry(number, 50, 5000))
    noise = dp_accounting.GaussianDpEvent((1 + 1 / 16) ** -0.5)
    relation = dp_accounting.NeighboringRelation
    if sampling == "poisson":
        accountant = dp_accounting.rdp.RdpAccountant()
        accountant.compose(dp_accounting.PoissonSampledDpEvent(0.01, noise), 10)
    else:
        accountant = dp_accounting.rdp.RdpAccountant(neighboring_relation=relation.REPLACE_ONE)
        accountant.compose(dp_accounting.SampledWithoutReplacementDpEvent(5000, 50, noise), 10)
    assert ledger.spent(how.kind) == pytest.approx(accountant.get_epsilon(1e-5), rel=1e-9)


def test_cohorts():
    fixed = [draw_cohort(Gaussian(sampling="fixed"), 20, 5, bytes_of(s)) for s in range(400)]
    assert {len(cohort) for cohort in fixed} == {5}
    hits = torch.bincount(torch.cat(fixed), minlength=20)
    assert hits.tolist() == pytest.approx([100] * 20, rel=0.4)
    loose = [draw_cohort(Gaussian(sampling="poisson"), 20, 5, bytes_of(s)) for s in range(400)]
    sizes = np.array([len(cohort) for cohort in loose])
    assert sizes.mean() == pytest.approx(5, abs=0.4)
    assert sizes.var() == pytest.approx(20 * 0.25 * 0.75, rel=0.25)
    with pytest.raises(PlanError, match="cohort of 21 cannot be drawn from 20"):
        draw_cohort(Gaussian(), 20, 21)


@pytest.mark.parametrize("name", ["clip", "noise", "select_noise", "weight_cap", "mean_share"])
def test_bad_options(name):
    with pytest.raises(PlanError, match="must be above 0"):
        Gaussian(**{name: 0.0})
    with pytest.raises(PlanError, match="both must be"):
        private_heat(index_of([[1]]), 2, Gaussian(), 0.0, 1)
