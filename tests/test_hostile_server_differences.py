"""Differences of opened sums: what an honest server can compute of clients that are alone in a row.

In a linear model all rows of one example get the same gradient. So Σ(movie) less its open variants
is what the holders of the closed ones sent, and the bias less all open movies is what the holders
of the closed movies sent. Where that is one client, the server has its number.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from private_runs import finish, run

from fedrows import catalogue
from fedrows.data.federation import FederatedData
from fedrows.privacy.counting import values_of
from fedrows.privacy.options import Privacy
from fedrows.privacy.simulated import PrivateSimulatedRound
from fedrows.privacy.weighted_mean import WeightedMean

TABLE = "weight"


def movies_like(clients: int = 80, movies: int = 40, each: int = 8) -> FederatedData:
    """Examples with the features of MovieLens: gender, age, movie, gender×movie, age×movie."""
    draw = np.random.default_rng(0)
    client = np.repeat(np.arange(clients), each)
    gender, age = (
        (draw.random(clients) < 0.3).astype(int)[client],
        draw.integers(0, 4, clients)[client],
    )
    popular = 1 / np.arange(1, movies + 1)
    movie = draw.choice(movies, len(client), p=popular / popular.sum())
    columns = {
        "gender": (2, gender),
        "age": (4, age),
        "movie": (movies, movie),
        "gender×movie": (2 * movies, gender * movies + movie),
        "age×movie": (4 * movies, age * movies + movie),
    }
    edges = np.cumsum([0, *(rows for rows, _ in columns.values())]).tolist()
    return FederatedData.build(
        client=client,
        ids={"features": np.stack([ids for _, ids in columns.values()], axis=1) + edges[:-1]},
        label=draw.random(len(client)) < 0.5,
        test=np.zeros(len(client), dtype=bool),
        tables={TABLE: edges[-1]},
        fields={"features": TABLE},
        groups={TABLE: dict(zip(columns, pairwise(edges), strict=True))},
    )


def recovered(
    data: FederatedData, rounds: int, cohort: int, seed: int = 0, **dials: Any
) -> tuple[int, int, int]:
    """Differences that are one client's number, rows that one client holds, and rows opened.

    The total is compared with the rows of a group in the first round alone. Later sums have rows
    that waited, and the total has not.
    """
    values, counts = values_of(data, TABLE), [0, 0, 0]
    contribute, summed, sent = WeightedMean.contribute, PrivateSimulatedRound._summed, []

    def keep(self: Any, *args: Any) -> Any:
        sent.append(contribute(self, *args))
        return sent[-1]

    def watch(self: Any, training: Any) -> Any:
        layout, outcome = summed(self, training)
        for place, more in enumerate(_round(values, layout, sent[-1], outcome, len(sent) == 1)):
            counts[place] += more
        return layout, outcome

    privacy = Privacy.of("index", index_epsilon=None, secure_sum="arithmetic", **dials)
    plan = {"rounds": rounds, "clients_per_round": cohort, "weighting": "uniform", "seed": seed}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(WeightedMean, "contribute", keep)
        patch.setattr(PrivateSimulatedRound, "_summed", watch)
        finish(run(data, privacy, "fedavg", **plan))
    return counts[0], counts[1], counts[2]


def _round(values: Any, layout: Any, sent: Any, outcome: Any, first: bool) -> tuple[int, int, int]:
    union, index = layout.union[TABLE], sent.rows.index[TABLE]
    at, opened = np.searchsorted(union, index.ids.numpy()), outcome.opened.rows[TABLE][0]
    parts = np.zeros((len(sent.extra) + 1, len(union)))  # what each client sent, and the sums
    parts[index.owner.numpy(), at] = sent.rows.rows[TABLE].numpy()[:, 0]
    parts[-1] = outcome.opened.rows[TABLE][1][:, 0]
    total = np.append(sent.extra[:, -1], outcome.opened.extra[-1])  # the bias
    raw, variant = values.of(union)
    rows = {
        (value, kind): np.flatnonzero(opened & (raw == value) & (variant >> 32 == kind))
        for value, kind in set(zip(raw.tolist(), (variant >> 32).tolist(), strict=True))
    }
    differences = [
        parts[:, np.flatnonzero(union == value)[0]] - parts[:, own].sum(1)
        for (value, _), own in rows.items()
        if opened[union == value].any() and value not in union[own]
    ]
    for base in np.unique(values.bases(union)) if first else ():
        plain = np.flatnonzero((values.bases(union) == base) & (raw == union) & opened)
        differences.append(total - parts[:, plain].sum(1))
    shown = 0
    for left in differences:
        those = np.flatnonzero(np.abs(left[:-1]) > 1e-9)
        shown += len(those) == 1 and abs(left[-1] - left[those[0]]) < 1e-4  # what the server has
    holders = np.bincount(at, minlength=len(union))
    return shown, int((holders == 1).sum()), int(opened.sum())


def test_differences_give_nobodys_numbers() -> None:
    """Rows that wait are sent again in later rounds, which must not help."""
    shown, single, opened = recovered(movies_like(), rounds=12, cohort=12)
    assert single > 500
    assert opened > 200
    assert shown == 0


def test_nor_do_they_with_the_total_in_any_cohort() -> None:
    data = movies_like()
    runs = [recovered(data, rounds=1, cohort=12, seed=seed) for seed in range(12)]
    assert sum(opened for _, _, opened in runs) > 100
    assert sum(shown for shown, _, _ in runs) == 0


def test_they_do_where_each_row_opens_by_its_own_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """Broken on purpose, so that the test above can fail."""
    monkeypatch.setattr(
        "fedrows.privacy.openings.Openings.may_open", lambda plan, counts: counts >= plan.minimum
    )
    shown, _, _ = recovered(movies_like(), rounds=12, cohort=12)
    assert shown > 50


@pytest.mark.slow
def test_differences_give_nobodys_numbers_on_movielens() -> None:
    task = catalogue.task("movielens")
    shown, single, opened = recovered(task.load(task.options()), rounds=3, cohort=50)
    assert single > 5000
    assert opened > 1000
    assert shown == 0
