"""What rankings without a model are worth: by popularity, and at random.

popularity   how many clients hold the item in training
random       a number drawn for each (client, item)
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from fedrows.data.federation import FederatedData
from fedrows.measure.ranked_items import Candidates, RankedItems, Ranks, RankScorer
from fedrows.measure.ranking import summed_up
from fedrows.seeds import CANDIDATE, bits, client_keys, uniform

NAMES = {"random": "random order", "popularity": "item's popularity"}
_CPU = torch.device("cpu")


def ranking_baselines(data: FederatedData) -> dict[str, dict[str, float]]:
    """HR@10, NDCG@10 and MRR on test and validation examples, by the names of `NAMES`."""
    sampled = Candidates(data, _CPU)
    metrics: dict[str, dict[str, float]] = {name: {} for name in NAMES}
    for part in ("validation", "test"):
        items = RankedItems(data, part, _CPU, sampled)
        for name, score in scorers(data, items.owner).items():
            metrics[name] |= metrics_of(items.ranks(score, shared=True), part)
    return metrics


def scorers(data: FederatedData, owner: Tensor) -> Mapping[str, RankScorer]:
    """A scorer by each name of `NAMES` for examples of the clients given (n,)."""
    heat = data.heat()[data.fields[(data.target or ("", None))[0]]]

    def popularity(some: Tensor, candidates: Tensor) -> Tensor:
        return heat.of(candidates.contiguous()).expand(len(some), -1)

    def random(some: Tensor, candidates: Tensor) -> Tensor:
        keys = client_keys(0, CANDIDATE, 1, owner[some])
        return uniform(bits(keys[:, None], candidates))

    return {"random": random, "popularity": popularity}


def metrics_of(ranks: Ranks, part: str) -> dict[str, float]:
    """The means of the metrics, named as in the lines of a run."""
    metrics = {f"{part}_{name}": x for name, x in summed_up(ranks.sampled).items()}
    if ranks.all is not None:
        metrics |= {f"{part}_{name}_all": x for name, x in summed_up(ranks.all).items()}
    return metrics
