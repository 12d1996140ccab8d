"""All centralised anchors of some data by name, and what needs no model, for tables and files.

Anchors of ratings are in `anchors`. Those of rankings are a ridge regression of every item on all
others (`ease`), and matrix factorisation, trained by Adam (`ranking_mf`). Fits read training
examples only; the ridge, and when Adam stops, is chosen on validation examples.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from torch import Tensor

from fedrows.data.federation import FederatedData
from fedrows.errors import DataError
from fedrows.measure.adam_mf import adam_mf
from fedrows.measure.als import als
from fedrows.measure.anchors import check_labels, logistic, measure
from fedrows.measure.ease import ease, ease_scores
from fedrows.measure.ranked_items import RankScorer
from fedrows.measure.ranking_baselines import NAMES as RANKING_NAMES
from fedrows.measure.ranking_baselines import measured, ranking_baselines
from fedrows.measure.ranking_mf import ranking_mf
from fedrows.measure.trivial_baselines import NAMES, baselines

TITLES: Mapping[str, str] = {
    "logistic": "logistic regression with biases, centralised",
    "als": "least squares with factors, centralised",
    "adam-mf": "matrix factorisation by Adam, centralised",
    "ease": "EASE, centralised",
}
COUNTED: Mapping[str, str] = {**NAMES, **RANKING_NAMES}
SHORT: Mapping[str, str] = {  # in a chart
    "both": "counting",
    "popularity": "popularity",
    "logistic": "logistic",
    "als": "ALS",
    "adam-mf": "MF by Adam",
    "ease": "EASE",
}


def anchors(
    data: FederatedData, say: Callable[[str], None] = lambda line: None
) -> dict[str, dict[str, float]]:  # fmt: skip
    """The metrics of every anchor that fits the data, by the names of `TITLES`.

    say: hears of those that do not fit. Raises a DataError if none can.
    """
    check_data(data)
    metrics = {}
    for name, fit in (_OF_RANKINGS if data.labels == "ranking" else _OF_RATINGS).items():
        try:
            metrics[name] = fit(data)
        except DataError as error:
            say(str(error))
    return metrics


def ranking_ease(
    data: FederatedData, ridges: Sequence[float] = (100.0, 300.0, 1000.0)
) -> dict[str, float]:
    """The metrics of EASE, with the ridge that has the best NDCG@10 on validation examples."""
    tried = []
    for ridge in ridges:
        table = ease_scores(data, ridge)

        def scorer(owner: Tensor, table: Tensor = table) -> RankScorer:
            return lambda some, candidates: table[owner[some].unsqueeze(1), candidates]

        tried.append({"ridge": ridge, **measured(data, scorer)})
    return max(tried, key=lambda metrics: metrics["validation_ndcg10"])


def counted(data: FederatedData, train_sample: int) -> dict[str, dict[str, float]]:
    """The metrics of what needs no model at all, by the names of `COUNTED`."""
    check_data(data)
    return ranking_baselines(data) if data.labels == "ranking" else baselines(data, train_sample)


def check_data(data: FederatedData) -> None:
    """Raises a DataError if no anchor can be fitted to the data."""
    if data.labels != "ranking":
        check_labels(data)


_OF_RATINGS: Mapping[str, Callable[[FederatedData], dict[str, float]]] = {
    "logistic": lambda data: measure(data, logistic(data)),
    "als": lambda data: measure(data, als(data)),
    "adam-mf": lambda data: measure(data, adam_mf(data)),
    "ease": lambda data: measure(data, ease(data), logits=False),
}
_OF_RANKINGS: Mapping[str, Callable[[FederatedData], dict[str, float]]] = {
    "ease": ranking_ease,
    "adam-mf": lambda data: measured(data, ranking_mf(data).scorer),
}
