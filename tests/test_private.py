"""Private runs: the clear run's numbers where nothing is hidden, whoever drops out."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from private_runs import (
    OPEN,
    ROUNDS,
    clients_counted,
    finish,
    furthest,
    lists_and_places,
    run,
    synthetic,
    uploads,
    wide_model,
)

from fedrows.data.federation import FederatedData
from fedrows.errors import PlanError
from fedrows.privacy.options import Privacy, from_config
from fedrows.privacy.ring import RangeError
from fedrows.privacy.simulated import PrivateSimulatedFleet


@pytest.fixture(scope="module")
def data() -> FederatedData:
    return synthetic()


@pytest.fixture(scope="module")
def two_tables() -> FederatedData:
    return lists_and_places()


# Where nothing is hidden


@pytest.mark.parametrize("algorithm", ["fedavg", "fedprox", "fedsubavg", "fedadam"])
@pytest.mark.parametrize("secure_sum", ["real", "arithmetic"])
def test_a_secure_run_is_the_clear_run(data, algorithm, secure_sum):
    clear = finish(clients_counted(run(data, algorithm=algorithm)))
    privacy = Privacy.of("index", secure_sum=secure_sum, **OPEN)
    private = finish(run(data, privacy, algorithm))
    error = 1e-4 if algorithm == "fedadam" else ROUNDS * 1e-6  # Adam divides by small numbers
    assert 0 < furthest(clear, private) < error
    assert private.private.report.opened_share == 1
    assert len(private.private.held) == 0


@pytest.mark.parametrize("how", ["direct", "bloom"])
def test_tables_of_other_widths_lists_and_local_rows(two_tables, how):
    """Rows of width 4 and 2 share a sum; a local table stays with its clients."""
    model = wide_model(two_tables)
    clear = finish(clients_counted(run(two_tables, model=model)))
    privacy = Privacy.of("index", union=how, **OPEN)
    private = finish(run(two_tables, privacy, model=wide_model(two_tables)))
    assert furthest(clear, private) < ROUNDS * 1e-6
    own = private.progress.params.tables["own"]
    assert not torch.equal(own, private.model.start().tables["own"])


def test_heat_by_secure_sum_is_exact_and_noisy_heat_is_not(data):
    clear = finish(clients_counted(run(data)))
    assert furthest(clear, finish(run(data, Privacy.of("heat")))) == 0
    weighted = finish(run(data))
    assert furthest(weighted, clear) > 1e-3
    noisy = finish(run(data, Privacy.of("heat", heat="randomized-response")))
    assert furthest(clear, noisy) > 1e-3
    spent = noisy.private.line()["epsilon"]
    assert 1.99 < spent["server/value"] <= 2  # the two rows of an item share a coin
    assert finish(run(data, Privacy.of("heat"))).private.line() == {
        "epsilon": {"totals/value": "inf"}
    }


def test_what_the_fleet_lets_through(data):
    simulation = run(data, Privacy.of("heat"), "scaffold")
    assert isinstance(simulation.fleet, PrivateSimulatedFleet)
    assert simulation.fleet.kept is not None
    finish(simulation)
    assert furthest(simulation, finish(run(data, algorithm="scaffold"))) == 0


def test_arithmetic_is_said_once(data):
    simulation = finish(run(data, Privacy.of("index", secure_sum="arithmetic", **OPEN)))
    said = [note for note in simulation.private.notes if "without masks" in note]
    assert len(said) == 1


# Drop-outs


def drop_in(what: str, silent: Mapping[int, int]) -> Callable[[int, str], Mapping[int, int]]:
    return lambda round_, use: silent if use == what else {}


@pytest.mark.parametrize("secure_sum", ["real", "arithmetic"])
@pytest.mark.parametrize("what", ["union", "update"])
def test_who_drops_out_is_left_out(data, secure_sum, what):
    """With everybody in the cohort and client 3 silent, the others' own run comes out."""
    privacy = Privacy.of("index", secure_sum=secure_sum, **OPEN)
    plan = {"clients_per_round": data.clients, "rounds": 1}
    for _ in range(8):  # if client 3 is drawn as an opener, no row is opened: draw again
        private = run(data, privacy, **plan)
        private.private.drop = drop_in(what, {3: 2})
        [upload] = uploads(private)
        if len(upload.update.index["weight"].ids):
            break
    assert upload.clients.tolist() == [i for i in range(data.clients) if i != 3]
    others = torch.tensor(upload.clients.tolist())
    clear = run(data, **plan)
    [whole] = uploads(clear)
    weights = clear.fleet.weights[others]
    mine = clear.fleet.weights.clone()
    mine[3] = 0
    expected = torch.zeros_like(private.progress.params.tables["weight"])
    index = whole.update.index["weight"]
    expected.index_add_(0, index.ids, whole.update.rows["weight"] * mine[index.owner][:, None])
    expected /= weights.sum()
    found = torch.zeros_like(expected)
    found[upload.update.index["weight"].ids] = upload.update.rows["weight"]
    assert torch.allclose(found, expected, atol=1e-6)
    assert float(upload.weights) == float(weights.sum())


@pytest.mark.parametrize("secure_sum", ["real", "arithmetic"])
@pytest.mark.parametrize("what", ["union", "update"])
def test_below_the_threshold_a_round_is_left_out(data, secure_sum, what):
    simulation = run(data, Privacy.of("index", secure_sum=secure_sum, **OPEN), rounds=2)
    silent = dict.fromkeys(range(data.clients), 1)
    simulation.private.drop = lambda round_, use: silent if (round_, use) == (1, what) else {}
    start = {name: x.clone() for name, x in simulation.progress.params.tables.items()}
    steps = iter(simulation)
    assert next(steps).round == 1
    assert torch.equal(simulation.progress.params.tables["weight"], start["weight"])
    assert next(steps).round == 2
    assert not torch.equal(simulation.progress.params.tables["weight"], start["weight"])
    assert any("Round 1 was left out" in note for note in simulation.private.notes)


def test_without_its_openers_a_round_holds_every_row_back(data):
    """All but the openers go on: dense tensors move, and the rows arrive with the next upload."""
    simulation = run(data, Privacy.of("index", **OPEN), rounds=1)
    silent = dict.fromkeys(range(data.clients), 5)  # each falls silent once its shares are opened
    simulation.private.drop = lambda round_, use: silent if use == "update" else {}
    start = simulation.progress.params.tables["weight"].clone()
    finish(simulation)
    assert torch.equal(simulation.progress.params.tables["weight"], start)
    assert float(simulation.progress.params.dense["bias"]) != 0
    assert len(simulation.private.held) == 0  # nobody heard the end, so nobody sends it twice


def test_a_client_whose_dense_numbers_do_not_fit_is_left_out(data, monkeypatch):
    simulation = run(data, Privacy.of("index", **OPEN), rounds=1)
    fleet, train = simulation.private.inner, simulation.private.inner.trained

    def broken(*args: Any) -> Any:
        upload = train(*args)
        bias = upload.update.dense["bias"].clone()
        bias[2] = math.nan
        upload.update.dense["bias"] = bias
        return upload

    monkeypatch.setattr(fleet, "trained", broken)
    finish(simulation)
    assert any("outside of the agreed range" in note for note in simulation.private.notes)
    assert bool(torch.isfinite(simulation.progress.params.tables["weight"]).all())


# Bad input


@pytest.mark.parametrize(
    ("dials", "sentence"),
    [
        ({"privacy": "secret"}, "must be one of clear, heat, index, full"),
        ({"privacy": "clear", "heat": "secure"}, "heat is 'secure', which does nothing under"),
        ({"privacy": "heat", "heat": "exact"}, "shows every index set"),
        ({"privacy": "heat", "min_contributors": 3}, "does nothing under privacy 'heat'"),
        ({"privacy": "index", "index_epsilon": 0.0}, "index-epsilon is 0.0, but must be above 0"),
        ({"privacy": "index", "index_epsilon": 5.0}, "must be below the ε for ever"),
        ({"privacy": "index", "index_epsilon_for_ever": None}, "must both be given"),
        ({"privacy": "index", "openers": 1}, "must be above the 1 colluding"),
        ({"privacy": "index", "threshold": 1.5}, "threshold is 1.5, but must be at most 1"),
        ({"privacy": "full", "min_contributors": 2}, "decides over others' part"),
        ({"privacy": "full", "heat": "hashed"}, "a secure sum with noise on it"),
        ({"privacy": "full", "max_epsilon_kind": "model/user"}, "use model/user-replaced"),
        ({"privacy": "full", "max_epsilon": -1.0}, "max-epsilon is -1.0"),
    ],
)
def test_dials_that_do_not_go_together(dials, sentence):
    with pytest.raises(PlanError, match=sentence):
        Privacy.of(**dials)


@pytest.mark.parametrize(
    ("algorithm", "plan", "dials", "sentence"),
    [
        ("scaffold", {}, {}, "scaffold does not declare that sums of uploads are enough"),
        ("steppedmean", {}, {}, "steppedmean does not declare that sums of uploads are enough"),
        ("centralsgd", {}, {}, "puts all data in one place"),
        ("fedavg", {"clients_per_round": 2}, {}, "need 3: ask for more"),
        ("fedavg", {}, {"min_contributors": 9}, "no row would ever be opened"),
        ("fedavg", {}, {"colluding": 7, "openers": 8}, "need 9: ask for more"),
    ],
)
def test_runs_that_could_not_be_private(data, algorithm, plan, dials, sentence):
    with pytest.raises(PlanError, match=sentence):
        run(data, Privacy.of("index", **dials), algorithm, **plan)


def test_a_range_that_no_word_can_hold(data):
    with pytest.raises(RangeError, match="lower the range or cap the correction"):
        run(data, Privacy.of("index", update_range=1e12)).prepare()


def test_dials_survive_a_config():
    privacy = Privacy.of("full", dp_noise=2.0)
    assert from_config(privacy.config()) == privacy
    assert from_config(None) == Privacy()
