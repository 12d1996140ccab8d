"""The charts of a run's report, each with its title and its table: curves by round, heat."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from fedrows.measure.all_anchors import SHORT
from fedrows.measure.metric_choice import Line, about, measured
from fedrows.measure.summary import Summary, display, number, show_number
from fedrows.report.artefact import Curve, Panel
from fedrows.report.axes import Point

SUBTITLES = {
    "train_loss": "on a fixed sample of the training data",
    "loss": "on {} examples",
    "accuracy": "share of {} examples classified right",
    "auc": "area under the ROC curve, all clients pooled",
    "gauc": "AUC inside each client, averaged by examples",
    "rmse": "root of the mean square error on {} examples",
    "mae": "mean size of the error on {} examples",
}

HEAT = "heat: clients that hold the feature"
LOGARITHMIC = 30  # the y axis is, where values span more than this factor

Curves = dict[str, dict[int, list[Line]]]


def curve_panels(
    summary: Summary,
    curves: Curves,
    order: Sequence[str],
    data: dict[str, Any],
    levels: dict[str, dict[str, float]],
) -> list[dict[str, Any]]:
    """One chart for each metric that was measured, with the levels to compare it with."""
    panels = []
    lines = [line for seeds in curves.values() for curve in seeds.values() for line in curve]
    for metric in measured(lines):
        title, higher, digits = about(metric)
        series = {display(name): _over_seeds(curves[name], metric) for name in order}
        if not any(series.values()):
            continue
        guides: list[tuple[str, float]] = []
        target = summary["target"]
        if target["rule"] and target["metric"] == metric:
            guides.append(
                (f"target {target['over_seeds']['mean']:.{digits}f}", target["over_seeds"]["mean"])
            )
        best = number(data.get("best_loss"))
        if metric == "test_loss" and best is not None:
            guides.append((f"best achievable {best:.{digits}f}", best))
        guides += [
            (f"{title} {value:.{digits}f}", value)
            for title, value in levels.get(metric, {}).items()
        ]
        name = title[0].upper() + title[1:]
        rounds = sorted({p.x for points in series.values() for p in points})
        picked = (
            [rounds[round(i * (len(rounds) - 1) / 7)] for i in range(8)]
            if len(rounds) > 8
            else rounds
        )
        tables = {n: {p.x: f"{p.y:.{digits}f}" for p in points} for n, points in series.items()}
        panels.append(
            {
                "title": name,
                "subtitle": f"{_subtitle(metric)}; {'higher' if higher else 'lower'} is better",
                "panel": Panel(
                    name,
                    "round",
                    "",
                    (
                        *(_curve(n, points) for n, points in series.items()),
                        *(Curve(label, (), (value,), kind="guide") for label, value in guides),
                    ),
                    log_y=_spans(series, [value for _, value in guides]),
                ),
                "columns": ["round", *(f"{r:,.0f}" for r in picked)],
                "rows": [
                    [n, *(table.get(r, "–") for r in picked)]
                    for n, table in tables.items()
                    if table
                ],
            }
        )
    return panels


def anchor_levels(content: dict[str, Any]) -> dict[str, dict[str, float]]:
    """Of each metric the values of the anchors in a run's anchors.json, by their short titles."""
    levels: dict[str, dict[str, float]] = {}
    for part in ("baselines", "anchors"):
        for name, metrics in content.get(part, {}).items():
            for metric, value in metrics.items() if name in SHORT else ():
                if (known := number(value)) is not None:
                    levels.setdefault(metric, {})[SHORT[name]] = known
    return levels


def time_panels(summary: Summary, curves: Curves, order: Sequence[str]) -> list[dict[str, Any]]:
    """The metric of the target by virtual time, of runs with a clock: a chart, or none."""
    metric = summary["target"]["metric"]
    title = f"{about(metric)[0][0].upper()}{about(metric)[0][1:]} by virtual time"
    series = {}
    for name in order:
        when = {p.x: p.y for p in _over_seeds(curves[name], "virtual_seconds")}
        points = [p for p in _over_seeds(curves[name], metric) if p.x in when]
        series[display(name)] = [Point(when[p.x], p.y, p.low, p.high) for p in points]
    if not any(series.values()):
        return []
    lines = tuple(_curve(n, points) for n, points in series.items())
    panel = Panel(title, "virtual seconds", "", lines, log_y=_spans(series))
    subtitle = f"simulated seconds, of all seeds on average; {_subtitle(metric)}"
    return [{"title": title, "subtitle": subtitle, "panel": panel, "columns": [], "rows": []}]


def _subtitle(metric: str) -> str:
    if metric in SUBTITLES:
        return SUBTITLES[metric]
    part, _, name = metric.partition("_")
    examples = {"test": "held-out"}.get(part, part)
    return SUBTITLES.get(name, "a metric of your own, on {} examples").format(examples)


class HeatBuckets:
    """The final metrics by heat bucket, cold to hot, averaged over seeds."""

    def __init__(self, curves: Curves) -> None:
        finals = {
            name: [c[-1].get("buckets") or [] for c in seeds.values()]
            for name, seeds in curves.items()
        }
        every = [buckets for seeds in finals.values() for buckets in seeds if buckets]
        size = len(every[0]) if every else 0
        # Seeds may cut the data elsewhere: buckets are then matched by their place, cold to hot.
        self.finals = {
            name: [buckets for buckets in seeds if len(buckets) == size]
            for name, seeds in finals.items()
        }
        same = [buckets for buckets in every if len(buckets) == size]
        self.labels = [
            _range(min(f[i]["low"] for f in same), max(f[i]["high"] for f in same))
            for i in range(size)
        ]
        self.examples = [
            round(statistics.fmean(f[i].get("examples") or 0 for f in same)) for i in range(size)
        ]

    def points(self, name: str, metric: str) -> list[Point]:
        """One point per bucket in which some seed has a value."""
        points = []
        for i in range(len(self.labels)):
            values = [v for f in self.finals[name] if (v := number(f[i].get(metric))) is not None]
            if values:
                points.append(Point(i, statistics.fmean(values), min(values), max(values)))
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

    def panels(self, order: Sequence[str]) -> list[dict[str, Any]]:
        """The charts of the metrics by bucket, each with its table."""
        panels = []
        for metric, title, better in (
            ("loss", "Test loss", "lower"),
            ("auc", "Test AUC", "higher"),
            ("hr10", "Test HR@10", "higher"),
            ("ndcg10", "Test NDCG@10", "higher"),
        ):
            series = {display(name): self.points(name, metric) for name in order}
            if not any(series.values()):
                continue
            rows = []
            for name, points in series.items():
                by_bucket = {int(p.x): show_number(p.y) for p in points}
                rows.append([name, *(by_bucket.get(i, "–") for i in range(len(self.labels)))])
            panels.append(
                {
                    "title": f"{title} by heat",
                    "subtitle": f"after the last round; {better} is better, cold is on the left",
                    "panel": Panel(
                        title,
                        "clients that hold the target feature",
                        "",
                        tuple(_curve(n, points, "joined") for n, points in series.items()),
                        log_y=_spans(series),
                        labels=tuple(self.labels),
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
    histogram = sorted((int(h), int(c)) for h, c in group.get("histogram") or [] if h > 0 and c > 0)
    heats, counts = (tuple(float(pair[i]) for pair in histogram) for i in (0, 1))
    features_by_heat = Curve("features", heats, counts, kind="dots")
    return {
        "title": title,
        "subtitle": f"{words} · table {table}" if table else words,
        "panel": Panel(title, HEAT, "features", (features_by_heat,), log_x=True, log_y=True),
        "columns": [],
        "rows": [],
    }


def _curve(name: str, points: Sequence[Point], kind: str = "line") -> Curve:
    x, y, low, high = (tuple(getattr(p, key) for p in points) for key in ("x", "y", "low", "high"))
    return Curve(name, x, y, low, high, kind)


def _spans(series: dict[str, list[Point]], others: Sequence[float] = ()) -> bool:
    """Whether the values span so much that only a logarithmic axis shows them."""
    values = [v for points in series.values() for p in points for v in (p.low, p.high)]
    values += others
    return min(values) > 0 and max(values) / min(values) > LOGARITHMIC


def _over_seeds(seeds: dict[int, list[Line]], metric: str) -> list[Point]:
    values: dict[int, list[float]] = {}
    for curve in seeds.values():
        for line in curve:
            if (v := number(line.get(metric))) is not None:
                values.setdefault(line["round"], []).append(v)
    return [Point(r, statistics.fmean(v), min(v), max(v)) for r, v in sorted(values.items())]


def _range(low: int, high: int) -> str:
    return f"{low:,}" if low == high else f"{low:,}–{high:,}"


def _dispersion(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else show_number(value).removesuffix(".00")


def _clients(label: str) -> str:
    return f"{label} client" if label == "1" else f"{label} clients"
