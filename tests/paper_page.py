"""Artefacts made by hand, with everything an experiment may hand over, good and bad."""

import math
from typing import Any

from fedrows.report.artefact import Artefact, Cell, Curve, Figure, Panel, ResultTable

ATTACK = "</script><script>document.title='owned'</script><img src=x onerror=alert(1)>\"'"
RUNS: dict[str, dict[str, Any]] = {
    f"{algorithm}-{seed}": {
        "task": "movielens",
        "algorithm": {"name": algorithm, "lr": 0.5},
        "settings": {"plan": {"rounds": 1000, "clients_per_round": 50}, "odd": ATTACK},
        "seed": seed,
        "command": f"fedrows run movielens --algorithm {algorithm} --seed {seed}",
        "seconds": 12.25 + seed,
        "device": "cpu",
        "lines": [[i, 0.5] for i in range(2000)],  # shortened on the page
    }
    for algorithm in ("fedsubavg", "fedavg", "fedprox", "scaffold", "fedadam", "centralsgd")
    for seed in range(50)
}
FACTS = {
    "date": "2026-11-16",
    "machine": "2 cores",
    "fedrows": "0.1.0",
    "torch": "2.13",
    "command": "fedrows paper --out paper",
    "quick": True,
}


def made_by(algorithm: str, seeds: int = 3) -> tuple[str, ...]:
    return tuple(f"{algorithm}-{seed}" for seed in range(seeds))


def falling(name: str, speed: float, points: int = 1000) -> Curve:
    """A learning curve with a band and some noise, one value in it lost."""
    x = tuple(float(i) for i in range(points))
    y = [0.3 + 0.4 * math.exp(-speed * i) + 0.004 * math.sin(i * 12.9) for i in range(points)]
    y[points // 2] = math.nan
    low, high = (tuple(v + d for v in y) for d in (-0.01, 0.01))
    return Curve(name, x, tuple(y), low, high, runs=made_by(name.lower()))


CLAIMS = Artefact(
    "claims",
    "Claims of the evaluation",
    "What the evaluation section says, and whether it is so here.",
    tables=(
        ResultTable(
            "claims",
            "Each claim, tested",
            ("Claim", "Here", "Why"),
            (
                (
                    Cell("FedSubAvg reaches the target in fewer rounds than FedAvg on every task."),
                    Cell("holds", runs=made_by("fedsubavg")),
                    Cell("On all four tasks, at the paper’s learning rates, with every seed."),
                ),
                (Cell("FedAdam is slower than FedSubAvg."), Cell("does not"), Cell("LR only.")),
                (Cell("The gap grows online."), Cell("cannot be tested"), Cell("No such data.")),
            ),
        ),
    ),
)
RACE = Artefact(
    "table2",
    "Table 2 and Figure 3: six algorithms",
    "FedSubAvg is ahead of FedAvg.\n\nThe band runs from the lowest to the highest seed.",
    tables=(
        ResultTable(
            "table2",
            "Rounds to the target",
            ("Algorithm", "MovieLens", "Best AUC"),
            (
                (
                    Cell("FedSubAvg"),
                    Cell("87 ± 3", 87.0, "78", 78.0, made_by("fedsubavg")),
                    Cell("0.7101 ± 0.0012", 0.7101, "0.7102", 0.7102, made_by("fedsubavg")),
                ),
                (
                    Cell("FedAvg"),
                    Cell("> 1000", None, "> 1000", None, (*made_by("fedavg"), "lost-run")),
                    Cell("nan", math.nan, "0", 0.0),
                ),
                (Cell(ATTACK), Cell("5 | 6", 5.0), Cell("–")),
            ),
            note="Means over seeds ± sample standard deviation.",
        ),
    ),
    figures=(
        Figure(
            "figure3",
            "Train loss by round",
            (
                Panel(
                    "MovieLens",
                    "round",
                    "train loss",
                    (
                        falling("FedSubAvg", 0.01),
                        falling("FedAvg", 0.004),
                        falling("FedProx", 0.003),
                        falling("Scaffold", 0.0025),
                        falling("FedAdam", 0.008),
                        falling("CentralSGD", 0.012),
                        Curve("label prior", (0.0, 999.0), (0.66, 0.66), kind="guide"),
                        Curve("client’s mean", (0.0,), (0.655,), kind="guide"),
                    ),
                ),
                Panel(
                    "Sent140",
                    "round",
                    "train loss",
                    (
                        falling("FedSubAvg", 0.02, 300),
                        Curve(ATTACK, (0.0, 100.0, 200.0), (0.6, 0.5, 0.45)),
                        Curve("nothing", (), ()),
                        Curve("never a number", (1.0, 2.0), (math.nan, math.inf)),
                    ),
                ),
            ),
            note="Thin lines are levels to compare with.",
        ),
    ),
)
HEAT = Artefact(
    "heat",
    "Heat distributions",
    "Most features are cold.",
    figures=(
        Figure(
            "heat",
            "Features by heat, the whole tail",
            (
                Panel(
                    "MovieLens",
                    "heat",
                    "features",
                    (
                        Curve(
                            "items",
                            tuple(float(h) for h in range(3000)),
                            (0.0, *(9000.0 * h**-1.3 for h in range(1, 3000))),
                            kind="dots",
                        ),
                        Curve("slope −1.3", (1.0, 3000.0), (9000.0, 0.272), kind="guide"),
                    ),
                    log_x=True,
                    log_y=True,
                ),
            ),
        ),
        Figure(
            "heat",  # a key that is taken: the file gets another name
            "Example 1: where the two go",
            (
                Panel(
                    "",
                    "x₁",
                    "x₂",
                    tuple(
                        Curve(
                            name,
                            tuple(math.exp(-0.1 * i) * math.cos(speed * i) for i in range(60)),
                            tuple(math.exp(-0.1 * i) * math.sin(speed * i) for i in range(60)),
                        )
                        for name, speed in (("FedAvg", 0.3), ("FedSubAvg", 0.1))
                    ),
                ),
            ),
        ),
        Figure("empty", "No panel at all", ()),
        Figure(
            "zeros",
            "Nothing above zero on log axes",
            (Panel("", "x", "y", (Curve("_flat", (0.0, -1.0), (0.0, 0.0)),), True, True),),
        ),
    ),
)
MISSING = Artefact(
    "taobao",
    "Taobao",
    missing="There is no UserBehavior.csv in data/taobao: run `fedrows data fetch taobao`.",
)
ARTEFACTS = (RACE, HEAT, MISSING, CLAIMS)
