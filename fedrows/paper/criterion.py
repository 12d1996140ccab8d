"""Theorems 4 and 5: why a small |∇f|² says little under heat dispersion, and ∇f^T D ∇f does.

    ∇f^T D ∇f = |∇f̂|² ≤ ε   gives   f − f* ≤ ε / (2·μ0)
    |∇f|² ≤ ε               gives   f − f* ≤ N·ε / (2·n_min·μ0) and no more;
                            without dispersion n_min = N, and the two are one (Theorem 4)

Along exact runs of FedAvg and FedSubAvg, each at the largest rate that its own curvature allows;
and, over a range of N/n_min, what the two guarantees come to in stochastic runs at the rates of
the convergence theorems: FedSubAvg's is said to be Θ(√(N/n_min)) times smaller.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedrows import catalogue
from fedrows.data.federation import FederatedData
from fedrows.datasets import synthetic
from fedrows.paper import convergence
from fedrows.paper.cells import line, number_cell, slope, verdict_cell
from fedrows.paper.experiment import Experiment, Work
from fedrows.paper.theory import known_constants
from fedrows.paper.theory.iterates import after_rounds
from fedrows.paper.theory.objective import Objective, require_scipy
from fedrows.paper.theory.ridge import Ridge
from fedrows.report.artefact import Artefact, Cell, Curve, Figure, Panel, ResultTable

RIDGE, ROUNDS = 0.01, 1_000
OPTIONS = synthetic.SyntheticOptions(clients=300, items=60, examples_per_client=30, test_share=0)
QUICK_ROUNDS = 400
LOST = 1e-12  # f − f* below this is lost in rounding
LEVELS = (1e-3, 1e-4, 1e-5, 1e-6)  # ε
NAMES = {"fedavg": "FedAvg", "fedsubavg": "FedSubAvg"}
CLIENTS, COHORT = 100, 10
COLDEST = (100, 50, 20, 10, 5, 2, 1)  # n_min
LENGTH, QUICK_LENGTH = 4_000, 1_000  # T
SEEDS, QUICK_SEEDS = range(3), range(1)


@dataclass(frozen=True)
class Path:
    """What an exact run comes by, before its first round and after every other: (rounds + 1,)."""

    gap: np.ndarray  # f − f*
    plain: np.ndarray  # |∇f|²
    corrected: np.ndarray  # ∇f^T D ∇f


def make(work: Work) -> Artefact:
    """Both criteria along both runs, and the two guarantees by N/n_min."""
    require_scipy()
    work.say("Theorem 5 along exact runs")
    data = synthetic.load(OPTIONS)
    objective = Objective(data, RIDGE)
    many = QUICK_ROUNDS if work.quick else ROUNDS
    paths = {name: path(name, data, objective, many) for name in NAMES}
    coldest, convexity = int(objective.heat.min()), objective.least_curved(objective.minimum())
    scale = objective.clients / coldest  # N/n_min
    held = {name: _hold(walked, scale, convexity) for name, walked in paths.items()}
    wrong, right = (_apart(paths, measure) for measure in ("plain", "corrected"))
    yes = "yes" if all(map(all, held.values())) else "no"
    guarantees, panel, exponent = _guarantees(work)
    return Artefact(
        "criterion",
        "Theorems 4 and 5: which gradient norm tells how far f is from its minimum",
        f"Both bounds hold at every round of both runs: {yes}. At the "
        f"same |∇f|² FedAvg is up to {wrong:.3g} times as far from the minimum as FedSubAvg, at "
        f"the same ∇f^T D ∇f up to {right:.3g} times. FedSubAvg's guarantee is better by "
        f"(N/n_min)^{exponent:.2f} as measured; the paper says 0.5.",
        (_levels(paths, scale, convexity, held), guarantees),
        (Figure("criterion", "Two criteria and the distance to the minimum",
                (*_panels(paths, scale, convexity), panel)),),
    )  # fmt: skip


def path(name: str, data: FederatedData, objective: Objective, many: int = ROUNDS) -> Path:
    """An exact run: every client takes one step along its whole gradient in every round.

    FedAvg steps by N/(n_max·ρ2) and FedSubAvg by 1/ρ2: one over what H and Ĥ cannot exceed.
    """
    curvature = objective.most_curved(np.zeros(len(objective.rows)))
    own = objective.clients / int(objective.heat.max()) if name == "fedavg" else 1.0
    every = after_rounds(
        data,
        Ridge(data, objective.ridge),
        name,
        rounds=many,
        batches="epoch",
        batch_size=int(data.sizes.max()),
        lr=own / curvature,
    )
    points = every[:, objective.rows]
    lowest = objective.value(objective.minimum())
    squares = np.stack([objective.gradient(x) for x in points]) ** 2  # (rounds + 1, M)
    gap = np.array([objective.value(x) for x in points]) - lowest
    return Path(gap.clip(min=0), squares.sum(1), squares @ objective.correction)


def _hold(walked: Path, scale: float, convexity: float) -> tuple[bool, bool]:
    """Whether the bound by |∇f|², and that by ∇f^T D ∇f, hold at every round."""
    seen = walked.gap > LOST
    plain, corrected = (scale * walked.plain)[seen], walked.corrected[seen]
    limits = plain / (2 * convexity), corrected / (2 * convexity)
    return bool((walked.gap[seen] <= limits[0]).all()), bool((walked.gap[seen] <= limits[1]).all())


def _apart(paths: dict[str, Path], measure: str) -> float:
    """How many times as far from the minimum FedAvg is at the same value of a criterion, at most.

    Between rounds by interpolating logarithms, where both runs have the value and f − f* is not
    yet lost in rounding.
    """
    curves = []
    for name in ("fedavg", "fedsubavg"):
        values, gap = getattr(paths[name], measure), paths[name].gap
        seen = (gap > LOST) & _falling(values)
        curves.append((np.log(values[seen])[::-1], np.log(gap[seen])[::-1]))  # x ascends
    (x1, y1), (x2, y2) = curves
    at = np.linspace(max(x1[0], x2[0]), min(x1[-1], x2[-1]), 400)
    return float(np.exp((np.interp(at, x1, y1) - np.interp(at, x2, y2)).max()))


def _falling(values: np.ndarray) -> np.ndarray:
    """Where a value is below all before it."""
    before = np.concatenate([[np.inf], np.minimum.accumulate(values)[:-1]])
    return values < before


def _levels(
    paths: dict[str, Path], scale: float, convexity: float, held: dict[str, tuple[bool, bool]]
) -> ResultTable:
    """f − f* where a criterion first falls to ε."""
    rows = []
    for name, walked in paths.items():
        for which, measure in enumerate(("|∇f|²", "∇f^T D ∇f")):
            values = walked.corrected if which else walked.plain
            for level in LEVELS:
                reached = np.flatnonzero(values <= level)
                label = Cell(f"{NAMES[name]}: {measure} ≤ {level:.0e}")
                if not len(reached):
                    rows.append((label, Cell(f"more than {len(values) - 1:,}"), *[Cell("–")] * 4))
                    continue
                gap, short = float(walked.gap[reached[0]]), level / (2 * convexity)
                allowed = short if which else short * scale
                cells = map(number_cell, (float(reached[0]), gap, short, allowed))
                holds = verdict_cell(gap <= allowed and held[name][which])
                rows.append((label, *cells, holds))
    return ResultTable(
        "criterion",
        "How far f is from its minimum when a criterion says ε",
        ("", "first round", "f − f*", "ε/(2μ0)", "what the theorem allows", "theorem"),
        tuple(rows),
        f"Synthetic data: N = {OPTIONS.clients}, {OPTIONS.items} items, N/n_min = {scale:g}; the "
        f"objective of Theorems 1 and 2 with λ = {RIDGE} = μ0; all clients in every round, one "
        f"exact step each. 'holds' means at every round of the run with f − f* above {LOST:g}, not "
        "at these alone. Without "
        "dispersion (Theorem 4) ε/(2μ0) would be allowed for |∇f|² too.",
    )


def _panels(paths: dict[str, Path], scale: float, convexity: float) -> tuple[Panel, ...]:
    panels = []
    for name, measure, factor in (("|∇f|²", "plain", scale), ("∇f^T D ∇f", "corrected", 1.0)):
        curves: list[Curve] = []
        ends = [np.inf, 0.0]
        for key, walked in paths.items():
            seen = walked.gap > LOST
            x = getattr(walked, measure)[seen]
            ends = [min(ends[0], x.min()), max(ends[1], x.max())]
            curves.append(line(NAMES[key], x, walked.gap[seen]))
        if factor > 1:
            level = [factor * end / (2 * convexity) for end in ends]
            curves.append(line("N·ε/(2·n_min·μ0)", ends, level, "guide"))
        curves.append(line("ε/(2·μ0)", ends, [end / (2 * convexity) for end in ends], "guide"))
        panels.append(Panel(f"By {name}", f"ε = {name}", "f − f*", tuple(curves), True, True))
    by_round = tuple(
        line(NAMES[name], np.flatnonzero(walked.gap > LOST).tolist(), walked.gap[walked.gap > LOST])
        for name, walked in paths.items()
    )
    return (*panels, Panel("By round", "round", "f − f*", by_round, log_y=True))


def _guarantees(work: Work) -> tuple[ResultTable, Panel, float]:
    """What the two theorems guarantee after T iterations, by N/n_min, and the exponent of it."""
    length, seeds = (QUICK_LENGTH, QUICK_SEEDS) if work.quick else (LENGTH, SEEDS)
    rows, ratios, quotients = [], [], []
    for coldest in COLDEST:
        work.say(f"Theorem 5 with N/n_min = {CLIENTS / coldest:g}")
        both = np.mean([guaranteed(coldest, length, seed) for seed in seeds], axis=0)
        (plain, plain_gap), (corrected, corrected_gap) = both
        ratios.append(CLIENTS / coldest)
        quotients.append(plain / corrected)
        cells = (plain, corrected, quotients[-1], np.sqrt(ratios[-1]), plain_gap, corrected_gap)
        rows.append((Cell(f"{ratios[-1]:g}", ratios[-1]), *(number_cell(float(x)) for x in cells)))
    exponent = slope(ratios, quotients)
    columns = (
        "N/n_min", "FedAvg: N·mean|∇f|²/n_min", "FedSubAvg: mean of ∇f^T D ∇f", "ratio",
        "√(N/n_min)", "FedAvg: f − f* at the end", "FedSubAvg: f − f* at the end",
    )  # fmt: skip
    note = (
        f"The guarantees for f − f*, times 2μ0. N = {CLIENTS}, K = {COHORT}, T = {length:,}, "
        f"{len(seeds)} seed(s); rows of heat N, N and n_min on the federation of Theorem 3; rates "
        "4·√(K/T) for FedAvg and 4·√(n_min·K/(N·T)) for FedSubAvg, as the theorems have them. "
        f"The ratio follows (N/n_min)^{exponent:.2f}. It compares guarantees: f itself, in which a "
        "cold row's share is n_m/N, need not differ as much, as the last two columns show."
    )
    panel = Panel(
        "The guarantees by N/n_min",
        "N/n_min",
        "FedAvg's guarantee / FedSubAvg's",
        (line("measured", ratios, quotients), line("√(N/n_min)", ratios, np.sqrt(ratios), "guide")),
        log_x=True,
        log_y=True,
    )
    title = "What is guaranteed for f − f* after T iterations"
    return ResultTable("criterion-guarantees", title, columns, tuple(rows), note), panel, exponent


def guaranteed(coldest: int, length: int, seed: int) -> np.ndarray:
    """FedAvg's and FedSubAvg's guarantee times 2μ0, and f − f* at the end: (2, 2)."""
    data = known_constants.federation(CLIENTS, (CLIENTS, coldest))
    objective, constants = Objective(data, 0.0), known_constants.constants(data, convergence.BATCH)
    lowest = objective.value(np.zeros(len(objective.rows))) - constants.gap
    guarantees = []
    for name, share in (("fedavg", 1.0), ("fedsubavg", coldest / CLIENTS)):
        lr = convergence.FACTOR * float(np.sqrt(share * COHORT / length))
        algorithm = catalogue.algorithm(name)()
        points = convergence.walk(data, algorithm, COHORT, length, lr, seed)
        squares = np.stack([objective.gradient(x) for x in points]) ** 2
        plain = CLIENTS / coldest * squares.sum(1).mean()
        guarantee = plain if name == "fedavg" else (squares @ objective.correction).mean()
        guarantees.append((float(guarantee), objective.value(points[-1]) - lowest))
    return np.array(guarantees)


EXPERIMENT = Experiment("criterion", "Theorems 4 and 5: which gradient norm to trust", make)
