"""Centralised anchors of rankings: what models of known quality make of the same data in one place.

    ease       a ridge regression of every item on all others (`ease`)
    adam-mf    matrix factorisation, trained by Adam (`ranking_mf`)

Fits read training examples only. The ridge, and when Adam stops, is chosen on validation examples.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from fedrows.data.federation import FederatedData
from fedrows.errors import DataError
from fedrows.measure.ease import ease_scores
from fedrows.measure.ranked_items import Candidates, RankedItems, RankScorer
from fedrows.measure.ranking_baselines import metrics_of
from fedrows.measure.ranking_mf import ranking_mf

_CPU = torch.device("cpu")


def ranking_anchors(
    data: FederatedData, say: Callable[[str], None] = lambda line: None
) -> dict[str, dict[str, float]]:  # fmt: skip
    """The metrics of every anchor, by the names of `all_anchors.TITLES`.

    say: hears why EASE is left out of data that are too large for it.
    """
    metrics = {}
    try:
        metrics["ease"] = ranking_ease(data)
    except DataError as error:
        say(str(error))
    return metrics | {"adam-mf": _measured(data, ranking_mf(data).scorer)}


def ranking_ease(
    data: FederatedData, ridges: Sequence[float] = (100.0, 300.0, 1000.0)
) -> dict[str, float]:
    """The same metrics of EASE, with the ridge that has the best NDCG@10 on validation examples."""
    every = []
    for ridge in ridges:
        table = ease_scores(data, ridge)

        def scorer(owner: Tensor, table: Tensor = table) -> RankScorer:
            return lambda some, candidates: table[owner[some].unsqueeze(1), candidates]

        every.append({"ridge": ridge, **_measured(data, scorer)})
    return max(every, key=lambda one: one["validation_ndcg10"])


def _measured(data: FederatedData, scorer: Callable[[Tensor], RankScorer]) -> dict[str, float]:
    """The metrics on validation and test examples; a scorer is made for the clients of each."""
    sampled, metrics = Candidates(data, _CPU), dict[str, float]()
    for part in ("validation", "test"):
        items = RankedItems(data, part, _CPU, sampled)
        metrics |= metrics_of(items.ranks(scorer(items.owner), shared=True), part)
    return metrics
