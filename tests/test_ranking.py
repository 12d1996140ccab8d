"""Ranking metrics against brute force, and what held-out items are ranked against."""

from dataclasses import replace
from math import isnan, log2

import numpy as np
import pytest
import torch

from fedrows import Plan, Simulation
from fedrows.algorithms.fedavg import FedAvg
from fedrows.data.leave_one_out import leave_one_out
from fedrows.lifting.slope import slope_of
from fedrows.measure.all_anchors import ranking_ease
from fedrows.measure.evaluation import Evaluator
from fedrows.measure.ranked_items import Candidates, RankedItems, draw_candidates
from fedrows.measure.ranking import discounted_gain, hit, rank_of, reciprocal, summed_up
from fedrows.measure.ranking_baselines import ranking_baselines
from fedrows.model import candidates_loss, pairwise_loss, sampled_softmax_loss
from fedrows.models import mf, sasrec
from tests.ranked import positives

CPU = torch.device("cpu")
PLAN = Plan(rounds=2, clients_per_round=4, negatives_pool=7, device="cpu", dtype="float64")


def test_ranks_and_metrics_are_those_of_the_definitions():
    scores = torch.tensor([[3.0, 1.0, 2.0], [0.0, 0.0, 5.0], [1.0, 1.0, 1.0]])
    rank = rank_of(scores, torch.tensor([2.5, 0.0, 1.0]))
    assert rank.tolist() == [1, 2, 1.5]
    assert hit(rank, 2).tolist() == [1, 0, 1]
    gains = [1 / log2(3), 0, 1 / log2(3.5)]
    assert discounted_gain(rank, 2).tolist() == pytest.approx(gains)
    assert reciprocal(rank).tolist() == pytest.approx([1 / 2, 1 / 3, 1 / 2.5])
    assert summed_up(rank)["mrr"] == pytest.approx((1 / 2 + 1 / 3 + 1 / 2.5) / 3)
    counted = torch.tensor([[False, True, True]] * 3)
    assert rank_of(scores, torch.tensor([2.5, 0.0, 1.0]), counted).tolist() == [0, 1.5, 1]


def test_a_constant_score_hits_nothing_and_a_broken_one_is_no_number():
    rank = rank_of(torch.zeros(5, 99), torch.zeros(5))
    assert summed_up(rank)["hr10"] == 0
    broken = rank_of(torch.full((5, 99), torch.nan), torch.zeros(5))
    assert all(isnan(value) for value in summed_up(broken).values())
    assert isnan(summed_up(torch.zeros(0))["hr10"])


def test_losses_of_candidates():
    scores = torch.tensor([[2.0, 0.0, -1.0]])
    e, s = torch.exp(scores[0]), torch.sigmoid(scores[0])
    label = torch.ones(1)
    assert float(sampled_softmax_loss(scores, label)) == pytest.approx(
        float(-(e[0] / e.sum()).log())
    )
    both = -(s[0].log() + (1 - s[1]).log() + (1 - s[2]).log()) / 3
    assert float(candidates_loss(scores, label)) == pytest.approx(float(both))
    pairs = -(torch.sigmoid(torch.tensor([2.0, 3.0])).log()).mean()
    assert float(pairwise_loss(scores, label)) == pytest.approx(float(pairs))


@pytest.mark.parametrize("history", [False, True])
@pytest.mark.parametrize("part", ["validation", "test"])
def test_ranks_are_those_of_a_slow_loop(history, part):
    data = positives(users=9, items=130, each=9, history=history, seed=4)
    model = (sasrec.build if history else mf.build)(data, 1)
    params = model.start().map(torch.Tensor.double)
    for table in params.tables.values():
        table += torch.randn(table.shape, generator=torch.Generator().manual_seed(0))
    ranking = Evaluator(model, data, PLAN).ranking
    ranks = ranking.ranks(params, part, loss=True)
    drawn, examples = draw_candidates(data), getattr(data, part)
    low = int(history)
    for i in range(len(examples)):
        client, target = int(examples.owner[i]), int(examples.ids["item"][i])
        train, test, validation = (
            set(x.of(torch.tensor([client])).ids["item"].tolist())
            for x in (data.train, data.test, data.validation)
        )
        sampled = drawn.ids[drawn.splits[client] : drawn.splits[client + 1]].tolist()
        assert len(set(sampled)) == 99
        assert not set(sampled) & (train | test | validation)
        known = train | validation if part == "test" else train
        every = [m for m in range(low, 130 + low) if m not in known and m != target]
        fields = examples.fields(torch.tensor([i]))

        def score(items, fields=fields):
            ids = torch.tensor([items])
            return model.scores(params, {**fields, "item": ids})[0].tolist()

        for others, found in ((sampled, ranks.sampled), (every, ranks.all)):
            own, *scores = score([target, *others])
            slow = sum(s > own for s in scores) + sum(s == own for s in scores) / 2
            assert float(found[i]) == slow
        loss = sampled_softmax_loss(torch.tensor(score([target, *sampled])), torch.ones(()))
        assert float(ranks.losses[i]) == pytest.approx(float(loss))


def test_a_line_of_a_run_has_every_metric():
    data = positives(users=20, items=120)
    run = Simulation(data, mf.build(data), FedAvg(), PLAN)
    for _ in run:
        pass
    line = run.evaluate()
    for part in ("validation", "test"):
        for name in ("hr10", "ndcg10", "mrr"):
            assert 0 <= line[f"{part}_{name}"] <= 1
            assert line[f"{part}_{name}_all"] <= line[f"{part}_{name}"] + 0.2
    assert sum(bucket["examples"] for bucket in line["buckets"]) == 20
    weighted = sum(bucket["examples"] * bucket["hr10"] for bucket in line["buckets"])
    assert weighted / 20 == pytest.approx(line["test_hr10"])
    assert line["train_loss"] == run.evaluator.train_loss(run.progress.whole())


def test_metrics_of_ones_own_see_ranks():
    data, seen = positives(users=20, items=120), []

    def first(sampled, whole, client):
        seen.append((sampled, whole, client))
        return (sampled < 1).mean()

    evaluator = Evaluator(mf.build(data), data, PLAN, {"first": first})
    params = evaluator.model.start().map(torch.Tensor.double)
    line = evaluator(params)
    ranks = evaluator.ranking.ranks(params, "test")
    assert line["test_first"] == float((ranks.sampled < 1).double().mean())
    _, whole, client = seen[1]  # the first call is of validation examples
    assert whole.tolist() == ranks.all.tolist()
    assert client.tolist() == list(range(20))


def test_candidates_do_not_depend_on_seed_or_model():
    data = positives(users=20, items=120)
    one, other = (
        Evaluator(mf.build(data, seed), data, replace(PLAN, seed=seed)) for seed in (0, 5)
    )
    assert torch.equal(one.ranking.candidates.ids, other.ranking.candidates.ids)


def test_a_small_table_has_fewer_candidates():
    data = positives(users=4, items=20, each=8)  # twelve items are in none of a client's examples
    sampled = Candidates(data, CPU)
    ids, real = sampled.beside(torch.tensor([0]), torch.tensor([5]))
    assert ids.shape == (1, 100)
    assert int(real.sum()) == 13
    items = RankedItems(data, "test", CPU, sampled)
    worst = items.ranks(lambda some, ids: (ids != items.item[some, None]).double())
    assert worst.sampled.tolist() == [12] * 4
    assert worst.all.tolist() == [20 - 7 - 1] * 4


def test_popularity_and_chance_are_baselines():
    data = positives(users=80, items=150, each=6)
    found = ranking_baselines(data)
    assert found["random"]["test_hr10"] == pytest.approx(0.1, abs=0.1)
    heat = data.heat()["item"]
    items = RankedItems(data, "test", CPU, Candidates(data, CPU))
    slow = items.ranks(lambda some, ids: heat.of(ids.contiguous()))
    assert found["popularity"]["test_hr10"] == summed_up(slow.sampled)["hr10"]
    assert found["popularity"]["test_ndcg10_all"] == summed_up(slow.all)["ndcg10"]
    assert not np.isnan(found["random"]["validation_mrr_all"])


def test_ease_ranks_what_goes_together_and_validation_chooses_its_ridge():
    """Clients like the items of one half; popularity cannot know which."""
    rng = np.random.default_rng(4)
    half = np.repeat(rng.integers(0, 2, 60), 12)
    item = np.concatenate([rng.choice(40, 12, replace=False) for _ in range(60)]) + 40 * half
    data = leave_one_out(client=np.repeat(np.arange(60), 12), item=item)
    found, popular = ranking_ease(data, (1.0, 1e9)), ranking_baselines(data)["popularity"]
    assert found.keys() - {"ridge"} == popular.keys()
    assert found["test_mrr"] > 1.2 * popular["test_mrr"]
    alone = {ridge: ranking_ease(data, (ridge,))["validation_ndcg10"] for ridge in (1.0, 1e9)}
    assert found["validation_ndcg10"] == max(alone.values())
    assert found["ridge"] == max(alone, key=alone.__getitem__)


def test_the_slope_of_the_sampled_softmax_is_its_derivative():
    scores = torch.randn(2, 3, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    label, weight = torch.ones(2, 3), torch.tensor([[1.0, 0.0, 2.0], [1.0, 1.0, 1.0]]).double()
    for given in (None, weight):
        known = slope_of(sampled_softmax_loss, scores, label, given, one_by_one=False)
        other = slope_of(
            lambda *both: sampled_softmax_loss(*both),
            scores.clone(),
            label,
            given,
            one_by_one=False,
        )
        assert torch.allclose(known, other)
