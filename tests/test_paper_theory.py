"""The theory of the paper, on problems small enough for a dense twin."""

import sys
from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from fedrows import catalogue
from fedrows.data.federation import FederatedData
from fedrows.errors import FedrowsError
from fedrows.paper import (
    convergence,
    criterion,
    example1,
    overhead,
)
from fedrows.paper.theory import iterates, known_constants, objective
from fedrows.paper.theory import quadratics as family
from fedrows.paper.theory.objective import Objective
from fedrows.paper.theory.quadratics import spectrum_of, together
from fedrows.paper.theory.ridge import Ridge
from fedrows.paper.theory.spectrum import singular, singular_sparse, spectrum
from fedrows.plan import Plan
from fedrows.server import begin, rounds
from fedrows.simulator.simulated_fleet import SimulatedFleet


def few(seed: int = 0, clients: int = 8, rows: int = 7, examples: int = 40) -> FederatedData:
    """A federation with three features an example, some of them twice in a client."""
    rng = np.random.default_rng(seed)
    client = np.concatenate([np.arange(clients), rng.integers(0, clients, examples - clients)])
    return FederatedData.build(
        client=client,
        ids={"w": rng.integers(0, rows, (examples, 3))},
        label=rng.integers(0, 2, examples),
        test=np.zeros(examples, dtype=bool),
        tables={"w": rows},
    )


def slow_value(
    data: FederatedData, x: torch.Tensor, rows: np.ndarray, ridge: float
) -> torch.Tensor:
    """f, client by client and example by example; rows that are left out read as nothing."""
    whole = torch.zeros(data.tables["w"], dtype=torch.float64)
    whole = whole.index_put((torch.from_numpy(rows),), x)
    f = torch.zeros((), dtype=torch.float64)
    splits = data.train.splits.tolist()
    for low, high in pairwise(splits):
        ids = torch.as_tensor(data.train.ids["w"])[low:high]
        score = whole[ids].sum(1)
        label = data.train.label[low:high].to(torch.float64)
        loss = torch.nn.functional.binary_cross_entropy_with_logits(score, label)
        held = np.intersect1d(np.unique(ids), rows)
        f = f + loss + ridge / 2 * whole[held].square().sum()
    return f / data.clients


@pytest.mark.parametrize("least_heat", [1, 3])
def test_the_objective_is_its_definition(least_heat: int) -> None:
    data = few()
    its = Objective(data, 0.1, least_heat)
    x = np.random.default_rng(1).standard_normal(len(its.rows))

    def f(at: torch.Tensor) -> torch.Tensor:
        return slow_value(data, at, its.rows, 0.1)

    at = torch.from_numpy(x)
    assert its.value(x) == pytest.approx(float(f(at)), abs=1e-13)
    by_torch = torch.autograd.functional.jacobian(f, at).numpy()
    np.testing.assert_allclose(its.gradient(x), by_torch, atol=1e-13)
    by_torch = torch.autograd.functional.hessian(f, at).numpy()
    np.testing.assert_allclose(its.hessian(x).toarray(), by_torch, atol=1e-13)


def test_the_hessian_is_the_clients_aligned() -> None:
    its = Objective(few(), 0.1)
    x = np.random.default_rng(1).standard_normal(len(its.rows))
    parts = [(its.held[its.holder == i], its.client_hessian(i, x)) for i in range(its.clients)]
    hessian, heat = together(parts)
    np.testing.assert_allclose(its.hessian(x).toarray(), hessian, atol=1e-14)
    assert heat.tolist() == its.heat.tolist()


def test_the_minimum_is_one() -> None:
    its = Objective(few(), 0.01)
    assert np.abs(its.gradient(its.minimum())).max() < 1e-12


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 3), st.booleans())
@example(6276, 1, True)  # two clients' largest eigenvalues lie close together
def test_theorems_1_and_2_on_regression(seed: int, least_heat: int, trained: bool) -> None:
    data = few(seed)
    its = Objective(data, 0.05, least_heat)
    assume(len(its.rows))
    x = its.minimum() if trained else np.zeros(len(its.rows))
    found = spectrum(its, x, dense=True)
    assert all(found.checks().values()), found
    holding = sorted(set(its.holder.tolist()))
    twin = [np.linalg.eigvalsh(its.client_hessian(i, x)) for i in holding]
    assert found.least == pytest.approx(min(own[0] for own in twin), rel=1e-8)
    assert found.most == pytest.approx(max(own[-1] for own in twin), rel=1e-8)


def test_sparse_is_dense() -> None:
    data = few(clients=30, rows=60, examples=400)
    for least_heat in (1, 8):
        its = Objective(data, 0.01, least_heat)
        x = its.minimum()
        dense, sparse = (spectrum(its, x, way) for way in (True, False))
        for name in ("plain", "corrected"):
            assert getattr(sparse, name) == pytest.approx(getattr(dense, name), rel=1e-9)
    tiny = Objective(data, 0.01, int(its.heat.max()))
    assert len(tiny.rows) < 3
    hessian = tiny.hessian(np.zeros(len(tiny.rows)))
    assert singular_sparse(hessian) == singular(hessian.toarray())


@st.composite
def quadratics(draw: Callable[..., int], convex: bool) -> list[family.QuadraticPart]:
    """Clients with definite Hessians; if not all are convex, some are turned upside down."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    clients, rows = draw(st.integers(1, 12)), draw(st.integers(1, 6))
    least = rng.uniform(0.1, 1)
    parts = []
    for client in range(clients):
        own = np.arange(rows) if client == 0 else np.flatnonzero(rng.random(rows) < 0.4)
        if not len(own):
            own = np.array([0])
        turn, _ = np.linalg.qr(rng.standard_normal((len(own), len(own))))
        hessian = (turn * rng.uniform(least, 3 * least, len(own))) @ turn.T
        parts.append((own, hessian if convex or rng.random() < 0.6 else -hessian))
    return parts


@settings(max_examples=50, deadline=None)
@given(quadratics(convex=True))
def test_theorems_1_and_2_on_any_convex_quadratic(parts: list[family.QuadraticPart]) -> None:
    found = spectrum_of(parts)
    assert found.alpha == 0
    assert all(found.checks().values()), found


@settings(max_examples=50, deadline=None)
@given(quadratics(convex=False))
def test_theorem_2_needs_no_convexity(parts: list[family.QuadraticPart]) -> None:
    found = spectrum_of(parts)
    assume(found.plain[0] > 1e-6)  # the global Hessian is not singular, says Assumption 1
    convex = found.convexity > 0
    assert all(found.checks(convex).values()), found


def test_a_failing_inequality_is_told() -> None:
    found = spectrum_of(family.member("flat", 10, 1))
    assert found.checks()["κ(Ĥ) ≤ ρ2/μ0"]
    told = type(found)(**{**found.__dict__, "most": 1.5}).checks()
    assert not told["κ(Ĥ) ≤ ρ2/μ0"]
    assert not told["κ(Ĥ) ≤ k̂"]


@pytest.mark.parametrize("coldest", [50, 10, 1])
def test_the_family_meets_its_bounds(coldest: int) -> None:
    flat = spectrum_of(family.member("flat", 100, coldest))
    assert flat.condition == pytest.approx(flat.least_condition)  # Theorem 1, met
    assert flat.corrected_condition == pytest.approx(flat.convex_bound) == pytest.approx(2)
    steep = spectrum_of(family.member("steep", 100, coldest))
    assert steep.condition == pytest.approx(steep.bound) == pytest.approx(200 / coldest)
    assert steep.corrected_condition == pytest.approx(steep.corrected_bound)
    turned = spectrum_of(family.member("turned", 100, coldest))
    assert (turned.least, turned.most) == pytest.approx((1, 2))
    assert all(turned.checks().values())


@settings(max_examples=25, deadline=None)
@given(quadratics(convex=True), st.integers(0, 10**6))
def test_theorem_5_on_any_convex_quadratic(parts: list[family.QuadraticPart], seed: int) -> None:
    found, (hessian, heat) = spectrum_of(parts), together(parts)
    x = np.random.default_rng(seed).standard_normal(len(heat))
    gap, gradient = x @ hessian @ x / 2, hessian @ x
    corrected = gradient**2 @ (len(parts) / heat)
    assert gap <= corrected / (2 * found.convexity) * (1 + 1e-9)
    scale = len(parts) / found.coldest
    assert gap <= scale * (gradient @ gradient) / (2 * found.convexity) * (1 + 1e-9)


def test_theorem_5_is_met_by_a_cold_row() -> None:
    parts = family.member("steep", 100, 4)
    (hessian, _), found = together(parts), spectrum_of(parts)
    x = np.array([0.0, 1.0])  # away from the minimum in the cold row alone
    gap, gradient = x @ hessian @ x / 2, hessian @ x
    assert gap == pytest.approx(100 / 4 * (gradient @ gradient) / (2 * found.convexity))


@pytest.mark.parametrize("name", ["fedavg", "fedsubavg"])
@pytest.mark.parametrize("rate", [0.5, 0.3, 0.02, 0.9])
@pytest.mark.parametrize("clients", [100, 3, 1])
def test_example_1_is_the_closed_form(name: str, rate: float, clients: int) -> None:
    run = example1.trajectory(name, rate, clients, many=60)
    exact = example1.closed_form(name, rate, clients, many=60)
    assert np.abs(run - exact).max() <= 1e-12
    slow = (1 - 2 * rate / (clients if name == "fedavg" else 1)) ** 7
    assert exact[7] == pytest.approx([slow, (1 - 2 * rate) ** 7], rel=1e-12)


SHORT = {**iterates.EXACT, "batch_size": 2, "lr": 0.5}


@pytest.mark.parametrize("name", ["fedavg", "fedsubavg"])
def test_virtual_iterations_pass_through_the_servers_rounds(name: str) -> None:
    data = known_constants.federation(12, (6, 2))
    model, algorithm = Ridge(data, 0.1), catalogue.algorithm(name)()
    plan = Plan(**SHORT, rounds=4, clients_per_round=3, local_steps=3)
    points = [p.tables["w"] for p in iterates.iterations(data, model, algorithm, plan)]
    assert len(points) == 4 * 3 + 1
    fleet = SimulatedFleet(model, algorithm, data, plan)
    for progress in rounds(fleet, plan, begin(model, algorithm, plan)):
        mine = points[3 * progress.round]
        torch.testing.assert_close(mine, progress.params.tables["w"], rtol=0, atol=1e-15)


def test_between_rounds_a_row_is_the_mean_over_its_holders() -> None:
    data = known_constants.federation(12, (6, 2))
    plan = Plan(**SHORT, rounds=1, clients_per_round=1, local_steps=2)
    algorithm = catalogue.algorithm("fedsubavg")()
    _, second, _ = iterates.iterations(data, Ridge(data, 0.0), algorithm, plan)
    # After one step of all clients: every row is the mean of its holders' own, as one round of
    # one step with everyone in the cohort makes it.
    whole = Plan(**{**plan.__dict__, "clients_per_round": 12, "local_steps": 1})
    *_, last = iterates.iterations(data, Ridge(data, 0.0), algorithm, whole)
    torch.testing.assert_close(second.tables["w"], last.tables["w"], rtol=0, atol=1e-15)


def test_the_known_constants_are_true() -> None:
    data = known_constants.federation(40, (20, 5, 2), seed=3)
    its, exact = Objective(data, 0.0), known_constants.constants(data, batch=1)
    start = np.zeros(len(its.rows))
    assert exact.smoothness == pytest.approx(its.most_curved(start), rel=1e-9)
    assert exact.gap == pytest.approx(its.value(start) - its.value(its.minimum()), abs=1e-12)
    chance = 1 / (1 + np.exp(-np.linspace(-9, 9, 7)))
    assert ((chance - 1) ** 2 <= exact.gradient).all()
    assert exact.variance <= exact.gradient
    assert sorted(its.heat.tolist()) == [2, 5, 20, 40]


def test_theorem_3_holds() -> None:
    data = known_constants.federation(convergence.CLIENTS, convergence.HEATS)
    for cohort, length in ((5, 100), (10, 200)):
        lr = convergence.rate(data, cohort, length)
        for seed in range(2):
            measured = convergence.measured(data, cohort, length, lr, seed)
            assert 0 < measured <= convergence.bound(data, cohort, length, lr)


def test_the_bound_of_theorem_3_by_hand() -> None:
    data = known_constants.federation(convergence.CLIENTS, convergence.HEATS)
    its = known_constants.constants(data, 1)
    assert (its.smoothness, its.gradient, its.variance) == (0.25, 1, 1)
    # N = 100, n_min = 5, I = 5, K = 10, T = 1000, γ = 0.1
    by_hand = 2 * its.gap / 100 + 0.05 / 5 + 4 * 100 * 0.01 * 25 * 0.0625 / 5 + 125 / 50
    assert convergence.bound(data, 10, 1000, 0.1) == pytest.approx(by_hand)


def test_theorem_5_along_runs() -> None:
    data = few(clients=20, rows=12, examples=120)
    its = Objective(data, 0.05)
    scale = its.clients / its.heat.min()
    for name in ("fedavg", "fedsubavg"):
        found = criterion.path(name, data, its, many=30)
        assert len(found.gap) == 31
        assert (found.gap[1:] < found.gap[:-1]).all()  # a step that curvature allows goes down
        assert (found.gap <= found.corrected / (2 * its.ridge)).all()
        assert (found.gap <= scale * found.plain / (2 * its.ridge)).all()
    one_step = -its.gradient(np.zeros(len(its.rows))) * its.correction
    one_step /= its.most_curved(np.zeros(len(its.rows)))
    lowest = its.value(its.minimum())
    assert found.gap[1] == pytest.approx(its.value(one_step) - lowest, rel=1e-9)


def test_without_dispersion_both_guarantees_are_one() -> None:
    plain, corrected = criterion.guaranteed(criterion.CLIENTS, 50, seed=0)
    assert plain == pytest.approx(corrected, rel=1e-9)


@pytest.mark.parametrize("size", [300, 1_000])
def test_bytes_kept_are_exact(size: int) -> None:
    bench = overhead.Bench(size)
    kept = {name: bench.kept(name) for name in overhead.ALGORITHMS}
    assert kept == {
        "FedAvg": 0,
        "FedSubAvg": 20 * size,
        "FedAdam": 2 * 4 * overhead.WIDTH * size,
        "FedAdam, lazy": 2 * 4 * overhead.WIDTH * size,
    }
    assert bench.model_bytes == 4 * overhead.WIDTH * size


def test_the_overheads_contenders_do_their_work() -> None:
    bench = overhead.Bench(200)
    before = bench.params.tables["w"].clone()
    for name in overhead.ALGORITHMS:
        bench.step(name)
        assert not torch.equal(bench.params.tables["w"], before), name
        before = bench.params.tables["w"].clone()


def test_no_scipy_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "scipy", None)
    with pytest.raises(FedrowsError, match=r"needs the package scipy: pip install fedrows\[paper"):
        objective.require_scipy()
