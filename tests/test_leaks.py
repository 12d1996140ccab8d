"""Leak detectors: quiet about honest negatives, and loud about negatives that spare a test item."""

from dataclasses import replace

import pytest
import torch

from fedrows import FederatedData, Plan, Simulation
from fedrows.algorithms.fedsubavg import FedSubAvg
from fedrows.data.examples import index_of
from fedrows.data.unheld import draw_unheld
from fedrows.measure.leaks import draw_count_oracle, sharing_control
from fedrows.measure.training_alone import GivenNegatives
from fedrows.model import candidates_loss
from fedrows.models import mf
from fedrows.rows.index import Index
from fedrows.seeds import POOL, client_keys
from tests.ranked import positives

DATA = positives(users=60, items=120, each=14)
PLAN = Plan(
    rounds=40,
    clients_per_round=30,
    local_steps=5,
    batch_size=8,
    lr=4.0,
    negatives_pool=20,
    weighting="uniform",
    device="cpu",
)


class SparesTestItems:
    """The fault: a client's negatives are items of none of its examples, test ones included."""

    def __init__(self, data: FederatedData) -> None:
        parts = [data.train, data.test]
        index, _ = index_of(["item"], data.fields, data.padded, data.clients, parts)
        self.index = index["item"]

    def draw(self, held: Index, cohort: torch.Tensor, round_: int) -> Index:
        keys = client_keys(0, POOL, round_, cohort)
        return draw_unheld(self.index.select(cohort), keys, 20, (0, 120))


def test_draw_counts_of_honest_negatives_say_nothing():
    report = draw_count_oracle(DATA, PLAN, rounds=150)
    assert not report.leaks, report
    assert report.hit_rate < 0.25
    assert report.others["chance"] == pytest.approx(0.1)


def test_draw_counts_find_the_test_items_that_negatives_spare():
    report = draw_count_oracle(DATA, PLAN, rounds=150, negatives=SparesTestItems(DATA))
    assert report.hit_rate > 0.99
    assert report.leaks
    assert str(report) == "draw counts: HR@10 1.000 (chance 0.100): leaks"
    honest = draw_count_oracle(
        DATA, PLAN, rounds=150, negatives=SparesTestItems(DATA), part="validation"
    )
    assert not honest.leaks  # validation items were not spared


def trained(negatives: SparesTestItems | None = None):
    """A federated run: its model, and the numbers it came to."""
    model = mf.build(DATA, factors=2, loss=candidates_loss)
    run = Simulation(DATA, model, FedSubAvg(), PLAN)
    if negatives is not None:
        run.simulated.negatives = GivenNegatives(DATA, PLAN, negatives)
    for _ in run:
        pass
    return model, run.progress.whole()


@pytest.mark.slow
def test_a_client_alone_learns_nothing_about_items_it_has_not_met():
    model, federated = trained()
    report = sharing_control(model, DATA, PLAN, federated, clients=60, rounds=30)
    assert not report.leaks, report
    assert report.hit_rate < report.others["federated"]


@pytest.mark.slow
def test_a_client_alone_finds_the_test_item_that_its_negatives_spare():
    spares = SparesTestItems(DATA)
    model, federated = trained(spares)
    plan = replace(PLAN, rounds=30)
    report = sharing_control(model, DATA, plan, federated, clients=60, negatives=spares)
    assert report.leaks, report
    assert report.hit_rate > report.others["federated"] + report.margin
