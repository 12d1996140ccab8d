"""Theorems 1 and 2: how ill-conditioned heat dispersion makes f, and what FedSubAvg makes of it.

Measured on the logistic regression of MovieLens (`objective`), the dispersion being varied by
leaving out the rows that few clients hold: on a subset by all eigenvalues, on the whole by
shift-invert; and on quadratic problems on which the bounds are met (`quadratics`).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from fedrows.data.federation import FederatedData
from fedrows.paper.cells import line, number_cell, verdict_cell
from fedrows.paper.experiment import Experiment, Work
from fedrows.paper.theory import quadratics
from fedrows.paper.theory.objective import Objective, require_scipy
from fedrows.paper.theory.spectrum import Spectrum, spectrum
from fedrows.report.artefact import Artefact, Cell, Figure, Panel, ResultTable

RIDGE = 0.01  # λ
EVERY_USER, EVERY_MOVIE = 20, 25  # what the subset is made of
SUBSET_HEATS = (1, 2, 4, 8, 16, 32)  # least heats
WHOLE_HEATS = (1, 3, 10, 30, 100, 300, 1000)
QUICK_HEATS = (1, 10, 100, 1000)
COLDEST = (1000, 500, 200, 100, 20, 5, 1)  # of 1,000 clients, in the family

Row = tuple[str, int, Spectrum]  # where it was measured, M, and what

COLUMNS = (
    "measured at", "n_max/n_min", "M", "ρ1", "ρ2", "α", "Theorem 1's bound", "κ(H)", "k",
    "κ(Ĥ)", "k̂", "ρ2/μ0", "κ(H)/κ(Ĥ)",
)  # fmt: skip


def make(work: Work) -> Artefact:
    """The tables of all three problems, and the figure."""
    require_scipy()
    data = work.load("movielens")
    work.say("Theorems 1 and 2 on the subset")
    subset = _measure(thin(data, EVERY_USER, EVERY_MOVIE), SUBSET_HEATS, dense=True)
    heats = QUICK_HEATS if work.quick else WHOLE_HEATS
    whole = []
    for heat in heats:
        work.say(f"Theorems 1 and 2 on all of MovieLens, rows with a heat of {heat} or more")
        whole += _measure(data, (heat,), dense=False, trained=not work.quick)
    made = {
        kind: [
            (kind, 2 if kind != "turned" else quadratics.TURNED, quadratics.spectrum_of(parts))
            for parts in (quadratics.member(kind, max(COLDEST), coldest) for coldest in COLDEST)
        ]
        for kind in quadratics.KINDS
    }
    every = [row for rows in made.values() for row in rows]
    hot = whole[0][2]
    held = [all(s.checks().values()) for _, _, s in (*subset, *whole, *every)]
    at_zero = " At x = 0 only; the full run also measures at the minimum." if work.quick else ""
    return Artefact(
        "conditioning",
        "Theorems 1 and 2: condition numbers before and after the correction",
        f"{sum(held)} of {len(held)} problems keep every inequality. On all of MovieLens, at x = 0 "
        f"and n_max/n_min = {hot.dispersion:,.0f}, κ(H) is {hot.condition:,.0f} and κ(Ĥ) "
        f"{hot.corrected_condition:.1f}. On MovieLens κ(H)/κ(Ĥ) grows with the dispersion at every "
        f"step: {'yes' if _grows(subset) and _grows(whole) else 'no'}.",
        (
            _table("conditioning-subset", "MovieLens, a subset: all eigenvalues", subset,
                   f"Every {EVERY_USER}th user and every {EVERY_MOVIE}th movie. " + NOTE),
            _table("conditioning-whole", "MovieLens, the whole: shift-invert", whole,
                   NOTE + at_zero),
            _table("conditioning-family", "Quadratic problems with ρ2/ρ1 = 2", every,
                   "flat: the hot row has curvature ρ1 and the cold one ρ2, which meets Theorem "
                   "1's bound; steep: the other way round, which meets k, k̂ and ρ2/μ0; turned: "
                   "six rows, turned at random in each of 1,000 clients. Below a dispersion of "
                   "(ρ2/ρ1)², as in the second row, the correction can make matters worse, by no "
                   "more than ρ2/ρ1."),
        ),
        (_figure(subset, whole, made),),
    )  # fmt: skip


NOTE = (
    "f is the mean over clients of each client's mean loss on its training examples + "
    f"λ/2·|x_S(i)|², λ = {RIDGE}; no bias, all clients weigh the same. Rows that fewer clients "
    "hold than a least heat are left out, which varies the dispersion. f is convex, so α = 0 (read "
    "as: at least 1 − α of a row's clients; the paper's 'more than' cannot be met by all) and "
    "μ0 = ρ1. ρ1 = λ: crossed features are collinear inside a client. ρ2 is the largest eigenvalue "
    "of any client's Hessian on its own submodel, by power iteration over all clients."
)


def thin(data: FederatedData, every_user: int, every_movie: int) -> FederatedData:
    """MovieLens with some users and some movies only."""
    train = data.train
    ids = np.asarray(train.ids["features"])
    owner = train.owner.numpy()
    movie = data.targets(train).numpy() - data.groups["weight"]["movie"][0]
    thinned = (owner % every_user == 0) & (movie % every_movie == 0)
    return FederatedData.build(
        client=owner[thinned],
        ids={"features": ids[thinned]},
        label=train.label.numpy()[thinned],
        test=np.zeros(int(thinned.sum()), dtype=bool),
        tables=data.tables,
        fields=data.fields,
    )


def _measure(
    data: FederatedData, heats: Sequence[int], dense: bool, trained: bool = True
) -> list[Row]:
    spectra = []
    for heat in heats:
        objective = Objective(data, RIDGE, heat)
        points = {"x = 0": np.zeros(len(objective.rows))}
        if trained:
            points["the minimum"] = objective.minimum()
        spectra += [(at, len(x), spectrum(objective, x, dense)) for at, x in points.items()]
    return spectra


def _grows(rows: Sequence[Row]) -> bool:
    """Whether κ(H)/κ(Ĥ) grows with the dispersion, wherever it was measured."""
    for point in {at for at, *_ in rows}:
        pairs = sorted((s.dispersion, s.gain) for at, _, s in rows if at == point)
        if any(low[1] >= high[1] for low, high in pairwise(pairs)):
            return False
    return True


def _table(key: str, title: str, rows: Sequence[Row], note: str) -> ResultTable:
    checks = tuple(rows[0][2].checks())
    cells = [
        (
            Cell(at),
            *map(number_cell, (s.dispersion, size, s.least, s.most, s.alpha)),
            *map(number_cell, (s.least_condition, s.condition, s.bound)),
            *map(number_cell, (s.corrected_condition, s.corrected_bound, s.convex_bound)),
            number_cell(s.gain),
            *map(verdict_cell, s.checks().values()),
        )
        for at, size, s in rows
    ]
    return ResultTable(key, title, COLUMNS + checks, tuple(cells), note)


def _figure(subset: Sequence[Row], whole: Sequence[Row], made: dict[str, list[Row]]) -> Figure:
    problems = {
        "the subset": [row for row in subset if row[0] == "x = 0"],
        "the subset, at the minimum": [row for row in subset if row[0] != "x = 0"],
        "the whole": [row for row in whole if row[0] == "x = 0"],
        "the whole, at the minimum": [row for row in whole if row[0] != "x = 0"],
        **{f"family: {kind}": rows for kind, rows in made.items()},
    }
    ratios = tuple(
        line(name, _dispersions(rows), [s.gain for *_, s in rows])
        for name, rows in problems.items()
        if rows
    )  # fmt: skip
    panels = [Panel("What the correction gains", "n_max/n_min", "κ(H)/κ(Ĥ)", ratios, True, True)]
    for name in ("the whole", "family: flat", "family: steep"):
        rows = problems[name]
        x, every = _dispersions(rows), [s for *_, s in rows]
        curves = (
            line("κ(H)", x, [s.condition for s in every]),
            line("Theorem 1's bound", x, [s.least_condition for s in every]),
            line("k", x, [s.bound for s in every]),
            line("κ(Ĥ)", x, [s.corrected_condition for s in every]),
            line("k̂", x, [s.corrected_bound for s in every]),
            line("ρ2/μ0", x, [s.convex_bound for s in every]),
        )
        title = "MovieLens, at x = 0" if name == "the whole" else name
        panels.append(Panel(title, "n_max/n_min", "condition number", curves, True, True))
    return Figure("conditioning", "Condition numbers and their bounds", tuple(panels))


def _dispersions(rows: Sequence[Row]) -> list[float]:
    return [s.dispersion for *_, s in rows]


EXPERIMENT = Experiment(
    "conditioning", "Theorems 1 and 2: condition numbers", make, tasks=("movielens",)
)
