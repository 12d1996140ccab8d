"""`fedrows run --anchors`: what counting and centralised models come to on the run's own data."""

from __future__ import annotations

from fedrows.cli.show import print_table, say
from fedrows.data.federation import FederatedData
from fedrows.measure.all_anchors import TITLES, anchors
from fedrows.measure.anchors import check_labels
from fedrows.measure.summary import METRICS
from fedrows.measure.trivial_baselines import NAMES, baselines
from fedrows.runs.folder import RunFolder

FILE = "anchors.json"


def write_anchors(folder: RunFolder, data: FederatedData, train_sample: int) -> None:
    """Prints the table, and writes its numbers into the run's folder.

    A DataError says that the data have no items or other labels than 0 and 1.
    """
    check_labels(data)
    say("Anchors: counting, and models that are trained on all data in one place.")
    counted, fitted = baselines(data, train_sample), anchors(data, say)
    folder.write_json(FILE, {"baselines": counted, "anchors": fitted})
    measured = {metric for results in (counted, fitted) for x in results.values() for metric in x}
    shown = {
        name: about
        for name, about in METRICS.items()
        if name.startswith("test_") and name in measured
    }
    rows = []
    for titles, results in ((NAMES, counted), (TITLES, fitted)):
        for name, metrics in results.items():
            cells = [
                f"{metrics[metric]:.{digits}f}" if metric in metrics else "–"
                for metric, (_, _, digits) in shown.items()
            ]
            rows.append([titles[name], *cells])
    print_table(["Anchor", *(title for title, _, _ in shown.values())], rows)
    say(f"Anchors: {folder.path / FILE}")
