"""Theorem 3: how fast FedSubAvg's criterion ∇f^T D ∇f falls, beside the bound.

    1/T Σ_t ∇f(X^t)^T D ∇f(X^t) ≤ 2·(f(X¹) − f*)/(γT) + 2γLσ²/n_min
                                  + 4Nγ²I²G²L²/n_min + 2γNI²G²L/(n_min·K)

t counts local iterations (`iterates`), on a federation whose constants are known
(`known_constants`). With γ = c·√(n_min·K/(N·T)) the right side is O(√(N/(n_min·K·T))): slope
−1/2 in T.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fedrows.algorithm import Algorithm
from fedrows.algorithms.fedsubavg import FedSubAvg
from fedrows.data.federation import FederatedData
from fedrows.paper.cells import line, number_cell, slope, spread, verdict_cell
from fedrows.paper.experiment import Experiment, Work
from fedrows.paper.theory import known_constants
from fedrows.paper.theory.iterates import EXACT, iterations
from fedrows.paper.theory.objective import Objective, require_scipy
from fedrows.paper.theory.ridge import Ridge
from fedrows.plan import Plan
from fedrows.report.artefact import Artefact, Cell, Figure, Panel, ResultTable

CLIENTS, HEATS = 100, (50, 20, 10, 5)
COHORTS = (5, 10, 20)  # K
STEPS, BATCH = 5, 1  # I and B
FACTOR = 4.0  # c
LENGTHS = (500, 1_000, 2_000, 4_000, 8_000)  # T
QUICK_LENGTHS = (500, 1_000, 2_000)
SEEDS = range(5)
QUICK_SEEDS = range(2)


def make(work: Work) -> Artefact:
    """Measured and bound for every T and K, and the slopes."""
    require_scipy()
    data = known_constants.federation(CLIENTS, HEATS)
    lengths, seeds = (QUICK_LENGTHS, QUICK_SEEDS) if work.quick else (LENGTHS, SEEDS)
    rows, curves, slopes, held = [], [], [], []
    for cohort in COHORTS:
        by_seed: list[list[float]] = [[] for _ in seeds]
        bounds = []
        for length in lengths:
            work.say(f"Theorem 3 with K = {cohort}, T = {length:,}")
            lr = rate(data, cohort, length)
            bounds.append(bound(data, cohort, length, lr))
            for seed, measurements in zip(seeds, by_seed, strict=True):
                measurements.append(measured(data, cohort, length, lr, seed))
            means = [measurements[-1] for measurements in by_seed]
            holds = max(means) <= bounds[-1]
            held.append(holds)
            order = float(np.sqrt(CLIENTS / (min(HEATS) * cohort * length)))
            values = (lr, float(np.mean(means)), min(means), max(means), bounds[-1], order)
            label = Cell(f"K = {cohort}, T = {length:,}")
            rows.append((label, *map(number_cell, values), verdict_cell(holds)))
        mean = np.mean(by_seed, axis=0).tolist()
        slopes.append(slope(lengths, mean))
        curves += [spread(f"K = {cohort}", lengths, by_seed)]
        curves += [line(f"bound, K = {cohort}", lengths, bounds, "guide")]
    rates = [np.sqrt(CLIENTS / (min(HEATS) * COHORTS[1] * length)) for length in lengths]
    curves.append(line(f"√(N/(n_min·K·T)), K = {COHORTS[1]}", lengths, rates, "guide"))
    fitted = ", ".join(f"{x:.2f} (K = {k})" for x, k in zip(slopes, COHORTS, strict=True))
    columns = (
        "", "γ", "mean of ∇f^T D ∇f", "least seed", "greatest seed", "bound", "√(N/(n_min·K·T))",
        "measured ≤ bound",
    )  # fmt: skip
    return Artefact(
        "convergence",
        "Theorem 3: the convergence of FedSubAvg",
        f"The bound holds in {sum(held)} of {len(held)} settings, for every one of {len(seeds)} "
        f"seeds. The measured mean falls with T at a slope of {fitted}; the theorem's is −0.5.",
        (ResultTable("convergence", "The mean over T local iterations, and its bound", columns,
               tuple(rows), _note(data)),),
        (Figure("convergence", "Theorem 3, measured and bound",
                (Panel("Mean over t ≤ T", "T", "mean of ∇f^T D ∇f", tuple(curves), True, True),)),),
    )  # fmt: skip


def rate(data: FederatedData, cohort: int, length: int) -> float:
    """γ = c·√(n_min·K/(N·T)), which must not be above 1/(2L); T must be above n_min·K³/N."""
    lr = FACTOR * float(np.sqrt(min(HEATS) * cohort / (CLIENTS * length)))
    assert lr <= 1 / (2 * known_constants.constants(data, BATCH).smoothness), (
        "the proof needs γ ≤ 1/(2L)"
    )
    assert length > min(HEATS) * cohort**3 / CLIENTS, "the theorem needs T > n_min·K³/N"
    return lr


def bound(data: FederatedData, cohort: int, length: int, lr: float) -> float:
    """The right side of Theorem 3."""
    constants = known_constants.constants(data, BATCH)
    drift = STEPS**2 * constants.gradient * constants.smoothness  # I²G²L
    return (
        2 * constants.gap / (lr * length)
        + 2 * lr * constants.smoothness * constants.variance / min(HEATS)
        + 4 * CLIENTS * lr**2 * drift * constants.smoothness / min(HEATS)
        + 2 * lr * CLIENTS * drift / (min(HEATS) * cohort)
    )


def measured(data: FederatedData, cohort: int, length: int, lr: float, seed: int) -> float:
    """The left side of one run: the mean of ∇f^T D ∇f over X^1 … X^T."""
    objective = Objective(data, 0.0)
    points = walk(data, FedSubAvg(), cohort, length, lr, seed)
    return float(np.mean([objective.gradient(x) ** 2 @ objective.correction for x in points]))


def walk(
    data: FederatedData, algorithm: Algorithm, cohort: int, length: int, lr: float, seed: int
) -> Sequence[np.ndarray]:
    """X^1 … X^T of one run."""
    steps: dict[str, Any] = {"rounds": length // STEPS, "local_steps": STEPS, "batch_size": BATCH}
    plan = Plan(**EXACT, **steps, clients_per_round=cohort, lr=lr, seed=seed)
    points = iterations(data, Ridge(data, 0.0), algorithm, plan)
    return [params.tables["w"][:, 0].numpy() for params in points][:length]


def _note(data: FederatedData) -> str:
    constants = known_constants.constants(data, BATCH)
    return (
        f"N = {CLIENTS}, I = {STEPS}, batches of {BATCH}; heats {CLIENTS}, "
        f"{', '.join(map(str, HEATS))}; logistic regression with one row per example. Known "
        f"exactly: L = {constants.smoothness:.4g} (a row's largest share of a client's examples, "
        f"over 4), f(X¹) − f* = {constants.gap:.4g}; G² = {constants.gradient:g} and "
        f"σ² = {constants.variance:g} hold for "
        f"every x, since an example's gradient is p − y. γ = {FACTOR:g}·√(n_min·K/(N·T)) ≤ 1/(2L) "
        "and T > n_min·K³/N throughout. X^t averages over all N clients between rounds, as the "
        "proof has it. The theorem bounds an expectation; here every seed is below it. The bound "
        "is far above: it charges every iteration for the drift of I steps at a gradient of "
        "norm G."
    )


EXPERIMENT = Experiment("convergence", "Theorem 3: the convergence of FedSubAvg", make)
