"""What rankings without a model are worth: by popularity, and at random.

popularity   how many clients hold the item in training
random       a number drawn for each (client, item)
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from fedrows.data.federation import FederatedData
from fedrows.measure.ranked_items import Candidates, RankedItems, RankScorer
from fedrows.measure.ranking import summed_up
from fedrows.seeds import CANDIDATE, bits, client_keys, uniform

NAMES = {"random": "random order", "popularity": "item's popularity"}
_CPU = torch.device("cpu")


def ranking_baselines(data: FederatedData) -> dict[str, dict[str, float]]:
    """HR@10, NDCG@10 and MRR on test and validation examples, by the names of `NAMES`."""
    scorers = {"random": random_order, "popularity": popularity}
    return {name: measured(data, partial(scorer, data)) for name, scorer in scorers.items()}


def popularity(data: FederatedData, owner: Tensor) -> RankScorer:
    """How many clients hold a candidate, for examples of the clients given (n,)."""
    heat = data.heat()[data.fields[(data.target or ("", None))[0]]]
    return lambda some, candidates: heat.of(candidates.contiguous()).expand(len(some), -1)


def random_order(data: FederatedData, owner: Tensor) -> RankScorer:
    """A number drawn for each (client, item)."""

    def score(some: Tensor, candidates: Tensor) -> Tensor:
        keys = client_keys(0, CANDIDATE, 1, owner[some])
        return uniform(bits(keys[:, None], candidates))

    return score


def measured(data: FederatedData, scorer: Callable[[Tensor], RankScorer]) -> dict[str, float]:
    """The metrics, named as in the lines of a run.

    scorer: makes one for the clients of some examples (n,): those of validation, and of test.
    """
    sampled, metrics = Candidates(data, _CPU), dict[str, float]()
    for part in ("validation", "test"):
        items = RankedItems(data, part, _CPU, sampled)
        ranks = items.ranks(scorer(items.owner), shared=True)
        for suffix, rank in (("", ranks.sampled), ("_all", ranks.all)):
            if rank is not None:
                means = summed_up(rank).items()
                metrics |= {f"{part}_{name}{suffix}": x for name, x in means}
    return metrics
