"""All anchors of some data at once, by name, for tables and files."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from fedrows.data.federation import FederatedData
from fedrows.errors import DataError
from fedrows.measure.adam_mf import adam_mf
from fedrows.measure.als import als
from fedrows.measure.anchors import ExampleScorer, check_labels, logistic, measure
from fedrows.measure.ease import ease

TITLES: Mapping[str, str] = {
    "logistic": "logistic regression with biases, centralised",
    "als": "least squares with factors, centralised",
    "adam-mf": "matrix factorisation by Adam, centralised",
    "ease": "EASE, centralised",
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
    check_labels(data)
    metrics = {}
    for name, fit in _FITS.items():
        try:
            metrics[name] = measure(data, fit(data), logits=name != "ease")
        except DataError as error:
            say(str(error))
    return metrics
