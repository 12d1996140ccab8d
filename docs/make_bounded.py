"""Writes the tables of docs/bounded-correction.md: exact numbers, no simulation.

    python docs/make_bounded.py

N clients, n of them hold a row, and K of N are drawn without replacement with equal weights. So the
number k of holders in a cohort has a hypergeometric distribution. Each holder moves the row by 1.
"""

from __future__ import annotations

from collections.abc import Callable
from math import comb, sqrt
from pathlib import Path

import page_parts

PAGE = Path(__file__).parent / "bounded-correction.md"
CLIENTS, COHORT = 1_000, 50
HOLDERS = (1, 4, 20, 40, 100, 400, 1_000)

# How far a row moves if k of its n holders are in a cohort of K of N, and each moves it by 1.
Rule = Callable[[int, int, int, int], float]
RULES: dict[str, Rule] = {
    "FedAvg": lambda N, n, K, k: k / K,
    "FedSubAvg": lambda N, n, K, k: k / K * N / n,
    "cap=cohort": lambda N, n, K, k: k / K * min(N / n, K),
    "holders' mean": lambda N, n, K, k: 1.0 if k else 0.0,
    "bounded": lambda N, n, K, k: k / K / max(n / N, k / K),
}


def chances(clients: int, holders: int, cohort: int) -> list[float]:
    """The probability of k = 0 … K present holders."""
    ways = comb(clients, cohort)
    return [
        comb(holders, k) * comb(clients - holders, cohort - k) / ways for k in range(cohort + 1)
    ]


def moments(rule: Rule, clients: int, holders: int, cohort: int) -> tuple[float, float, float]:
    """The mean, the standard deviation and the largest of a row's moves in a round.

    Moves that happen less than once in a million rounds do not count as the largest.
    """
    odds = chances(clients, holders, cohort)
    moves = [rule(clients, holders, cohort, k) for k in range(cohort + 1)]
    mean = sum(p * x for p, x in zip(odds, moves, strict=True))
    square = sum(p * x * x for p, x in zip(odds, moves, strict=True))
    largest = max(x for p, x in zip(odds, moves, strict=True) if p >= 1e-6)
    return mean, sqrt(max(0.0, square - mean**2)), largest


def table() -> str:
    """One line for every number of holders."""
    lines = []
    for n in HOLDERS:
        cells = [f"{n:,}", f"{COHORT * n / CLIENTS:g}", f"{chances(CLIENTS, n, COHORT)[0]:.3f}"]
        for rule in RULES.values():
            mean, spread, largest = moments(rule, CLIENTS, n, COHORT)
            cells.append(f"{mean:.3g} ± {spread:.2g}, ≤ {largest:.3g}")
        lines.append(cells)
    head = ["n", "expected holders K·n/N", "nobody present", *RULES]
    return page_parts.table(head, lines)


def written(text: str) -> str:
    """The page with its table made anew."""
    return page_parts.filled(PAGE, text, {"table": table()})


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text("utf-8")), "utf-8")
