"""docs/recommenders.md has the numbers of the results file, and no others."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "docs"))

import make_recommenders


def test_the_tables_are_those_of_the_results() -> None:
    text = make_recommenders.PAGE.read_text("utf-8")
    assert make_recommenders.page(text) == text
    assert make_recommenders.page(text.replace(".8126", ".9126")) == text


def test_means_and_spreads_are_written_with_their_seeds() -> None:
    assert make_recommenders.shown([0.75, 0.77]) == ".7600 ± .0141 (2)"
    assert make_recommenders.shown([0.75]) == ".7500 (1)"
