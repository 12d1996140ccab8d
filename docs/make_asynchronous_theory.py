"""Writes the tables and the picture of docs/asynchronous-theory.md: expected beside simulated.

    python docs/make_asynchronous_theory.py

`delayed_rows` has the problem, its known answers and its simulation.
"""

from __future__ import annotations

import math
from pathlib import Path

import draw_asynchronous
import numpy as np
from delayed_rows import (
    BUFFER,
    CLIENTS,
    DELAY,
    KINDS,
    RATE,
    RULES,
    chance,
    ends_at,
    expected,
    factor,
    fast_and_slow,
    largest_rate,
    of_kind,
    simulated,
    steps_to,
)
from page_parts import filled, table

PAGE = Path(__file__).parent / "asynchronous-theory.md"
SEEDS, STEPS, LONG, SHOWN = range(3), 250, 1_500, 150
DELAYS = (0, 1, 4, 9, 19, 49, 99)


def speeds() -> str:
    """Steps until a tenth of the error is left, by rule and by how many hold a row."""
    head = ["holders", "moved in a step, q", *(f"`{rule}`: σ, steps" for rule in RULES)]
    runs = {rule: [simulated(rule, STEPS, seed) for seed in SEEDS] for rule in RULES}
    rows = []
    for holders in KINDS:
        cells = [f"{holders:,} of {CLIENTS:,}", f"{chance(holders):.3f}"]
        for rule in RULES:
            mean = np.mean([of_kind(x, holders).mean(1) for x in runs[rule]], axis=0)
            exact = expected(rule, holders, STEPS)
            cells.append(
                f"{factor(rule, DELAY, holders):.3f}, {steps_to(exact, 0.1)} "
                f"({steps_to(mean.tolist(), 0.1)})"
            )
        rows.append(cells)
    return table(head, rows, words=1)


def limits() -> str:
    """The largest rates by delay."""
    head = [
        "delay D",
        "largest h σ",
        "largest h with σ = 1/√(1 + D)",
        "h for the fastest decay, σ = 1",
    ]
    rows = []
    for delay in DELAYS:
        most, fastest = largest_rate(delay), delay**delay / (delay + 1) ** (delay + 1)
        rows.append([f"{delay}", f"{most:.4f}", f"{most * math.sqrt(1 + delay):.4f}",
                     f"{fastest:.4f}"])  # fmt: skip
    return table(head, rows, words=1)


def bias() -> str:
    """Where rows end whose slow holders disagree with the fast ones."""
    head = ["holders", *(f"`{rule}`: expected (simulated)" for rule in RULES)]
    runs = {rule: fast_and_slow(rule, LONG, 0) for rule in RULES}
    rows = []
    for holders in KINDS:
        cells = [f"{holders:,} of {CLIENTS:,}"]
        for rule in RULES:
            mean = of_kind(runs[rule], holders)[LONG // 3 :].mean()
            cells.append(f"{ends_at(rule, holders):+.2f} ({mean:+.2f})")
        rows.append(cells)
    return table(head, rows, words=1)


def picture() -> str:
    """The error of a cold and of a hot row by step."""
    shown = {"A row with 10 holders of 1,000": 10, "A row that everybody holds": CLIENTS}
    runs = {rule: simulated(rule, SHOWN, seed=0) for rule in RULES}
    lines = draw_asynchronous.theory(
        SHOWN,
        {title: {r: expected(r, n, SHOWN) for r in RULES} for title, n in shown.items()},
        {
            title: {r: of_kind(runs[r], n).mean(1).tolist() for r in RULES}
            for title, n in shown.items()
        },
    )
    return "\n".join(lines) + "\n"


PARTS = {"speeds": speeds, "limits": limits, "bias": bias}


def written(text: str) -> str:
    """The page with its tables made anew."""
    return filled(PAGE, text, {name: f"\n{made()}\n" for name, made in PARTS.items()})


def settings() -> str:
    """The numbers of the problem in a line, as the page says them."""
    return f"N = {CLIENTS:,}, M = {BUFFER}, D = {DELAY}, h = {RATE}"


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text("utf-8")), "utf-8")
    PAGE.with_suffix(".svg").write_text(picture(), "utf-8")
