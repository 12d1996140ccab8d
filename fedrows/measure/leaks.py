"""Two leak detectors for ranking: does the draw of negatives tell which items are held out?

A client that never draws its own test item as a negative pushes every item down but that one. A
scorer that only counts draws then finds the test item at once, and so does any model that trains
long enough, without having learned anything.

    draw_count_oracle   ranks a client's items by how seldom they were drawn for it. It must do no
                        better than a random order.
    sharing_control     trains each client by itself, on rows of its own. It must beat neither the
                        federated model nor popularity: nobody has told it about items that it has
                        not met.

Both take `negatives`, to test a way to draw of your own. A difference counts if it is larger than
three standard errors.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt

import torch
from torch import Tensor

from fedrows.data.federation import FederatedData
from fedrows.data.fresh_negatives import FreshNegatives
from fedrows.measure.ranked_items import Candidates, RankedItems, RankScorer
from fedrows.measure.ranking import hit
from fedrows.measure.ranking_baselines import popularity
from fedrows.measure.ranking_evaluation import RankingEvaluation
from fedrows.measure.training_alone import DrawsNegatives, train_alone
from fedrows.model import Model
from fedrows.plan import Plan
from fedrows.rows.params import Params

_CPU = torch.device("cpu")
_ERRORS = 3.0  # standard errors that make a difference


@dataclass(frozen=True)
class LeakReport:
    """What a detector found: HR@10 against sampled items, of a suspect and of what it may reach."""

    suspect: str
    hit_rate: float
    others: dict[str, float]  # what the suspect must not beat, by name
    examples: int

    @property
    def margin(self) -> float:
        """How much larger the suspect's hit rate may be by chance."""
        level = max(*self.others.values(), 1 / self.examples)
        return _ERRORS * sqrt(2 * level * (1 - level) / self.examples)

    @property
    def leaks(self) -> bool:
        """Whether the suspect beats one of the others."""
        return self.hit_rate > min(self.others.values()) + self.margin

    def __str__(self) -> str:
        others = ", ".join(f"{name} {value:.3f}" for name, value in self.others.items())
        verdict = "leaks" if self.leaks else "does not leak"
        return f"{self.suspect}: HR@10 {self.hit_rate:.3f} ({others}): {verdict}"


def draw_count_oracle(
    data: FederatedData,
    plan: Plan,
    rounds: int = 200,
    clients: int = 1_000,
    negatives: DrawsNegatives | None = None,
    part: str = "test",
) -> LeakReport:
    """Whether the items that were drawn least often are the held-out ones.

    Counts the draws of so many clients (the first) in so many rounds. There should be enough rounds
    for an item to be drawn a few times.
    """
    first_clients = torch.arange(min(clients, data.clients))
    items = RankedItems(data, part, _CPU, Candidates(data, _CPU))
    drawn = draw_counts(data, plan, rounds, first_clients, negatives)  # (clients, items)

    def seldom(which: Tensor, candidates: Tensor) -> Tensor:
        rows = items.owner[which].clamp(max=len(first_clients) - 1)  # the others are left out below
        return -drawn[rows[:, None], candidates].to(torch.float64)

    counted = items.owner < len(first_clients)
    real = items.sampled.beside(items.owner, items.item)[1]
    width = torch.full_like(items.item, items.sampled.width) if real is None else real.sum(1)
    chance = float((10 / width[counted]).clamp(max=1).mean())
    hits = _hits(items, seldom, counted)
    return LeakReport("draw counts", hits, {"chance": chance}, int(counted.sum()))


def sharing_control(
    model: Model,
    data: FederatedData,
    plan: Plan,
    federated: Params,
    clients: int = 200,
    rounds: int | None = None,
    negatives: DrawsNegatives | None = None,
    part: str = "test",
) -> LeakReport:
    """Whether clients that share nothing rank better than the federated model, or than popularity.

    federated: the trained model. So many clients (the first) train alone for so many rounds, by
    default those of the plan; more rounds make the detector sharper.
    """
    few = data.select(torch.arange(min(clients, data.clients)))
    alone = train_alone(model, few, plan, rounds or plan.rounds, negatives)
    items = RankedItems(few, part, plan.torch_device, Candidates(few, plan.torch_device))
    evaluation = RankingEvaluation(model, few, plan)
    popular = popularity(data, items.owner)
    suspects = {
        "federated": evaluation.scorer(federated, evaluation.examples[part]),
        "popularity": lambda which, ids: popular(which.cpu(), ids.cpu()).to(ids.device),
        "alone": alone.scorer(evaluation.examples[part]),
    }
    every = torch.ones(items.count, dtype=torch.bool)
    hits = {name: _hits(items, score, every) for name, score in suspects.items()}
    return LeakReport("training alone", hits.pop("alone"), hits, items.count)


def draw_counts(
    data: FederatedData,
    plan: Plan,
    rounds: int,
    clients: Tensor,
    negatives: DrawsNegatives | None = None,
) -> Tensor:
    """How often each item was in the pool of each of some clients: (clients, rows of the table)."""
    fresh = FreshNegatives(data, plan)
    draws = fresh if negatives is None else negatives
    held = data.index[fresh.table].to(_CPU).select(clients)
    counts = torch.zeros(len(clients), data.tables[fresh.table], dtype=torch.int32)
    for number in range(1, rounds + 1):
        pool = draws.draw(held, clients, number)
        ones = torch.ones(len(pool.ids), dtype=torch.int32)
        counts.index_put_((pool.owner, pool.ids), ones, accumulate=True)
    return counts


def _hits(items: RankedItems, score: RankScorer, counted: Tensor) -> float:
    """HR@10 against the sampled items, over the examples that count."""
    return float(hit(items.among_sampled(score)[0][counted]).mean())
