"""The charts of a report, each with its title and its table: curves by round, buckets, heat."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from fedrows.measure.summary import METRICS, Line, Summary, display, number, show_number
from fedrows.report import chart

SUBTITLES = {
    "train_loss": "on a fixed sample of the training data",
    "test_loss": "on held-out examples",
    "test_accuracy": "share of held-out examples classified right",
    "test_auc": "area under the ROC curve, all clients pooled",
    "test_gauc": "AUC inside each client, averaged by examples",
}

Curves = dict[str, dict[int, list[Line]]]


def curve_panels(
    summary: Summary,
    curves: Curves,
    order: Sequence[str],
    styles: dict[str, str],
    data: dict[str, Any],
) -> list[dict[str, Any]]:
    """One chart for each metric that was measured."""
    panels = []
    for metric, (title, higher, digits) in METRICS.items():
        series = [
            chart.Series(display(n), k, styles[n], _over_seeds(curves[n], metric))
            for k, n in enumerate(order)
        ]
        if not any(s.points for s in series):
            continue
        guides = []
        target = summary["target"]
        if target["rule"] and target["metric"] == metric:
            guides.append(
                (f"target {target['over_seeds']['mean']:.{digits}f}", target["over_seeds"]["mean"])
            )
        best = number(data.get("best_loss"))
        if metric == "test_loss" and best is not None:
            guides.append((f"best achievable {best:.{digits}f}", best))
        name = title[0].upper() + title[1:]
        rounds = sorted({p.x for s in series for p in s.points})
        picked = (
            [rounds[round(i * (len(rounds) - 1) / 7)] for i in range(8)]
            if len(rounds) > 8
            else rounds
        )
        tables = [{p.x: f"{p.y:.{digits}f}" for p in s.points} for s in series]
        panels.append(
            {
                "title": name,
                "subtitle": f"{SUBTITLES[metric]}; {'higher' if higher else 'lower'} is better",
                "svg": chart.line_chart(
                    f"{name} by round",
                    f"{name} of {', '.join(s.name for s in series if s.points)}, "
                    f"rounds {rounds[0]:.0f} to {rounds[-1]:.0f}; "
                    "mean over seeds, band from lowest to highest.",
                    series,
                    guides,
                ),
                "columns": ["round", *(f"{r:,.0f}" for r in picked)],
                "rows": [
                    [s.name, *(t.get(r, "–") for r in picked)]
                    for s, t in zip(series, tables, strict=True)
                    if s.points
                ],
            }
        )
    return panels


class HeatBuckets:
    """The final loss and AUC by heat bucket, cold to hot, averaged over seeds."""

    def __init__(self, curves: Curves) -> None:
        finals = {
            name: [c[-1].get("buckets") or [] for c in seeds.values()]
            for name, seeds in curves.items()
        }
        every = [found for seeds in finals.values() for found in seeds if found]
        size = len(every[0]) if every else 0
        # Seeds may cut the data elsewhere: buckets are then matched by their place, cold to hot.
        self.finals = {
            name: [found for found in seeds if len(found) == size] for name, seeds in finals.items()
        }
        same = [found for found in every if len(found) == size]
        self.labels = [
            _range(min(f[i]["low"] for f in same), max(f[i]["high"] for f in same))
            for i in range(size)
        ]
        self.examples = [
            round(statistics.fmean(f[i].get("examples") or 0 for f in same)) for i in range(size)
        ]

    def points(self, name: str, metric: str) -> list[chart.Point]:
        """One point per bucket in which some seed has a value."""
        points = []
        for i in range(len(self.labels)):
            values = [v for f in self.finals[name] if (v := number(f[i].get(metric))) is not None]
            if values:
                points.append(chart.Point(i, statistics.fmean(values), min(values), max(values)))
        return points

    def losses(self) -> list[tuple[str, dict[str, float]]]:
        """The label ('1–3 clients') and final test loss by algorithm of every larger bucket.

        One with less than a hundredth of the test examples does not speak for cold features.
        """
        table: list[dict[str, float]] = [{} for _ in self.labels]
        for name in self.finals:
            for p in self.points(name, "loss"):
                table[int(p.x)][name] = p.y
        enough = sum(self.examples) / 100
        return [
            (_clients(label), row)
            for label, row, count in zip(self.labels, table, self.examples, strict=True)
            if row and count >= enough
        ]

    def panels(self, order: Sequence[str], styles: dict[str, str]) -> list[dict[str, Any]]:
        """The charts of loss and AUC by bucket, each with its table."""
        panels = []
        for metric, title, better in (
            ("loss", "Test loss", "lower"),
            ("auc", "Test AUC", "higher"),
        ):
            series = [
                chart.Series(display(n), k, styles[n], self.points(n, metric))
                for k, n in enumerate(order)
            ]
            if not any(s.points for s in series):
                continue
            rows = []
            for s in series:
                by_bucket = {int(p.x): show_number(p.y) for p in s.points}
                rows.append([s.name, *(by_bucket.get(i, "–") for i in range(len(self.labels)))])
            panels.append(
                {
                    "title": f"{title} by heat",
                    "subtitle": f"after the last round; {better} is better, cold is on the left",
                    "svg": chart.dot_chart(
                        f"{title} by heat of the target feature",
                        f"{title} of each algorithm in {len(self.labels)} buckets, cold to hot.",
                        self.labels,
                        series,
                    ),
                    "columns": ["held by", *self.labels],
                    "rows": [*rows, ["test examples", *(f"{n:,}" for n in self.examples)]],
                }
            )
        return panels


def heat_panel(group: dict[str, Any]) -> dict[str, Any]:
    table, name = str(group.get("table", "")), group.get("group")
    title = f"{name}" if name else table
    features, smallest, largest = (group.get(k) or 0 for k in ("features", "smallest", "largest"))
    dispersion = number(group.get("dispersion"))
    words = f"{features:,} feature{'' if features == 1 else 's'}, heat {smallest:,} to {largest:,}"
    if dispersion is not None:
        words += f", dispersion {_dispersion(dispersion)}"
    histogram = [(int(h), int(c)) for h, c in group.get("histogram") or []]
    drawn = any(h > 0 and c > 0 for h, c in histogram)
    return {
        "title": title,
        "subtitle": words,
        "table": table,
        "svg": chart.heat_chart(f"Heat of {title}", words, histogram) if drawn else "",
    }


def _over_seeds(seeds: dict[int, list[Line]], metric: str) -> list[chart.Point]:
    values: dict[int, list[float]] = {}
    for curve in seeds.values():
        for line in curve:
            if (v := number(line.get(metric))) is not None:
                values.setdefault(line["round"], []).append(v)
    return [chart.Point(r, statistics.fmean(v), min(v), max(v)) for r, v in sorted(values.items())]


def _range(low: int, high: int) -> str:
    return f"{low:,}" if low == high else f"{low:,}–{high:,}"


def _dispersion(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else show_number(value).removesuffix(".00")


def _clients(label: str) -> str:
    return f"{label} client" if label == "1" else f"{label} clients"
