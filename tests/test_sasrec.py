"""SASRec and the tied output: what a history comes to, and how clients train on it."""

import numpy as np
import pytest
import torch
from torch import nn

from fedrows import FederatedData, Plan, simulate
from fedrows.algorithm import Round
from fedrows.algorithms.fedavg import FedAvg
from fedrows.errors import ModelError
from fedrows.measure.ranking_baselines import ranking_baselines
from fedrows.models import mf, sasrec
from fedrows.nn import TiedOutput
from fedrows.nn.initial_values import start_
from fedrows.rows.params import take
from fedrows.simulator.simulated_fleet import SimulatedFleet
from tests.ranked import positives


def module(length: int = 6) -> sasrec.SASRec:
    made = sasrec.SASRec(items=20, length=length, width=8, dropout=0.5).eval().double()
    start_(made, 3, 0.5)
    return made


def test_a_state_depends_on_the_order_and_not_on_the_padding():
    made = module()
    history = torch.tensor([[4, 9, 2, 0, 0, 0], [9, 4, 2, 0, 0, 0]])
    one, other = made.state(history)
    assert not torch.allclose(one, other)
    assert torch.allclose(made.state(history[:, :3]), made.state(history))
    assert torch.allclose(made.state(history[:1]), one)


def test_an_empty_history_has_a_state():
    made = module()
    empty = torch.zeros(1, 6, dtype=torch.int64)
    scores = made(item=torch.tensor([[3, 5]]), history=empty)
    assert scores.isfinite().all()
    assert scores[0, 0] != scores[0, 1]


def test_attention_is_causal():
    """What a block makes of a position does not depend on later ones."""
    made = module()
    x = torch.randn(1, 5, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    place = torch.arange(5)
    seen = (place <= place[:, None])[None]
    changed = x.clone()
    changed[:, 3:] += 1
    before, after = made.blocks[0](x, seen), made.blocks[0](changed, seen)
    assert torch.allclose(before[:, :3], after[:, :3])
    assert not torch.allclose(before[:, 3], after[:, 3])


def test_candidates_may_be_shared_by_all_histories():
    made, history = module(), torch.tensor([[4, 9, 2], [1, 0, 0]])
    items = torch.tensor([[3, 7, 11]])
    whole = made(item=items.expand(2, 3), history=history)
    assert torch.allclose(made(item=items, history=history), whole)
    assert torch.allclose(made(item=items[0, :2], history=history), whole.diagonal())


def test_a_tied_output_scores_by_the_rows_themselves():
    hidden, rows = torch.tensor([[1.0, 2.0]]), torch.tensor([[[3.0, 1.0], [0.0, -1.0]]])
    bias, expected = torch.tensor([[10.0, 20.0]]), torch.tensor([[0.5, 1.5]])
    output = TiedOutput()
    assert output(hidden, rows).tolist() == [[5, -2]]
    assert output(hidden, rows, bias, expected).tolist() == [[14.5, 16.5]]


def test_a_sampled_softmax_is_the_whole_one_if_all_rows_are_drawn():
    """A language model's words: with log E[c] = 0 and all words drawn nothing is approximated."""
    words, hidden = nn.Embedding(6, 3), torch.randn(2, 3)
    right = torch.tensor([4, 1])
    others = torch.tensor([[0, 1, 2, 3, 5], [0, 2, 3, 4, 5]])
    candidates = torch.cat([right[:, None], others], 1)
    scores = TiedOutput()(hidden, words(candidates))
    loss = torch.logsumexp(scores, -1) - scores[:, 0]
    whole = nn.functional.cross_entropy(hidden @ words.weight.mT, right, reduction="none")
    assert torch.allclose(loss, whole, atol=1e-6)


@pytest.mark.parametrize("build", [mf.build, sasrec.build], ids=["mf", "sasrec"])
def test_a_cohort_trains_as_its_clients_do_alone(build):
    data = positives(history=build is sasrec.build)
    plan = Plan(local_steps=3, batch_size=4, negatives_pool=6, device="cpu", dtype="float64")
    model = build(data)
    params = model.start().map(torch.Tensor.double)

    def update(cohort: list[int]):
        fleet = SimulatedFleet(model, FedAvg(), data, plan)
        opened = fleet.open_round(Round(2, 0.5, data.clients, 1.0, torch.tensor(cohort)))
        return opened.train(take(params, opened.index, len(cohort)), None).update

    together = update([2, 5, 8])
    for k, client in enumerate([2, 5, 8]):
        alone, own = update([client]), together.slice(k, k + 1)
        for table, rows in alone.rows.items():
            assert torch.allclose(own.rows[table], rows, atol=1e-12)
            assert rows.any()
        for name, x in alone.dense.items():
            assert torch.allclose(own.dense[name], x, atol=1e-12)


def test_it_learns_which_items_belong_together():
    data = positives(users=40, items=30, each=10, history=True)
    model = sasrec.build(data, width=8, blocks=1, dropout=0.0)
    settings = {"rounds": 20, "clients_per_round": 20, "batch_size": 8, "lr": 0.3}
    more = {"negatives_pool": 15, "weighting": "uniform", "device": "cpu", "evaluate_every": 20}
    line = simulate(data, model, "fedavg", **settings, **more).history[-1]
    assert line["test_mrr"] > ranking_baselines(data)["random"]["test_mrr"] + 0.1


def test_data_without_a_history_are_refused():
    with pytest.raises(ModelError, match="but the data have item, user"):
        sasrec.build(positives())
    one = FederatedData.build(
        client=np.zeros(2), ids={"item": [0, 1]}, label=[0, 1], test=[0, 0], tables={"item": 2}
    )
    with pytest.raises(ModelError, match="reads an item and a history"):
        sasrec.build(one)
