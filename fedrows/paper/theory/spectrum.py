"""Theorems 1 and 2 on one Hessian: condition numbers, their bounds, and whether they hold.

H = 1/N Σ_i H_i,   Ĥ = D^½ H D^½,   D = diag(N / n_m),   κ = σ_max / σ_min
every H_i has its eigenvalues on its own submodel in ±[ρ1, ρ2],   μ0 = ρ1 − α·(ρ1 + ρ2)

Theorem 1   κ(H) ≥ (n_max / n_min) · μ0 / ρ2                      where f is convex
Theorem 2   κ(H) ≤ k = ρ2 · n_max / (N · σ_min(H))                everywhere
            κ(Ĥ) ≤ k̂ = ρ2 / σ_min(Ĥ),   k̂ ≤ k                    everywhere
            κ(Ĥ) ≤ ρ2 / μ0                                        where f is convex
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from fedrows.paper.theory.objective import Objective, require_scipy

EXACT = 1e-8  # relative: several of the inequalities are equalities on some problems


@dataclass(frozen=True)
class Spectrum:
    """What the two theorems speak of, measured."""

    clients: int
    hottest: int  # n_max
    coldest: int  # n_min
    least: float  # ρ1
    most: float  # ρ2
    plain: tuple[float, float]  # σ_min and σ_max of H
    corrected: tuple[float, float]  # of Ĥ
    alpha: float = 0.0  # share of a row's holders whose Hessian may be negative

    @property
    def dispersion(self) -> float:
        """n_max / n_min."""
        return self.hottest / self.coldest

    @property
    def convexity(self) -> float:
        """μ0."""
        return self.least - self.alpha * (self.least + self.most)

    @property
    def condition(self) -> float:
        """κ(H)."""
        return self.plain[1] / self.plain[0]

    @property
    def corrected_condition(self) -> float:
        """κ(Ĥ)."""
        return self.corrected[1] / self.corrected[0]

    @property
    def gain(self) -> float:
        """κ(H) / κ(Ĥ)."""
        return self.condition / self.corrected_condition

    @property
    def bound(self) -> float:
        """k."""
        return self.most * self.hottest / (self.clients * self.plain[0])

    @property
    def corrected_bound(self) -> float:
        """k̂."""
        return self.most / self.corrected[0]

    @property
    def convex_bound(self) -> float:
        """ρ2 / μ0."""
        return self.most / self.convexity

    @property
    def least_condition(self) -> float:
        """What κ(H) cannot be below by Theorem 1."""
        return self.dispersion * self.convexity / self.most

    def checks(self, convex: bool = True) -> dict[str, bool]:
        """Every inequality, by how it is written, and whether it holds."""
        inequalities = {
            "κ(H) ≤ k": _at_most(self.condition, self.bound),
            "κ(Ĥ) ≤ k̂": _at_most(self.corrected_condition, self.corrected_bound),
            "k̂ ≤ k": _at_most(self.corrected_bound, self.bound),
        }
        if convex:
            inequalities |= {
                "κ(H) ≥ (n_max/n_min)·μ0/ρ2": _at_most(self.least_condition, self.condition),
                "κ(Ĥ) ≤ ρ2/μ0": _at_most(self.corrected_condition, self.convex_bound),
            }
        return inequalities


def singular(hessian: np.ndarray) -> tuple[float, float]:
    """The least and the greatest singular value of a symmetric matrix, by all eigenvalues."""
    sizes = np.abs(np.linalg.eigvalsh(hessian))
    return float(sizes.min()), float(sizes.max())


def singular_sparse(hessian: Any) -> tuple[float, float]:
    """The same of a sparse positive definite matrix: Lanczos, for the least on its inverse."""
    require_scipy()
    from scipy.sparse.linalg import LinearOperator, eigsh, splu

    if hessian.shape[0] < 3:  # Lanczos needs room
        return singular(hessian.toarray())
    start = np.random.default_rng(0).standard_normal(hessian.shape[0])
    factors = splu(hessian, permc_spec="MMD_AT_PLUS_A", options={"SymmetricMode": True})
    inverse = LinearOperator(hessian.shape, matvec=factors.solve, dtype=np.float64)
    room = min(hessian.shape[0], 60)  # vectors to keep: cold rows have eigenvalues close together
    options = {"k": 1, "v0": start, "ncv": room, "tol": 1e-10, "return_eigenvectors": False}
    (least,) = eigsh(hessian, sigma=0, OPinv=inverse, **options)
    (most,) = eigsh(hessian, which="LA", **options)
    return float(least), float(most)


def spectrum(objective: Objective, x: np.ndarray, dense: bool) -> Spectrum:
    """The spectrum of an objective's Hessian at x; dense: by all of its eigenvalues."""
    from scipy.sparse import diags_array

    hessian = objective.hessian(x)
    root = diags_array(np.sqrt(objective.correction))
    corrected = (root @ hessian @ root).tocsc()
    return Spectrum(
        objective.clients,
        int(objective.heat.max()),
        int(objective.heat.min()),
        objective.least_curved(x),
        objective.most_curved(x),
        singular(hessian.toarray()) if dense else singular_sparse(hessian),
        singular(corrected.toarray()) if dense else singular_sparse(corrected),
    )


def _at_most(low: float, high: float) -> bool:
    return low <= high * (1 + EXACT)
