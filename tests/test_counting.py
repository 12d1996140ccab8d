"""Heat in four ways: right on a small federation, honest about bytes, error and ε."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from attack import bytes_of

from fedrows.data.federation import FederatedData
from fedrows.datasets.movielens import SOURCE, MovieLensOptions, read
from fedrows.errors import PlanError
from fedrows.privacy.counting import WAYS, Counting, count, heats, table, values_of
from fedrows.privacy.response import Response
from fedrows.privacy.values import derived, rows_per_value
from fedrows.rows.heat import heat_of
from fedrows.rows.index import Index

MOVIES = 20
GROUPS = {"sex": (0, 2), "movie": (2, 2 + MOVIES), "sex×movie": (2 + MOVIES, 2 + 3 * MOVIES)}


@pytest.fixture(scope="module")
def data() -> FederatedData:
    """300 clients of two sexes; movie m is liked by one client in m + 1."""
    rng = np.random.default_rng(0)
    client, movie = np.nonzero(rng.random((300, MOVIES)) < 1 / (np.arange(MOVIES) + 1))
    sex = client % 2
    features = np.stack([sex, 2 + movie, 2 + MOVIES + sex * MOVIES + movie], axis=1)
    return FederatedData.build(
        client=client,
        ids={"features": features},
        label=np.zeros(len(client), dtype=np.int64),
        test=np.zeros(len(client), dtype=bool),
        tables={"weight": 2 + 3 * MOVIES},
        fields={"features": "weight"},
        groups={"weight": GROUPS},
    )


@pytest.mark.parametrize("weighting", ["uniform", "examples"])
@pytest.mark.parametrize("way", ["exact", "secure"])
def test_what_adds_no_noise_is_the_heat_itself(data, way, weighting):
    counted = heats(data, weighting, Counting(way))["weight"]
    true = data.heat(weighting if way == "exact" else "uniform")["weight"]  # sums count clients
    assert counted.heat.counts.tolist() == true.counts.tolist()
    assert counted.heat.total == true.total
    assert counted.heat.ids is data.index["weight"].held
    assert counted.epsilon == counted.epsilon_set == math.inf
    rows = len(data.index["weight"].ids) / 300 if way == "exact" else 2 + 3 * MOVIES
    assert counted.bytes_up == pytest.approx(4 * rows)


@pytest.mark.parametrize("epsilon", [1.0, 4.0])
@pytest.mark.parametrize(
    "how", [("randomized-response", "row"), ("randomized-response", "value"), ("hashed", "row")]
)  # test_oracle repeats hashing often
@pytest.mark.slow
def test_private_counts_are_unbiased_and_as_wrong_as_they_say(data, how, epsilon):
    way, coins = how
    options = Counting(way, heat_epsilon=epsilon, heat_z=0, coins=coins, heat_buckets=512)
    heat, source = data.heat()["weight"], bytes_of(int(epsilon))
    times = 20 if way == "hashed" else 200
    found = [heats(data, "uniform", options, source)["weight"] for _ in range(times)]
    off = np.array([(each.estimates - heat.counts.numpy()) / each.errors for each in found])
    # With shared coins a movie and its sexes are off together. Of the 42 others each passes 3
    # standard errors once in 370 times: three of them once in 4,000.
    others = (heat.ids < 2) | (heat.ids >= 2 + MOVIES)
    beyond = np.abs(off.mean(0))[others.numpy()] > 3 / math.sqrt(times)
    assert beyond.sum() <= 2
    assert abs(off.mean()) < 4 / math.sqrt(times * len(beyond)) * 2
    assert np.sqrt(np.square(off).mean()) == pytest.approx(1, rel=0.1)
    first = found[0]
    assert first.heat.total == 300
    assert np.array_equal(first.heat.counts.numpy(), first.estimates.clip(min=1))
    assert first.heat.ids is data.index["weight"].held


@pytest.mark.parametrize("way", ["randomized-response", "hashed"])
def test_capped_weights(data, way):
    options = Counting(way, 4.0, heat_z=0, coins="row", heat_cap=3.0, heat_buckets=512)
    weights = data.weights("examples")
    true = heat_of(data.index["weight"], weights.clamp(max=3)).counts.numpy()
    source = bytes_of(2)
    times = 30 if way == "hashed" else 100
    found = [heats(data, "examples", options, source)["weight"] for _ in range(times)]
    estimates = np.array([each.estimates for each in found])
    deviation = estimates.std(0)
    assert (np.abs(estimates.mean(0) - true) > 3 * deviation / math.sqrt(times)).sum() <= 1
    said = np.mean([each.errors for each in found], axis=0)
    assert (deviation < 1.2 * said).all()  # an upper bound, and for cold rows a close one
    assert (deviation > 0.5 * said)[true < 30].all()
    assert found[0].heat.total == float(weights.clamp(max=3).sum())


def test_epsilon_of_a_value_and_of_a_set(data):
    index = data.index["weight"]
    largest = int(index.lengths.max())
    movies = (largest - 1) // 2
    behind = rows_per_value(values_of(data, "weight"), index.owner.numpy(), index.ids.numpy())
    assert behind == 1 + movies  # a sex has a row of its own, and one for every movie
    by_row = heats(data, "uniform", Counting("randomized-response", coins="row"))["weight"]
    assert by_row.epsilon == pytest.approx((1 + movies) * 2.0)
    assert by_row.epsilon_set == pytest.approx(largest * 2.0)
    by_value = heats(data, "uniform", Counting("randomized-response"))["weight"]
    assert by_value.epsilon == pytest.approx(2.0)
    assert by_value.epsilon_set == pytest.approx((1 + movies) * 2.0)
    assert by_value.bytes_up == (2 + MOVIES) / 8
    value, whole = by_row.entries("weight")
    assert (value.kind, value.epsilon) == ("server/value", by_row.epsilon)
    assert (whole.kind, whole.epsilon) == ("server/set", by_row.epsilon_set)


def test_coins_by_value_are_all_that_a_client_says():
    """A slow twin: every client answers for its values, and a row is the product of two answers."""
    held = [[0, 2, 4], [1, 3, 7], [0, 3, 5], [1, 2, 3, 6, 7]]  # sexes 0, 1; movies 2, 3; sex×movie
    groups = {"sex": (0, 2), "movie": (2, 4), "sex×movie": (4, 8)}
    index = Index(
        torch.tensor([row for rows in held for row in rows]), torch.tensor([0, 3, 6, 9, 14])
    )
    how = Counting("randomized-response", heat_epsilon=1.0, heat_z=0)
    found = count(index, torch.ones(4), 8, how, derived(groups), bytes_of(7))
    response, source = Response.symmetric(1.0), bytes_of(7)
    response.ones(np.zeros(4), 4, source)  # drawn for values that are crossed with none
    bits = np.array([[value in rows for value in range(4)] for rows in held])
    sexes, movies = response.answer(bits[:, :2], source), response.answer(bits[:, 2:], source)
    unbiased = (np.concatenate([sexes, movies], axis=1) - response.lie) / (
        response.keep - response.lie
    )
    for place, row in enumerate(found.heat.ids.tolist()):
        sex, movie = divmod(row - 4, 2)
        slow = unbiased[:, row] if row < 4 else unbiased[:, sex] * unbiased[:, 2 + movie]
        assert found.estimates[place] == pytest.approx(slow.sum())


def test_the_floor_is_a_standard_error(data):
    for z in (1.0, 2.0):
        options = Counting("randomized-response", heat_epsilon=0.5, heat_z=z)
        counted = heats(data, "uniform", options, bytes_of(1))["weight"]
        floor = z * counted.errors
        assert (counted.heat.counts.numpy() >= floor).all()
        assert (counted.heat.counts.numpy() == floor).any()


def test_the_table_says_what_each_way_resolves(data):
    lines = {line.way: line for line in table(data, Counting(heat_epsilon=1.0), bytes_of(1))}
    assert tuple(lines) == WAYS
    assert lines["secure"].verdict == "resolves every row"
    noisy = lines["randomized-response"]
    assert noisy.smallest == pytest.approx(2 * noisy.error, rel=0.05)
    assert 0 < noisy.resolved < 1
    assert "% of the rows" in noisy.verdict
    hopeless = table(data, Counting(heat_epsilon=0.01), bytes_of(1))[2]
    assert hopeless.verdict.startswith("resolves nothing useful")


def test_an_index_that_knows_no_federation(data):
    plain = data.index["weight"].select(torch.arange(50))
    bare = Index(plain.ids, plain.splits)
    counted = count(bare, torch.ones(50), 62, Counting("randomized-response", 20.0), None)
    assert counted.heat.ids.tolist() == plain.ids.unique().tolist()
    true = heat_of(bare, torch.ones(50)).counts
    assert torch.allclose(counted.heat.counts, true, atol=1e-3)


def test_nobody_holds_anything():
    nothing = Index(torch.empty(0, dtype=torch.int64), torch.zeros(4, dtype=torch.int64))
    for way in WAYS:
        counted = count(nothing, torch.ones(3), 10, Counting(way, heat_buckets=16))
        assert len(counted.heat.ids) == 0


def test_bad_input(data):
    with pytest.raises(PlanError, match="heat is 'guess'"):
        Counting("guess")
    with pytest.raises(PlanError, match="heat-epsilon is 0"):
        Counting("hashed", 0)
    with pytest.raises(PlanError, match="coins by row only"):
        Counting("randomized-response", coins="value", heat_cap=2.0)
    with pytest.raises(PlanError, match="below 0"):
        count(
            data.index["weight"],
            -torch.ones(300),
            62,
            Counting("randomized-response", coins="row", heat_cap=1.0),
        )
    ragged = FederatedData.build(  # client 0 has two hours, but not every movie in both
        client=np.array([0, 0, 1]),
        ids={"x": np.array([[0, 2], [1, 5], [0, 3]])},
        label=np.zeros(3, dtype=np.int64),
        test=np.zeros(3, dtype=bool),
        tables={"x": 6},
        groups={"x": {"movie": (0, 2), "hour×movie": (2, 6)}},
    )
    with pytest.raises(PlanError, match="only some of them: use coins by row"):
        heats(ragged, "uniform", Counting("randomized-response", coins="value"))


@pytest.mark.slow
def test_movielens(data_folder):
    """Real data: estimates are off by what they say."""
    data = read(data_folder / SOURCE.folder / SOURCE.file, MovieLensOptions())
    true = data.heat()["weight"].counts.numpy()
    for how in (
        Counting("randomized-response", coins="row"),
        Counting("randomized-response"),
        Counting("hashed"),
    ):
        counted = heats(data, "uniform", how, bytes_of(4))["weight"]
        off = (counted.estimates - true) / counted.errors
        assert abs(off.mean()) < 0.05
        assert off.std() == pytest.approx(1, abs=0.05)
        genders = 2.0 * 1837  # by row: of a client with 1,836 movies
        by_value = how.heat != "hashed" and how.coins == "value"
        assert counted.epsilon == pytest.approx(2.0 if by_value else genders)
