"""Noise inside the sum: its sampler, its accounting beside slow twins, and what the server has."""

from __future__ import annotations

import itertools
import json
import math

import numpy as np
import pytest
import torch
from attack import bytes_of, proven_epsilon
from private_runs import finish, furthest, lists_and_places, run, seeded, synthetic, wide_model

from fedrows.algorithms.fedavg import FedAvg
from fedrows.data.federation import FederatedData
from fedrows.errors import PlanError
from fedrows.privacy import in_memory
from fedrows.privacy.discrete_gaussian import discrete_gaussians
from fedrows.privacy.distributed_mean import DistributedMean
from fedrows.privacy.heat_of_mode import heat_coding, private_heat
from fedrows.privacy.ledger import AGAINST_SERVER, Entry, Event, Ledger, sampled_divergences
from fedrows.privacy.mechanisms.distributed import Distributed
from fedrows.privacy.noisy_coding import NoisyCoding
from fedrows.privacy.options import Privacy, from_config
from fedrows.privacy.weighted_mean import ClientUpdates
from fedrows.rows.heat import Heat
from fedrows.rows.index import Index
from fedrows.rows.params import Submodels


@pytest.fixture(scope="module")
def data() -> FederatedData:
    return synthetic()


# ---- the noise


def chances(deviation: float, reach: int) -> np.ndarray:
    """The probabilities of −reach … reach, by their definition."""
    x = np.arange(-reach, reach + 1)
    weights = np.exp(-(x**2) / (2 * deviation**2))
    return weights / weights.sum()


@pytest.mark.parametrize("deviation", [0.4, 1.0, 5.3])
def test_whole_numbers_have_gaussian_weights(deviation: float) -> None:
    count, reach = 200_000, math.ceil(8 * deviation)
    drawn = discrete_gaussians(deviation, count, bytes_of(1))
    assert drawn.dtype == np.int64
    assert np.abs(drawn).max() <= reach
    hits, expected = np.bincount(drawn + reach, minlength=2 * reach + 1), chances(deviation, reach)
    some = expected * count > 5
    assert ((hits - expected * count)[some] ** 2 / (expected * count)[some]).sum() < 3 * some.sum()


def test_large_deviations_and_too_large_ones() -> None:
    drawn = discrete_gaussians(3000.0, 100_000, bytes_of(2))
    assert drawn.std() == pytest.approx(3000, rel=0.02)
    assert abs(drawn.mean()) < 50
    with pytest.raises(PlanError, match="lower dp-noise"):
        discrete_gaussians(1e6, 1)


def test_draws_that_hit_half_a_bound_are_decided_by_the_other_half() -> None:
    """P(|X| = 0) at σ = 1 is .3989…: a draw that begins like the bound needs 64 bits more."""
    from fedrows.privacy.discrete_gaussian import _table

    high, low = _table(1.0)
    for second, expected in ((int(low[0]) - 1, 0), (int(low[0]), 1)):
        parts = iter([int(high[0]).to_bytes(8, "little"), second.to_bytes(8, "little"), b"\0"])
        assert discrete_gaussians(1.0, 1, lambda _, parts=parts: next(parts)).tolist() == [expected]


# ---- the accounting, beside slow twins


def renyi(p: np.ndarray, q: np.ndarray, order: float) -> float:
    both = (p > 0) & (q > 0)
    log = order * np.log(p[both]) - (order - 1) * np.log(q[both])
    return float(np.logaddexp.reduce(log)) / (order - 1)


def closeness(deviation: float, count: int) -> float:
    """τ of Theorem 1 that `discrete_gaussian` states, of the sum of so many."""
    k = np.arange(1, count)
    return float(10 * np.exp(-2 * math.pi**2 * deviation**2 * k / (k + 1)).sum())


def divergence(sensitivity: float, deviation: float, count: int, numbers: int) -> float:
    """ε of that theorem, for noise from so many clients on so many numbers."""
    tau, ratio = closeness(deviation, count), sensitivity / (math.sqrt(count) * deviation)
    return min(math.sqrt(ratio**2 + tau * numbers / 2), ratio + tau * math.sqrt(numbers))


@pytest.mark.parametrize(("deviation", "clients"), [(0.6, 2), (1.0, 3), (2.0, 5)])
def test_the_divergence_of_a_sum_is_no_more_than_the_theorem_says(deviation, clients) -> None:
    """The sum's distribution by convolution, beside the same one moved by whole numbers."""
    one = chances(deviation, math.ceil(24 * deviation))
    whole = one
    for _ in range(clients - 1):
        whole = np.convolve(whole, one)
    for moved, order in itertools.product((1, 2, 3), (1.5, 2.0, 4.0, 16.0)):
        p, q = np.pad(whole, (moved, 0)), np.pad(whole, (0, moved))
        bound = order / 2 * divergence(moved, deviation, clients, 1) ** 2
        exact = renyi(p, q, order)
        assert exact <= bound * (1 + 1e-9)
        if deviation == 2.0:  # here it is as good as Gaussian noise
            assert exact == pytest.approx(bound, rel=1e-3)
    assert closeness(4.0, 10_000) < 1e-60


@pytest.mark.parametrize(("clients", "cohort"), [(4, 1), (5, 2), (6, 6)])
def test_the_divergence_on_a_secret_cohort_is_no_more_than_the_bound(clients, cohort) -> None:
    """Every cohort's sum beside that with the last user replaced; Gaussian noise on a fine grid."""
    multiplier, grid = 1.5, np.linspace(-30, 30, 6001)
    values = np.linspace(-1, 1, clients)

    def mixed(last: float) -> np.ndarray:
        own = np.r_[values[:-1], last]
        sums = [own[list(some)].sum() for some in itertools.combinations(range(clients), cohort)]
        density = np.exp(-((grid[None] - np.array(sums)[:, None]) ** 2) / 2 / (2 * multiplier) ** 2)
        return (density / density.sum(1, keepdims=True)).mean(0)

    orders = [1.5, 2, 3, 5, 16, 64]
    bounds = sampled_divergences(multiplier, cohort / clients, orders)
    for order, bound in zip(orders, bounds, strict=True):
        exact = max(renyi(mixed(1.0), mixed(-1.0), order), renyi(mixed(-1.0), mixed(1.0), order))
        assert exact <= bound + 1e-12
        assert bound <= order / (2 * multiplier**2) + 1e-12


def test_events_of_whole_numbers() -> None:
    def spent(event: Event, kind: str) -> float:
        ledger = Ledger(1e-6)
        ledger.add_(*(Entry(kind, "noise", round_, event=event) for round_ in range(50)))
        return ledger.spent(kind)

    plain = spent(Event((3.0,), "fixed", 50, 5000), "model/user-replaced")
    whole = spent(Event((3.0,), "fixed", 50, 5000, discrete=True), "model/user-replaced")
    assert plain <= whole < 1.5 * plain  # a bound for all mechanisms costs a little
    known = spent(Event((3.0,), "all", discrete=True), AGAINST_SERVER)
    assert known == spent(Event((3.0,), "all"), "model/user") > 5 * whole
    with pytest.raises(PlanError, match="not Poisson's"):
        Event((1.0,), "poisson", 5, 50, discrete=True)
    with pytest.raises(PlanError, match="not accounted for neighbours"):
        Entry(AGAINST_SERVER, "noise", 1, event=Event((1.0,), "fixed", 5, 50))


# ---- what a client sends


def test_rounded_vectors_are_right_on_average_and_never_too_long() -> None:
    coding, rng = NoisyCoding(0.5, 1.0, 10, 40, 10), np.random.default_rng(0)
    x = rng.normal(size=40)
    x *= 0.5 / np.linalg.norm(x)
    made = np.array([coding.rounded(x, bytes_of(seed)) for seed in range(3000)])
    lengths = np.linalg.norm(made, axis=1)
    assert lengths.max() <= coding.longest
    assert coding.longest < 1.01 * coding.steps  # rounding costs less than a hundredth
    assert made.mean(0) * 0.5 / coding.steps == pytest.approx(x, abs=4e-4)
    long = coding.rounded(x * 1e6, bytes_of(1))  # nobody can send more, clipped or not
    assert np.linalg.norm(long) <= coding.longest
    assert not coding.rounded(np.full(40, np.nan), bytes_of(1)).any()


def test_sums_do_not_wrap_around() -> None:
    for clients, noise in ((10, 0.01), (10, 1.0), (4000, 5.0), (10, 1e-6)):
        coding = NoisyCoding(1.0, noise, clients, 1000, clients)
        assert coding.deviation >= 4
        most = clients * coding.longest + 12 * math.sqrt(clients) * coding.deviation
        for sum_ in (most, -most):
            word = coding.words(np.array([int(sum_)]))
            assert coding.decode(word)[0] == pytest.approx(
                sum_ / coding.steps, abs=1 / coding.steps
            )


def test_a_hostile_client_moves_no_number_beyond_an_honest_sum() -> None:
    """50 clients, clip 1: without the cut a word could stand for a million."""
    coding = NoisyCoding(1.0, 1.0, 50, 1000, 50)
    wild = np.array([2**31 - 1, 2**31, 7], dtype=np.uint32)
    assert 2**31 / coding.steps > 1e6
    assert np.abs(coding.decode(wild)).max() == pytest.approx(50 + 24, rel=0.01)


def mean_of(how: Distributed, cohort: int, source) -> DistributedMean:
    heat = {"a": Heat(torch.arange(6), torch.ones(6, dtype=torch.float64), 1.0)}
    shapes = {"bias": (2,)}
    return DistributedMean(how, {"a": 3}, shapes, {"a": 6}, FedAvg(), heat, cohort, source)


def updates_of(values: list[float], size: float = 100.0) -> ClientUpdates:
    """Clients that hold row 2 and move it by so much, and the bias by nothing."""
    count = len(values)
    index = Index(torch.full((count,), 2), torch.arange(count + 1))
    rows = size * torch.tensor(values, dtype=torch.float64)[:, None].expand(count, 3).contiguous()
    update = Submodels(
        {"a": index}, {"a": rows}, {"bias": torch.zeros(count, 2, dtype=torch.float64)}
    )
    places = np.arange(count)
    return ClientUpdates(update, np.ones(count), places, places, np.zeros(count))


def opened_sums(
    mean: DistributedMean, updates: ClientUpdates, inside: np.ndarray, times: int
) -> np.ndarray:  # fmt: skip
    """What the server has in its hands: the sum over some clients, decoded, many times over."""
    layout = mean.layout({"a": np.arange(6)})
    vectors = mean.vectors(layout, mean.contribute(updates, {"a": np.arange(6)}, None))
    return np.array([mean.coding.decode(vectors.total(inside)[2]) for _ in range(times)])


def test_drop_outs_take_their_noise_with_them() -> None:
    """The variance with d of n gone is (n − d)/n of what was planned, and ε counts on the rest."""
    mean, everybody = mean_of(Distributed(noise=2.0), 10, bytes_of(3)), np.ones(10, dtype=bool)
    planned, left = (
        np.var(opened_sums(mean, updates_of([0.0] * 10), inside, 400))
        for inside in (everybody, np.arange(10) < 6)
    )
    assert planned == pytest.approx(
        (2.0 * 2 * mean.coding.longest / mean.coding.steps) ** 2, rel=0.1
    )
    assert left / planned == pytest.approx(0.6, rel=0.1)
    entry = mean.mechanism.entry(1, 10, 100)
    assert entry.event.noise[0] == pytest.approx(2.0 * math.sqrt(0.6))


def attack(how: Distributed, delta: float, trials: int) -> float:
    """What the server proves about one user, with everybody gone that may go.

    The user moves row 2 up, or down, as far as it can; the server knows all other updates.
    """
    mean, inside = mean_of(how, 5, bytes_of(4)), np.arange(5) < 3
    up, down = (
        opened_sums(mean, updates_of([value, 0, 0, 0, 0]), inside, trials)[:, 6:9].mean(1)
        for value in (1.0, -1.0)
    )
    cuts = np.linspace(-2, 2, 9)
    return max(proven_epsilon(up >= cut, down >= cut, delta) for cut in cuts)


@pytest.mark.slow
def test_the_server_proves_no_more_than_the_ledger_says(monkeypatch) -> None:
    """And proves more if the noise is an eighth of what it should be."""
    how, delta, trials = Distributed(noise=1.5), 1e-3, 1000
    ledger = Ledger(delta)
    event = how.entry(1, 5, 5).event
    ledger.add_(Entry(AGAINST_SERVER, "noise", 1, event=Event(event.noise, "all", discrete=True)))
    claimed = ledger.spent(AGAINST_SERVER)
    assert claimed < 4
    assert attack(how, delta, trials) <= claimed
    noises = NoisyCoding.noises
    monkeypatch.setattr(NoisyCoding, "noises", lambda *args: noises(*args) // 8)
    assert attack(how, delta, trials) > claimed


# ---- heat


def test_heat_with_noise_inside_the_sum() -> None:
    held = [[0, 1], [0], [0, 2], [5]]
    index = Index(
        torch.tensor([row for rows in held for row in rows]), torch.tensor([0, 2, 3, 5, 6])
    )
    heat, entry = private_heat(index, 7, Distributed(), 1e-9, most=2, source=bytes_of(1))
    assert heat.counts.tolist() == pytest.approx([3, 1, 1, 1, 1, 1, 1], abs=1e-6)
    assert entry.event == Event((1e-9 * math.sqrt(0.6),), "all", discrete=True)
    for noise, clients in ((4.0, 6040), (0.1, 10), (1e-6, 10)):
        coding = heat_coding(noise, clients, 100)
        assert coding.deviation >= 4
        whole = coding.deviation * math.sqrt(clients) / coding.steps
        assert whole == pytest.approx(noise * math.sqrt(200))


def test_a_game_on_the_heat_proves_no_more_than_the_ledger_says() -> None:
    """A user who alone holds rows 9 and 10, or rows 3 and 4; the federations lie side by side."""
    trials, delta, most = 4000, 1e-3, 2
    how = Distributed(counted=1.0)

    def released(last: list[int], noise: float) -> np.ndarray:
        one = [[0, 1], [0, 2], last]
        ids = [12 * trial + row for trial in range(trials) for rows in one for row in rows]
        index = Index(torch.tensor(ids), torch.arange(0, len(ids) + 1, 2))
        scaled = noise * math.sqrt(index.clients / 3)  # of 3 clients each
        heat, _ = private_heat(
            index, 12 * trials, how, scaled / math.sqrt(trials), most, 0.0, bytes_of(5)
        )
        return heat.counts.view(trials, 12).numpy()

    def game(noise: float) -> float:
        lone, other = released([9, 10], noise), released([3, 4], noise)
        guess = [x[:, 9] + x[:, 10] - x[:, 3] - x[:, 4] for x in (lone, other)]
        cuts = [-4.0, -1.0, 0.0, 1.0, 4.0]
        return max(proven_epsilon(guess[0] > cut, guess[1] > cut, delta) for cut in cuts)

    ledger = Ledger(delta)
    ledger.add_(Entry(AGAINST_SERVER, "heat", 0, event=Event((1.5,), "all", discrete=True)))
    claimed = ledger.spent(AGAINST_SERVER)
    assert game(1.5) <= claimed
    assert game(0.2) > claimed


# ---- runs


LITTLE = {"dp_noise": 1e-5, "dp_heat_noise": 1e-6, "dp_clip": 0.3, "index_epsilon": None}


def test_without_noise_it_is_the_mean_of_clipped_updates(data: FederatedData) -> None:
    """Beside the mechanism whose server adds the noise."""
    rows = {"dp_select_noise": 1e-9, "dp_select_threshold": 1e-3, "secure_sum": "arithmetic"}
    plan = {"rounds": 2, "clients_per_round": data.clients, "weighting": "uniform"}
    one = finish(run(data, Privacy.of("full", **LITTLE, **rows, dp_heat_rows=10**6), **plan))
    for sums in ("real", "arithmetic"):
        dials = {**LITTLE, "dp_heat_rows": 10**6, "secure_sum": sums}
        privacy = Privacy.of("full", mechanism="distributed", **dials)
        other = finish(run(data, privacy, **plan))
        assert furthest(one, other) < 1e-3
        assert float(one.progress.params.tables["weight"].abs().max()) > 0.03


def test_tables_of_different_widths_and_local_ones() -> None:
    data = lists_and_places()
    privacy = Privacy.of("full", mechanism="distributed", dp_noise=0.1, secure_sum="arithmetic")
    simulation = finish(run(data, privacy, model=wide_model(data), rounds=2))
    assert simulation.progress.round == 2
    tables = simulation.progress.params.tables
    assert all(bool(torch.isfinite(x).all()) for x in tables.values())


def test_nothing_exact_is_shown_to_the_server(data: FederatedData, monkeypatch) -> None:
    """No union is made, nobody's rows are told apart, and every total has a finite ε."""
    united = []
    monkeypatch.setattr(in_memory.union, "server", lambda *args: united.append(args))
    privacy = Privacy.of("full", mechanism="distributed", dp_noise=2.0)
    assert privacy.limited == AGAINST_SERVER
    assert from_config(json.loads(json.dumps(privacy.config()))) == privacy
    simulation = finish(run(data, privacy, rounds=3))
    assert not united
    ledger = simulation.private.accounts.ledger
    assert all(ledger.spent(kind) < math.inf for kind in ledger.kinds)
    assert "totals/value" not in ledger.kinds
    assert ledger.spent(AGAINST_SERVER) > ledger.spent("model/user-replaced") > 0
    moved = simulation.progress.params.tables["weight"]
    assert float((moved != 0).double().mean()) > 0.9  # rows that nobody holds have noise too


def test_against_the_server_a_user_spends_in_the_rounds_that_it_is_in(data: FederatedData) -> None:
    privacy = Privacy.of("full", mechanism="distributed", secure_sum="arithmetic")
    simulation = finish(run(data, privacy, rounds=8))
    accounts = simulation.private.accounts
    events = [e for e in accounts.ledger.entries if e.kind == AGAINST_SERVER and e.round]
    assert len(events) == max(accounts.state()["answered"].values())
    assert all(event.event.sampling == "all" for event in events)


def test_a_sum_with_too_little_noise_is_not_opened(data: FederatedData) -> None:
    """ε counts on 7 of 8 clients, so of 8 that were asked none but one colluding may be missing."""
    privacy = Privacy.of("full", mechanism="distributed", dp_counted=0.8)
    assert privacy.least(8) == 8
    assert Privacy.of("full", mechanism="distributed", dp_counted=0.5).least(8) == 6
    simulation = run(data, privacy, rounds=2)
    simulation.private.seed = seeded
    first: list[int] = []

    def drop(round_: int, use: str) -> dict[int, int]:
        return {first[0]: 2} if use == "update" and round_ == 1 else {}

    draw = simulation.private.draw

    def drawn(counter: int, count: int) -> torch.Tensor:
        cohort = draw(counter, count)
        first.append(int(cohort[0]))
        return cohort

    simulation.private.draw, simulation.private.drop = drawn, drop
    finish(simulation)
    assert [note.split(":")[0] for note in simulation.notes] == ["Round 1 was left out"]


@pytest.mark.parametrize("dials", [{"dp_counted": 0.0}, {"dp_counted": 1.5}, {"dp_noise": 0.0}])
def test_bad_options(dials: dict[str, float]) -> None:
    with pytest.raises(PlanError, match="must be"):
        Privacy.of("full", mechanism="distributed", **dials)
