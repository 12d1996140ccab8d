"""What a reader wants to know before the numbers: when, where, how, from how many runs."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from fedrows.measure.summary import number
from fedrows.report.artefact import Artefact, Cell, ResultTable

TITLE = "The paper, reproduced"
ABOUT = (
    "The tables, figures and theorems of “Federated Submodel Optimization for Hot and Cold Data "
    "Features” (NeurIPS 2022), computed anew by fedrows and set beside the paper’s own numbers."
)
QUICK = "Fewer rounds, seeds and clients than the full one: a first look, not numbers to quote."
TERMS = {
    "date": "Date",
    "machine": "Machine",
    "device": "Device",
    "fedrows": "fedrows",
    "torch": "torch",
}
VERDICTS = {"holds": "yes", "does not": "no", "cannot": "open"}
SAID = {
    "yes": ("holds", "hold"),
    "no": ("does not", "do not"),
    "open": ("cannot be tested", "cannot be tested"),
}
OTHERS = {"title", "summary", "command", "quick", "seconds"}  # they have places of their own


def shown_facts(
    facts: Mapping[str, Any],
    artefacts: Sequence[Artefact],
    runs: Mapping[str, Mapping[str, Any]],
) -> list[tuple[str, str]]:
    """The facts as terms and texts, and the number of runs and seeds."""
    terms = [(TERMS[key], str(facts[key])) for key in TERMS if facts.get(key)]
    terms += [
        (key.replace("_", " ").capitalize(), str(value))
        for key, value in facts.items()
        if key not in TERMS and key not in OTHERS and isinstance(value, str | int | float) and value
    ]
    if runs:
        seeds = {run["seed"] for run in runs.values() if run.get("seed") is not None}
        spent = sum(number(run.get("seconds")) or 0.0 for run in runs.values())
        terms.append(
            ("Runs", f"{len(runs):,} with {count(len(seeds), 'seed')}, {show_time(spent)} in all")
        )
    if (seconds := number(facts.get("seconds"))) is not None:
        terms.append(("This call", show_time(seconds)))
    claims = Counter(
        verdict_of(cell)
        for artefact in artefacts
        if artefact.name == "claims"
        for table in artefact.tables
        for row in table.rows
        for cell in row[1:]
    )
    verdicts = [
        f"{claims[kind]} {single if claims[kind] == 1 else more}"
        for kind, (single, more) in SAID.items()
        if claims[kind]
    ]
    if verdicts:
        terms.append(("Claims of the paper", ", ".join(verdicts)))
    missing = sum(bool(artefact.missing) for artefact in artefacts)
    if missing:
        terms.append(("Data missing", f"{missing} of {count(len(artefacts), 'experiment')}"))
    return terms


def verdict_of(cell: Cell) -> str:
    """'yes', 'no' or 'open' for a cell that says whether a claim holds; nothing for others."""
    text = cell.text.strip().lower()
    return next((kind for word, kind in VERDICTS.items() if re.match(rf"{word}\b", text)), "")


def seeds_of(table: ResultTable, runs: Mapping[str, Mapping[str, Any]]) -> str:
    """'seeds 0, 1, 2': those of the runs behind a table; nothing where no run is."""
    named = {name for row in table.rows for cell in row for name in cell.runs}
    seeds = sorted(
        {str(runs[n]["seed"]) for n in named & runs.keys() if "seed" in runs[n]}, key=_by
    )
    if not seeds:
        return ""
    few = ", ".join(seeds) if len(seeds) <= 10 else f"{seeds[0]} to {seeds[-1]}"
    return f"seed {few}" if len(seeds) == 1 else f"seeds {few}"


def count(number: int, what: str) -> str:
    """'1 seed', '3 seeds'."""
    return f"{number:,} {what}" if number == 1 else f"{number:,} {what}s"


def show_time(seconds: float) -> str:
    """'12 s', '5 min' or '3.2 h'."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def _by(seed: str) -> tuple[bool, int, str]:
    return (not seed.isdigit(), int(seed) if seed.isdigit() else 0, seed)
