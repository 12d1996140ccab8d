"""All anchors of some data at once, by name, for tables and files."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from fedrows.data.federation import FederatedData
from fedrows.errors import DataError
from fedrows.measure.adam_mf import adam_mf
from fedrows.measure.als import als
from fedrows.measure.anchors import ExampleScorer, check_labels, logistic, measure
from fedrows.measure.ease import ease
from fedrows.measure.ranking_anchors import ranking_anchors
from fedrows.measure.ranking_baselines import NAMES as RANKING_NAMES
from fedrows.measure.ranking_baselines import ranking_baselines
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
_FITS: Mapping[str, Callable[[FederatedData], ExampleScorer]] = {
    "logistic": logistic,
    "als": als,
    "adam-mf": adam_mf,
    "ease": ease,
}


def anchors(
    data: FederatedData, say: Callable[[str], None] = lambda line: None
) -> dict[str, dict[str, float]]:  # fmt: skip
    """The metrics of every anchor that fits the data, by the names of `TITLES`.

    say: hears of those that do not fit. Raises a DataError if none can.
    """
    check_data(data)
    if data.labels == "ranking":
        return ranking_anchors(data, say)
    metrics = {}
    for name, fit in _FITS.items():
        try:
            metrics[name] = measure(data, fit(data), logits=name != "ease")
        except DataError as error:
            say(str(error))
    return metrics


def counted(data: FederatedData, train_sample: int) -> dict[str, dict[str, float]]:
    """The metrics of what needs no model at all, by the names of `COUNTED`."""
    check_data(data)
    return ranking_baselines(data) if data.labels == "ranking" else baselines(data, train_sample)


def check_data(data: FederatedData) -> None:
    """Raises a DataError if no anchor can be fitted to the data."""
    if data.labels != "ranking":
        check_labels(data)
