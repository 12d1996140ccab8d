"""Every experiment of the theory gives a whole artefact: tables and figures with numbers."""

import json
from dataclasses import asdict

import numpy as np
import pytest

from fedrows.data.federation import FederatedData
from fedrows.datasets import synthetic
from fedrows.paper import (
    conditioning,
    convergence,
    criterion,
    example1,
    overhead,
)
from fedrows.paper.cells import number_cell, slope
from fedrows.report.artefact import from_dict


class Asked:
    """Someone who carries out a quick experiment."""

    quick, search = True, False

    def __init__(self, data: FederatedData) -> None:
        self.data, self.said = data, list[str]()

    def load(self, task: str) -> FederatedData:
        return self.data

    def results(self, study: object) -> object:
        raise AssertionError("the theory needs no runs")

    def say(self, text: str) -> None:
        self.said.append(text)


def like_movielens() -> FederatedData:
    """Gender, age, movie, gender×movie, age×movie, as MovieLens has them, of 60 users."""
    rng = np.random.default_rng(0)
    client = np.repeat(np.arange(60), 10)
    gender, age = (client % 3 > 0).astype(int), client % 2
    movie = np.concatenate([rng.choice(30, 10, replace=False) for _ in range(60)])
    columns = (gender, 2 + age, 4 + movie, 34 + 30 * gender + movie, 94 + 30 * age + movie)
    return FederatedData.build(
        client=client,
        ids={"features": np.stack(columns, axis=1)},
        label=rng.integers(0, 2, 600),
        test=np.zeros(600, dtype=bool),
        tables={"weight": 154},
        fields={"features": "weight"},
        target=("features", 2),
        groups={"weight": {"movie": (4, 34)}},
    )


@pytest.mark.parametrize(
    "module", [example1, conditioning, convergence, criterion, overhead], ids=lambda m: m.__name__
)
def test_an_experiment_gives_a_whole_artefact(
    module: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {
        "EVERY_USER": 1,
        "EVERY_MOVIE": 2,
        "SUBSET_HEATS": (1, 3),
        "QUICK_HEATS": (1, 4),
        "COLDEST": (100, 10),
        "COHORTS": (5, 10),
        "QUICK_LENGTHS": (100, 200),
        "QUICK_ROUNDS": 20,
        "QUICK_LENGTH": 50,
        "SIZES": (200, 400, 800),
        "BLOCKS": 2,
        "LEAST": 0.0,
        "OPTIONS": synthetic.SyntheticOptions(clients=30, items=10, test_share=0),
    }.items():
        if hasattr(module, name):
            monkeypatch.setattr(module, name, value)
    experiment = module.EXPERIMENT  # type: ignore[attr-defined]
    made = experiment.make(Asked(like_movielens()))
    assert made.name == experiment.name
    assert made.tables
    assert made.figures
    for table in made.tables:
        assert table.rows
        assert {len(row) for row in table.rows} == {len(table.columns)}
        assert not any(cell.text == "fails" for row in table.rows for cell in row)
    for figure in made.figures:
        for panel in figure.panels:
            assert panel.curves
            for curve in panel.curves:
                assert len(curve.x) == len(curve.y) > 0
                assert not panel.log_y or min(curve.y) > 0
    assert from_dict(json.loads(json.dumps(asdict(made), allow_nan=False))) == made


def test_numbers_in_cells() -> None:
    assert [number_cell(x).text for x in (7.0, 12345.6, 0.012345, float("nan"))] == [
        "7",
        "12,346",
        "0.01235",
        "–",
    ]
    assert slope([1, 10, 100], [5, 50, 500]) == pytest.approx(1)
