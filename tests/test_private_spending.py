"""What a private run spends: noise as asked, limits that stop it, nothing twice when resumed."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from private_runs import COHORT, finish, furthest, run, seeded, synthetic, uploads

from fedrows import simulate
from fedrows.data.federation import FederatedData
from fedrows.errors import PlanError, RunFolderError
from fedrows.models.logistic import Logistic
from fedrows.privacy.options import Privacy
from fedrows.rows.params import Submodels
from fedrows.runs import checkpoint
from fedrows.simulation import Simulation


@pytest.fixture(scope="module")
def data() -> FederatedData:
    return synthetic()


# Differential privacy


def test_full_without_noise_is_the_mean_of_clipped_updates(data):
    """With next to no noise and every row selected, one round is worked out by hand."""
    dials = {"dp_noise": 1e-9, "dp_select_noise": 1e-9, "dp_select_threshold": 1e-3}
    heat = {"dp_heat_noise": 1e-9, "dp_heat_rows": 10**6, "dp_clip": 0.3}
    privacy = Privacy.of("full", index_epsilon=None, secure_sum="arithmetic", **dials, **heat)
    simulation = run(data, privacy, rounds=1, clients_per_round=data.clients, weighting="uniform")
    finish(simulation)
    clear = run(data, rounds=1, clients_per_round=data.clients, weighting="uniform")
    [upload] = uploads(clear)
    index = upload.update.index["weight"]
    factor = data.heat()["weight"].correction(index)
    rows = upload.update.rows["weight"] * factor[:, None]
    dense = {name: x.clone() for name, x in upload.update.dense.items()}
    corrected = Submodels(upload.update.index, {"weight": rows.clone()}, dense)
    scale = (0.3 / corrected.norms()).clamp(max=1)
    assert 0 < (scale < 1).float().mean() <= 1
    corrected.scale_(scale)
    expected = torch.zeros(data.tables["weight"], 1, dtype=torch.float64)
    expected.index_add_(0, index.ids, corrected.rows["weight"])
    found = simulation.progress.params.tables["weight"]
    assert torch.allclose(found, expected / data.clients, atol=1e-5)


def test_full_draws_its_cohorts_in_secret(data):
    fleets = [run(data, Privacy.of("full")).private for _ in range(2)]
    drawn = [[fleet.draw(1, COHORT).tolist() for _ in range(4)] for fleet in fleets]
    assert drawn[0] != drawn[1]
    public = [run(data, Privacy.of("index")).private.draw(1, COHORT).tolist() for _ in range(2)]
    assert public[0] == public[1]


def test_simulate_says_that_it_stopped_and_measures_its_last_model(data):
    privacy = Privacy.of("index", max_epsilon=2.5)
    result = simulate(
        data, Logistic(data), rounds=20, clients_per_round=COHORT, privacy=privacy, device="cpu"
    )
    [line] = result.history
    assert 0 < line["round"] < 20
    assert result.stopped.startswith("max-epsilon of server/value is 2.5")


@pytest.mark.slow
def test_a_run_stops_before_it_spends_too_much(data):
    privacy = Privacy.of("full", max_epsilon=12.0, dp_noise=2.0)
    simulation = finish(run(data, privacy, rounds=50))
    spent = simulation.private.accounts.ledger.spent("model/user-replaced")
    assert 0 < simulation.progress.round < 50
    assert spent <= 12
    assert "max-epsilon of model/user-replaced is 12" in simulation.stopped
    longer = finish(
        run(data, Privacy.of("full", dp_noise=2.0), rounds=simulation.progress.round + 1)
    )
    assert longer.private.accounts.ledger.spent("model/user-replaced") > 12
    assert longer.stopped == ""


def test_a_private_run_that_is_ended_early_ends(data):
    simulation = run(data, Privacy.of("index"), rounds=5)
    for _ in simulation:
        simulation.end_("enough")
    assert (simulation.progress.round, simulation.stopped) == (1, "enough")


def test_a_limit_that_is_passed_before_the_start(data):
    privacy = Privacy.of("heat", heat="randomized-response", max_epsilon=1.0)
    simulation = finish(run(data, privacy))
    assert simulation.progress.round == 0
    assert simulation.stopped


def test_a_round_spends_for_ever_less_than_its_bound(data):
    privacy = Privacy.of("index", max_epsilon=4.0)
    simulation = finish(run(data, privacy, rounds=12))
    assert simulation.progress.round == 12
    assert 2 < simulation.private.accounts.ledger.spent("server/value") <= 4


# Resuming


@pytest.mark.parametrize(
    "privacy",
    [
        Privacy.of("heat", heat="randomized-response"),
        Privacy.of("index", index_epsilon=3.0, index_epsilon_for_ever=6.0),
        Privacy.of("index", index_epsilon=None, secure_sum="arithmetic"),
        Privacy.of("full", dp_clip=0.5, dp_select_threshold=1.0),
    ],
    ids=["heat", "index", "arithmetic", "full"],
)
@pytest.mark.slow
def test_a_resumed_run_is_the_run_that_never_stopped(data, privacy, tmp_path):
    def begin(name: str) -> Simulation:
        dials = {} if privacy.stages is None else {"answers": str(tmp_path / name)}
        simulation = run(data, replace(privacy, **dials))
        simulation.private.seed = seeded
        return simulation

    whole = finish(begin("whole"))
    first, place = begin("cut"), tmp_path / "checkpoint.safetensors"
    for progress in first:
        if progress.round == 3:
            break
    checkpoint.save(place, first)
    second = begin("cut")
    checkpoint.restore_(second, place)
    assert second.private.accounts.line() == first.private.accounts.line()
    finish(second)
    assert furthest(whole, second) == 0
    assert second.private.line() == whole.private.line()
    assert len(second.private.held) == len(whole.private.held)
    other = run(data)
    with pytest.raises(RunFolderError, match="its privacy is another"):
        checkpoint.restore_(other, place)


def test_answers_in_memory_cannot_be_resumed(data, tmp_path):
    simulation, place = run(data, Privacy.of("index"), rounds=1), tmp_path / "c.safetensors"
    finish(simulation)
    checkpoint.save(place, simulation)
    with pytest.raises(RunFolderError, match="answering anew would spend anew"):
        checkpoint.restore_(run(data, Privacy.of("index"), rounds=1), place)


def test_permanent_answers_refuse_another_epsilon(data, tmp_path):
    finish(run(data, Privacy.of("index", answers=str(tmp_path)), rounds=1))
    assert all(path.stat().st_mode & 0o077 == 0 for path in tmp_path.glob("*/*.npz"))
    other = Privacy.of("index", answers=str(tmp_path), index_epsilon_for_ever=8.0)
    with pytest.raises(PlanError, match="answering anew spends anew"):
        finish(run(data, other, clients_per_round=data.clients, rounds=1))
