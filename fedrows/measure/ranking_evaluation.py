"""What a model is worth as a ranking: hit rate, NDCG and reciprocal rank of held-out items.

Losses are over an item and its sampled others, the same for training, validation and test examples:
they compare runs whose clients draw more negatives or fewer.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fedrows.data.examples import Examples
from fedrows.data.federation import FederatedData
from fedrows.measure.metrics import Buckets, mean_loss
from fedrows.measure.own_metrics import OwnMetrics, measure
from fedrows.measure.ranked_items import Candidates, RankedItems, Ranks, RankScorer, losses_of
from fedrows.measure.ranking import METRICS, summed_up
from fedrows.model import Model
from fedrows.plan import Plan
from fedrows.rows.params import Params
from fedrows.seeds import SAMPLE, choose
from fedrows.tables import gathered

PARTS = ("validation", "test")


class RankingEvaluation:
    """Ranks the held-out items of one data set; what does not depend on the model is made once."""

    def __init__(
        self, model: Model, data: FederatedData, plan: Plan, metrics: OwnMetrics | None = None
    ) -> None:
        self.model, self._data, self._own = model, data, metrics or {}
        assert data.target is not None
        self._field = data.target[0]
        device, dtype = plan.torch_device, plan.torch_dtype
        self.candidates = Candidates(data, device)
        self.examples = {part: getattr(data, part).to(device, dtype) for part in PARTS}
        self.items = {part: RankedItems(data, part, device, self.candidates) for part in PARTS}
        sample = choose(0, SAMPLE, 0, len(data.train), min(plan.train_sample, len(data.train)))
        self._sample = data.train.pick(sample.to(data.train.label.device)).to(device, dtype)
        self._sample_owner = data.train.owner.cpu()[sample].to(device)
        heat = data.heat()[data.fields[self._field]]
        self._buckets = {part: Buckets.of_heat(heat.of(self.items[part].item.cpu())).to(device)
                         for part in PARTS}  # fmt: skip

    def ranks(self, params: Params, part: str = "test", loss: bool = False) -> Ranks:
        """Where the model puts each held-out item of a part of the data."""
        score = self.scorer(params, self.examples[part])
        shared = self.model.shares_candidates
        return self.items[part].ranks(score, shared, self.model.loss if loss else None)

    def scorer(self, params: Params, examples: Examples) -> RankScorer:
        """The model's scores of some examples' candidates."""

        def score(some: Tensor, candidates: Tensor) -> Tensor:
            fields = {**examples.fields(some), self._field: candidates}
            few = gathered(params, fields, self._data.fields, self._data.padded)
            with torch.no_grad():
                return self.model.scores(*few)

        return score

    def train_loss(self, params: Params) -> float:
        """The mean loss over the fixed sample of training examples."""
        score, parts = self.scorer(params, self._sample), []
        items = self._data.targets(self._sample)
        size = max(1, 2**17 // self.candidates.width)
        for some in torch.arange(len(items), device=items.device).split(size):
            ids, real = self.candidates.beside(self._sample_owner[some], items[some])
            parts.append(losses_of(score(some, ids), real, self.model.loss))
        return mean_loss(torch.cat(parts))

    def metrics(self, params: Params) -> dict[str, Any]:
        """All metrics of a model; those of a part without examples are NaN, or left out."""
        metrics: dict[str, Any] = {"train_loss": self.train_loss(params)}
        for part in PARTS:
            if part == "validation" and not self.items[part].count:
                continue
            ranks = self.ranks(params, part, loss=True)
            assert ranks.losses is not None
            metrics[f"{part}_loss"] = mean_loss(ranks.losses)
            metrics |= {f"{part}_{name}": value for name, value in summed_up(ranks.sampled).items()}
            among_all = (
                torch.full_like(ranks.sampled, torch.nan) if ranks.all is None else ranks.all
            )
            metrics |= {f"{part}_{name}_all": value for name, value in summed_up(among_all).items()}
            own = measure(self._own, ranks.sampled, among_all, ranks.owner)
            metrics |= {f"{part}_{name}": value for name, value in own.items()}
            if part == "test":
                metrics["buckets"] = by_bucket(ranks, self._buckets[part])
        return metrics


def by_bucket(ranks: Ranks, buckets: Buckets) -> list[dict[str, Any]]:
    """The metrics in every bucket of heat, cold to hot."""
    assert ranks.losses is not None
    count, which = len(buckets.low), buckets.of
    sizes = torch.bincount(which, minlength=count)
    columns = {"loss": ranks.losses}
    for suffix, rank in (("", ranks.sampled), ("_all", ranks.all)):
        if rank is not None:
            columns |= {f"{name}{suffix}": metric(rank) for name, metric in METRICS.items()}
    means = {
        name: (
            torch.zeros_like(sizes, dtype=torch.float64).index_add_(0, which, x) / sizes
        ).tolist()
        for name, x in columns.items()
    }
    return [
        {"low": buckets.low[i], "high": buckets.high[i], "examples": buckets.examples[i]}
        | {name: values[i] for name, values in means.items()}
        for i in range(count)
    ]
