"""`fedrows run --anchors`: what counting and centralised models come to on the run's own data."""

from __future__ import annotations

from fedrows import report
from fedrows.cli.show import print_table, say
from fedrows.data.federation import FederatedData
from fedrows.measure.all_anchors import COUNTED, TITLES, anchors, counted
from fedrows.measure.metric_choice import about, measured
from fedrows.runs.folder import ANCHORS, RunFolder

ANCHORS_HELP = "Then also fit centralised models to the same data, and show them in the report."


def write_anchors(folder: RunFolder, data: FederatedData, train_sample: int) -> None:
    """Prints the table, writes its numbers into the run's folder, and draws them in its report.

    A DataError says that the data have no items, or labels that no anchor is fitted to.
    """
    say("Anchors: what needs no model, and models that are trained on all data in one place.")
    plain, fitted = counted(data, train_sample), anchors(data, say)
    folder.write_json(ANCHORS, {"baselines": plain, "anchors": fitted})
    shown = [x for x in measured([*plain.values(), *fitted.values()]) if x.startswith("test_")]
    rows = []
    for titles, results in ((COUNTED, plain), (TITLES, fitted)):
        for name, metrics in results.items():
            cells = [f"{metrics[x]:.{about(x)[2]}f}" if x in metrics else "–" for x in shown]
            rows.append([titles[name], *cells])
    print_table(["Anchor", *(about(x)[0] for x in shown)], rows)
    say(f"Anchors: {folder.path / ANCHORS}")
    report.write(folder.path)
