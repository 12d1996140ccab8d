"""A counted start: what is counted, where it goes, and who may count."""

from __future__ import annotations

from dataclasses import replace
from math import log

import numpy as np
import pytest
import torch

from fedrows import catalogue
from fedrows.data.federation import FederatedData
from fedrows.data.label_counts import LabelCounts, client_log_odds, label_sets
from fedrows.data.personal import with_personal
from fedrows.errors import DataError, PlanError
from fedrows.lifting.lifted import Lifted
from fedrows.measure.trivial_baselines import scores
from fedrows.models import logistic, mf
from fedrows.plan import Plan
from fedrows.privacy.options import Privacy
from fedrows.simulation import Simulation
from fedrows.simulator.counted_start import count_labels


def logit(share: float) -> float:
    return log(share / (1 - share))


@pytest.fixture
def data() -> FederatedData:
    """Clients a, b, c and items 10, 20, 30 (rows 0, 1, 2); b has item 0 three times."""
    return FederatedData.build(
        client=np.array(list("aabbbbcca")),
        ids={
            "user": np.array([0, 0, 1, 1, 1, 1, 2, 2, 0]),
            "item": np.array([0, 1, 0, 0, 0, 1, 1, 2, 2]),
        },
        label=np.array([1, 0, 1, 0, 1, 0, 1, 1, 0]),
        test=np.array([0] * 8 + [1]),
        tables={"user": 3, "item": 4},
        local=["user"],
        target=("item", None),
    )


def plan(**options: object) -> Plan:
    chosen = {"clients_per_round": 2, "rounds": 2, "start": "counted", "device": "cpu"}
    return Plan(**{**chosen, **options})  # type: ignore[arg-type]


def test_a_client_counts_once_for_an_item_and_likes_it_if_half_of_its_examples_do(data):
    have, like = label_sets(data)
    assert have.ids.tolist() == [0, 1, 0, 1, 1, 2]
    assert have.splits.tolist() == [0, 2, 4, 6]
    assert like.ids.tolist() == [0, 0, 1, 2]  # of b, two of three; 1 by c alone
    assert like.splits.tolist() == [0, 1, 2, 4]
    counts = count_labels(data)
    assert counts.examples.tolist() == [2, 3, 1]
    assert counts.positives.tolist() == [2, 1, 1]
    assert counts.prior == pytest.approx(4 / 6)


def test_log_odds_are_pulled_towards_the_prior_by_five_examples(data):
    p = 4 / 6
    wanted = [logit((k + 5 * p) / (n + 5)) - logit(p) for k, n in ((2, 2), (1, 3), (1, 1))]
    assert count_labels(data).log_odds().tolist() == pytest.approx(wanted)
    own = [logit((k + 5 * p) / (n + 5)) - logit(p) for k, n in ((1, 2), (2, 4), (2, 2))]
    assert client_log_odds(data, p).tolist() == pytest.approx(own)


def test_small_counts_are_pulled_as_strongly_as_the_plan_says(data):
    p = 4 / 6
    run = Simulation(data, mf.build(data), catalogue.algorithm("fedavg")(), plan(start_pseudo=2.0))
    tables = run.progress.params.tables
    item = [logit((k + 2 * p) / (n + 2)) - logit(p) for k, n in ((2, 2), (1, 3), (1, 1))]
    assert tables["item"][:, 0].tolist() == pytest.approx([*item, 0], abs=1e-6)
    own = [logit((k + 2 * p) / (n + 2)) - logit(p) for k, n in ((1, 2), (2, 4), (2, 2))]
    assert tables["user"][:, 0].tolist() == pytest.approx(own, abs=1e-6)


@pytest.mark.parametrize("near", [1, 2, 9])
def test_items_are_pulled_towards_those_beside_them(near):
    have, like, rows = {1: 4, 2: 1, 4: 2}, {1: 4, 2: 0, 4: 1}, 7  # nobody has 0, 3, 5 and 6
    counts = LabelCounts("item", *(torch.tensor(list(x)) for x in (have, have.values())),
                         torch.tensor(list(like.values())))  # fmt: skip
    counts = replace(counts, examples=counts.examples.double(), positives=counts.positives.double())
    p = 5 / 7
    level = [logit((like.get(m, 0) + 5 * p) / (have.get(m, 0) + 5)) - logit(p) for m in range(rows)]
    wanted = []
    for m in range(rows):
        beside = [level[k] for k in range(rows) if 0 < abs(k - m) <= near]
        odds = np.exp(logit(p) + sum(beside) / (2 * near) / 2)
        q = odds / (1 + odds)
        share = (like.get(m, 0) + 5 * q) / (have.get(m, 0) + 5)
        wanted.append(logit(share) - logit(p))
    assert counts.log_odds_near(rows, near).tolist() == pytest.approx(wanted)


def test_rows_that_nobody_holds_start_like_their_neighbours_and_padding_does_not(data):
    algorithm = catalogue.algorithm("fedavg")()
    run = Simulation(data, mf.build(data), algorithm, plan(start_near=1))
    item = run.progress.params.tables["item"][:, 0]
    beside = count_labels(data).log_odds()[2]
    assert float(item[3]) == pytest.approx(float(beside) / 4, abs=1e-6)  # a half of a mean of two
    padded = replace(data, padded=frozenset({"item"}))
    run = Simulation(padded, logistic.build(padded), algorithm, plan(start_near=1))
    assert float(run.progress.params.tables["item"][0, 0]) == 0


def test_estimates_that_cannot_be_counts_give_finite_log_odds():
    counts = LabelCounts("item", torch.arange(3), torch.tensor([-4.0, 2.0, 9.0]).double(),
                         torch.tensor([3.0, 5.0, -2.0]).double())  # fmt: skip
    assert torch.isfinite(counts.log_odds()).all()
    assert 0 < counts.prior < 1


@pytest.mark.parametrize("build", [mf.build, logistic.build])
def test_an_untrained_model_scores_as_counting_does(build):
    random = np.random.default_rng(0)
    client, item = (x.reshape(-1) for x in np.meshgrid(range(30), range(20), indexing="ij"))
    data = FederatedData.build(
        client=client,
        ids={"user": client, "item": item},
        label=random.random(600) < 0.2 + 0.02 * item + 0.01 * client,
        test=random.random(600) < 0.3,
        tables={"user": 30, "item": 20},
        local=["user"],
        target=("item", None),
    )
    run = Simulation(data, build(data), catalogue.algorithm("fedsubavg")(), plan(dtype="float64"))
    params = run.progress.params
    for table, rows in params.tables.items():
        params.tables[table] = torch.cat([rows[:, :1], 0 * rows[:, 1:]], 1)  # without the factors
    counted = run.model.scores(params, data.test.fields(torch.arange(len(data.test))))
    assert counted.tolist() == pytest.approx(scores(data)["both"][1].tolist())


def test_features_that_are_no_target_start_at_zero():
    """As in MovieLens: one table, of which only the movie's column is what an example is about."""
    data = FederatedData.build(
        client=np.array([0, 0, 1, 1]),
        ids={"features": np.array([[0, 2], [0, 3], [1, 2], [1, 3]])},
        label=np.array([1, 0, 1, 1]),
        test=np.zeros(4),
        tables={"weight": 5},
        fields={"features": "weight"},
        target=("features", 1),
    )
    run = Simulation(data, logistic.build(data), catalogue.algorithm("fedavg")(), plan())
    weight = run.progress.params.tables["weight"][:, 0].tolist()
    liked = logit((2 + 5 * 0.75) / 7) - logit(0.75)
    other = logit((1 + 5 * 0.75) / 7) - logit(0.75)
    assert weight == pytest.approx([0, 0, liked, other, 0], abs=1e-6)
    assert float(run.progress.params.dense["bias"]) == pytest.approx(logit(0.75))


def test_centralised_training_starts_from_the_same_numbers(data):
    runs = [
        Simulation(data, mf.build(data), catalogue.algorithm(name)(), plan())
        for name in ("fedavg", "centralsgd")
    ]
    first, second = (run.tensors() for run in runs)
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert [len(list(run)) for run in runs] == [2, 2]


def test_a_run_that_goes_back_does_not_start_again(data):
    algorithm = catalogue.algorithm("fedsubavg")()
    run = Simulation(data, mf.build(data), algorithm, plan())
    states = [{n: x.clone() for n, x in run.tensors().items()} for _ in run]
    again = Simulation(data, mf.build(data), algorithm, plan())
    again.restore_(states[0], 1, 0.0)
    assert [step.round for step in again] == [2]
    assert all(torch.equal(x, states[1][name]) for name, x in again.tensors().items())


@pytest.mark.parametrize("mode", ["heat", "index"])
def test_private_modes_count_in_the_secure_sum_and_write_it_down(data, mode):
    privacy = Privacy.of(mode, secure_sum="arithmetic") if mode == "index" else Privacy.of(mode)
    algorithm, settings = (
        catalogue.algorithm("fedsubavg")(),
        plan(weighting="uniform", clients_per_round=3),
    )
    clear = Simulation(data, mf.build(data), algorithm, settings)
    run = Simulation(data, mf.build(data), algorithm, settings, privacy)
    assert float(run.progress.params.dense["bias"]) == 0
    run.prepare()
    wanted = clear.tensors()
    assert all(torch.equal(x, wanted[name]) for name, x in run.tensors().items() if name in wanted)
    assert run.private is not None
    names = [entry.mechanism for entry in run.private.accounts.ledger.entries]
    assert names[-2:] == ["heat of item, clients", "heat of item, positives"]


def test_noisy_ways_give_estimates_and_spend_for_both_counters(data):
    privacy = Privacy.of("heat", heat="randomized-response", heat_epsilon=1.0)
    run = Simulation(data, mf.build(data), catalogue.algorithm("fedsubavg")(), plan(), privacy)
    run.prepare()
    assert torch.isfinite(run.progress.params.tables["item"]).all()
    assert run.private is not None
    spent = [x.epsilon for x in run.private.accounts.ledger.entries if x.kind == "server/value"]
    assert spent == pytest.approx([1, 1, 1])  # heat, and two more counts of the same kind


@pytest.mark.parametrize("mechanism", ["gaussian", "distributed"])
def test_under_full_the_counters_have_noise_and_an_epsilon(data, mechanism):
    """With next to no noise the start is the clear one; with noise it is another."""
    algorithm, settings = (
        catalogue.algorithm("fedsubavg")(),
        plan(weighting="uniform", clients_per_round=3),
    )
    clear = Simulation(data, mf.build(data), algorithm, settings).tensors()
    starts, spent = [], []
    for noise in (1e-7, 3.0, 3.0):
        dials = {"dp_heat_noise": noise, "dp_heat_rows": 10, "mechanism": mechanism}
        privacy = Privacy.of("full", index_epsilon=None, **dials)
        run = Simulation(data, mf.build(data), algorithm, settings, privacy)
        run.prepare()
        starts.append(run.tensors())
        assert run.private is not None
        spent.append(run.private.accounts.ledger)
    names = [name for name in clear if "item" in name or "bias" in name]
    far = [max(float((x[n] - clear[n]).abs().max()) for n in names) for x in starts]
    assert far[0] < 1e-5
    assert min(far[1:]) > 1e-3
    kind = "model/user-replaced"
    entries = [x for x in spent[1].entries if x.kind == kind]
    assert [x.mechanism for x in entries] == [
        "heat of item", "heat of item, clients", "heat of item, positives"
    ]  # fmt: skip
    assert 0 < spent[1].spent(kind) < float("inf")


def test_what_cannot_be_counted_is_refused(data):
    algorithm = catalogue.algorithm("fedsubavg")()
    without = mf.build(data)
    without.biases = None
    with pytest.raises(PlanError, match=r"start is 'counted', but the model names no biases"):
        Simulation(data, without, algorithm, plan())
    own = with_personal(data)
    module = mf.build(data).module
    personal = Lifted(module, own, mf.build(data).embeddings, personal=["bias"])
    personal.biases = mf.build(data).biases
    with pytest.raises(PlanError, match=r"'bias', which starts at what all clients like, is a per"):
        Simulation(own, personal, algorithm, plan())
    with pytest.raises(PlanError, match=r"tables is 'mapped', and rows in files start by"):
        Simulation(data, mf.build(data), algorithm, plan(tables="mapped"))
    with pytest.raises(DataError, match=r"examples have no target in data, so there are no pos"):
        label_sets(replace(data, target=None))
    with pytest.raises(DataError, match=r"labels are numbers in data, so there are no positives"):
        label_sets(replace(data, labels="numbers"))
