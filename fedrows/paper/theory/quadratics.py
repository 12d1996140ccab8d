"""Quadratic problems whose curvature is known: f_i(x) = ½ x^T H_i x on the client's own rows.

flat    two rows: the hot one has curvature ρ1 in every client, the cold one ρ2;
        Theorem 1's bound is met exactly once n_max / n_min ≥ ρ2 / ρ1
steep   the other way round: k, k̂ and ρ2 / μ0 of Theorem 2 are met exactly
turned  six rows from hot to cold, eigenvalues from ρ1 to ρ2, turned at random in every client
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedrows.paper.theory.spectrum import Spectrum, singular

LEAST, MOST = 1.0, 2.0  # ρ1 and ρ2
KINDS = ("flat", "steep", "turned")
TURNED = 6  # rows

QuadraticPart = tuple[np.ndarray, np.ndarray]  # a client's rows, and its Hessian on them


def member(kind: str, clients: int, coldest: int, seed: int = 0) -> list[QuadraticPart]:
    """The clients of one problem: the hottest row is held by all, the coldest by `coldest`."""
    if kind == "turned":
        heat = np.geomspace(clients, coldest, TURNED).round().astype(int)
        rng = np.random.default_rng(seed)
    else:
        heat = np.array([clients, coldest])
    curvature = np.array([LEAST, MOST] if kind == "flat" else [MOST, LEAST])
    parts = []
    for client in range(clients):
        rows = np.flatnonzero(client < heat)
        if kind == "turned":
            turn, _ = np.linalg.qr(rng.standard_normal((len(rows), len(rows))))
            values = rng.uniform(LEAST, MOST, len(rows))
            values[0], values[-1] = LEAST, MOST
            parts.append((rows, (turn * values) @ turn.T))
        else:
            parts.append((rows, np.diag(curvature[rows])))
    return parts


def together(parts: Sequence[QuadraticPart]) -> tuple[np.ndarray, np.ndarray]:
    """H = 1/N Σ_i H_i, aligned by row: (M, M), and the heat n_m: (M,)."""
    rows = 1 + max(int(held.max()) for held, _ in parts)
    hessian, heat = np.zeros((rows, rows)), np.zeros(rows, dtype=int)
    for held, own in parts:
        hessian[np.ix_(held, held)] += own
        heat[held] += 1
    return hessian / len(parts), heat


def spectrum_of(parts: Sequence[QuadraticPart]) -> Spectrum:
    """The spectrum of such a problem; ρ1, ρ2 and α are measured, every H_i being definite."""
    hessian, heat = together(parts)
    values = [np.linalg.eigvalsh(own) for _, own in parts]
    negative = np.zeros(len(heat))
    for (held, _), own in zip(parts, values, strict=True):
        negative[held] += own[0] < 0
    root = np.sqrt(len(parts) / heat)
    return Spectrum(
        len(parts),
        int(heat.max()),
        int(heat.min()),
        min(float(np.abs(own).min()) for own in values),
        max(float(np.abs(own).max()) for own in values),
        singular(hessian),
        singular(root[:, None] * hessian * root),
        float((negative / heat).max()),
    )
