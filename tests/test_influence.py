"""The table of what one client can do is the one that was measured, and says what it should."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
RESULT = json.loads((ROOT / "benchmarks" / "results" / "influence.json").read_text())


def test_the_page_has_the_table_that_was_measured() -> None:
    pytest.importorskip("flwr")
    sys.path.insert(0, str(ROOT / "benchmarks"))
    from influence import page_with

    page = (ROOT / "docs" / "over-the-network.md").read_text()
    assert page_with(page, RESULT) == page


def test_by_default_a_liar_does_no_more_than_an_honest_round() -> None:
    rules = {line["rule"]: line for line in RESULT["rules"]}
    largest = rules["default of deployments"].pop("honest_largest")
    del rules["default of deployments"]["rule"]
    assert all(moved <= largest for moved in rules["default of deployments"].values())
    assert rules["FedSubAvg, cap 100"]["cold, 100000 examples"] > 100


@pytest.mark.slow
def test_measured_again_a_liar_still_does_no_more(data_folder: Path) -> None:
    sys.path.insert(0, str(ROOT / "benchmarks"))
    from influence import measure

    for line in measure()["rules"]:
        if line["rule"] == "default of deployments":
            honest = line.pop("honest_largest")
            assert all(x <= honest for name, x in line.items() if name != "rule")
