"""What a run or a comparison came to: best and final metrics, rounds to the target, bytes, time.

Works on the lines of `metrics.jsonl`, one per algorithm, seed and evaluated round. The target is
the paper's (Table 2): the best train loss of CentralSGD, seed by seed;
speed-up = rounds of FedAvg / rounds of the algorithm.

Test examples choose no round where there are validation examples (see `metric_choice`).
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from fedrows import catalogue
from fedrows.catalogue import BASELINE, REFERENCE
from fedrows.measure.metric_choice import (
    DIVERGED,
    Line,
    about,
    best_value,
    chooses,
    chosen_line,
    measured,
)
from fedrows.measure.metric_choice import METRICS as METRICS  # readers look for them here
from fedrows.measure.metric_choice import number as number

# Of runs with a clock: what a summary says of virtual time, and the titles of its columns.
VIRTUAL = {
    "virtual_seconds_to_target": "Virtual s to target",
    "virtual_seconds": "Virtual s",
    "client_hours": "Client hours",
    "wasted_hours": "Wasted hours",
}
USUAL = ("train_loss", "test_loss", "test_accuracy", "test_auc", "test_gauc")  # in every summary

Summary = dict[str, Any]


@dataclass(frozen=True)
class Target:
    """What to reach: `value`, or else CentralSGD's best `metric` in its first `rounds` (or all)."""

    metric: str = "train_loss"
    value: float | None = None
    rounds: int | None = None

    def __post_init__(self) -> None:
        if self.metric not in METRICS:
            raise ValueError(f"target metric {self.metric!r} is not one of {', '.join(METRICS)}")


def best_title(summary: Summary, metric: str) -> str:
    """'Best test AUC', or 'Test AUC at best validation AUC' where that has chosen the round."""
    title = about(metric)[0]
    if metric not in summary["chosen_on_validation"]:
        return f"Best {title}"
    return f"{title[0].upper()}{title[1:]} at best {about(chooses(metric))[0]}"


def summarise(
    lines: Iterable[Line], target: Target | None = None, bytes_full_model: float | None = None
) -> Summary:
    """The summary of all metric lines, ready for `summary.json` (None for NaN and infinity)."""
    target = target or Target()
    lines = list(lines)
    present = measured(lines)
    metrics = [
        *(m for m in METRICS if m in USUAL or m in present),
        *(m for m in present if m not in METRICS),
    ]
    curves = by_algorithm(lines)
    central = curves.get(REFERENCE, {})
    every_seed = sorted({seed for seeds in curves.values() for seed in seeds})
    goals = {seed: _goal(target, central.get(seed, [])) for seed in every_seed}
    to_target = {
        name: {s: _first(curve, target.metric, goals[s]) for s, curve in seeds.items()}
        for name, seeds in curves.items()
    }
    known = [g for g in goals.values() if g is not None]
    algorithms = []
    for name, seeds in curves.items():
        ends = [curve[-1] for curve in seeds.values()]
        seconds = [number(end.get("seconds")) for end in ends]
        rates = [end["round"] / s if s else None for end, s in zip(ends, seconds, strict=True)]
        down, up = (_mean_of(seeds, key) for key in ("bytes_down", "bytes_up"))
        reached = [to_target[name][s] for s in seeds if goals[s] is not None]
        algorithms.append(
            {
                "name": name,
                "seeds": list(seeds),
                "rounds": max(end["round"] for end in ends),
                "metrics": {
                    metric: {
                        "best": spread([best_value(curve, metric) for curve in seeds.values()]),
                        "final": spread(
                            [number(chosen_line(x).get(metric)) for x in seeds.values()]
                        ),
                    }
                    for metric in metrics
                },
                "rounds_to_target": spread(reached),
                "speed_up": _speed_up(name, curves, to_target, goals),
                "bytes_down": down,
                "bytes_up": up,
                "down_share": down / bytes_full_model if down and bytes_full_model else None,
                "up_share": up / bytes_full_model if up and bytes_full_model else None,
                "seconds": spread(seconds),
                "rounds_per_second": spread(rates),
            }
        )
        if any("virtual_seconds" in end for end in ends):
            algorithms[-1] |= {
                key: spread([number(end.get(key)) for end in ends])
                for key in ("virtual_seconds", "client_hours", "wasted_hours")
            }
            when = (_virtual(curve, to_target[name][s]) for s, curve in seeds.items())
            times = [x for x, s in zip(when, seeds, strict=True) if goals[s] is not None]
            algorithms[-1]["virtual_seconds_to_target"] = spread(times)
        if diverged := [seed for seed, curve in seeds.items() if curve[-1].get(DIVERGED)]:
            algorithms[-1][DIVERGED] = diverged
        if any("epsilon" in end for end in ends):
            algorithms[-1]["epsilon"] = _largest_epsilon(ends)
    return {
        "target": asdict(target)
        | {
            "rule": None if not known else REFERENCE if target.value is None else "given",
            "over_seeds": spread(known),
            "by_seed": {str(seed): goal for seed, goal in goals.items()},
        },
        "bytes_full_model": bytes_full_model,
        "chosen_on_validation": [m for m in metrics if m != chooses(m) and chooses(m) in metrics],
        "algorithms": algorithms,
    }


def table(summary: Summary) -> tuple[list[str], list[list[str]]]:
    """The column titles and the rows of the summary as text, without the columns nobody filled."""
    shown = summary["algorithms"]
    target = summary["target"]
    names = [display(a["name"]) + _diverged(a) for a in shown]
    columns: list[tuple[str, list[str]]] = [("Algorithm", names)]
    if target["rule"]:
        digits = about(target["metric"])[2]
        goal = show(target["over_seeds"], digits)
        title = f"Rounds to {about(target['metric'])[0]} {goal}"
        columns.append((title, [show_rounds(a) for a in shown]))
        columns.append(("Speed-up", [show_speed_up(a["speed_up"]) for a in shown]))
    for metric in metrics_of(summary):
        best = [show(a["metrics"][metric]["best"], about(metric)[2]) for a in shown]
        columns.append((best_title(summary, metric), best))
    columns.append(("Bytes down", [show_bytes(a["bytes_down"], a["down_share"]) for a in shown]))
    columns.append(("Bytes up", [show_bytes(a["bytes_up"], a["up_share"]) for a in shown]))
    columns.append(("Seconds", [show(a["seconds"], None) for a in shown]))
    columns.append(("Rounds/s", [show(a["rounds_per_second"], None) for a in shown]))
    for key in virtual_of(summary):
        columns.append((VIRTUAL[key], [show_virtual(a, key) for a in shown]))
    filled = [c for c in columns if any(cell != "–" for cell in c[1])]
    rows = [list(row) for row in zip(*(cells for _, cells in filled), strict=True)]
    return [title for title, _ in filled], rows


def metrics_of(summary: Summary) -> list[str]:
    """The metrics that a summary has a value of."""
    runs = summary["algorithms"]
    names = dict.fromkeys(name for a in runs for name in a["metrics"])
    return [m for m in names if any(a["metrics"][m]["best"]["mean"] is not None for a in runs)]


def virtual_of(summary: Summary) -> list[str]:
    """What a summary says of virtual time: nothing of runs without a clock."""
    runs = summary["algorithms"]
    return [key for key in VIRTUAL if any(a.get(key, {}).get("values") for a in runs)]


def show_virtual(algorithm: Summary, key: str) -> str:
    """Virtual seconds, or hours, of an algorithm; '–' if it has no clock, or never got there."""
    return show(algorithm[key], None) if key in algorithm else "–"


def by_algorithm(lines: Iterable[Line]) -> dict[str, dict[int, list[Line]]]:
    """algorithm → seed → its lines by round.

    A round evaluated twice, as a resumed run does, counts once: as it was the last time.
    """
    lines_of: dict[str, dict[int, dict[int, Line]]] = {}
    for line in lines:
        lines_of.setdefault(line["algorithm"], {}).setdefault(line["seed"], {})[line["round"]] = (
            line
        )
    return {
        name: {s: [rounds[r] for r in sorted(rounds)] for s, rounds in sorted(seeds.items())}
        for name, seeds in lines_of.items()
    }


def spread(values: Sequence[float | None]) -> dict[str, Any]:
    """Mean and sample standard deviation (None for one) of the known values, beside all of them."""
    known = [v for v in values if v is not None]
    return {
        "mean": statistics.fmean(known) if known else None,
        "spread": statistics.stdev(known) if len(known) > 1 else None,
        "values": list(values),
    }


def _diverged(algorithm: Summary) -> str:
    """What the table says behind the name of an algorithm whose runs diverged, or some of them."""
    few, all_ = len(algorithm.get(DIVERGED, ())), len(algorithm["seeds"])
    return "" if not few else " (diverged)" if few == all_ else f" ({few} of {all_} diverged)"


def display(name: str) -> str:
    """The algorithm's name as people write it."""
    return catalogue.title(name)


def show(stat: dict[str, Any], digits: int | None) -> str:
    """'0.6120 ± 0.0031', with '(2 of 3 seeds)' where not all have a value; None: 3 significant."""
    if stat["mean"] is None:
        return "–"
    values = stat["values"]
    known = sum(v is not None for v in values)
    if digits is None:
        digits = significant(stat["mean"])
    text = show_number(stat["mean"], digits)
    if stat["spread"] is not None:
        text += f" ± {show_number(stat['spread'], digits)}"
    return text if known == len(values) else f"{text} ({known} of {len(values)} seeds)"


def show_number(value: float, digits: int | None = None) -> str:
    """The number with so many decimals, or with three significant digits."""
    return f"{value:.{significant(value) if digits is None else digits}f}"


def significant(value: float) -> int:
    """The decimals that show three significant digits of the value, at most 6."""
    exponent = int(f"{value:.2e}".partition("e")[2])  # after rounding: 0.9996 counts as 1.00
    return min(6, max(0, 2 - exponent))


def show_rounds(algorithm: dict[str, Any]) -> str:
    """Rounds to the target: '40 ± 10', '45 (2 of 3 seeds)', or '300+' where no seed got there."""
    stat = algorithm["rounds_to_target"]
    if not stat["values"]:
        return "–"
    if stat["mean"] is None:
        return f"{algorithm['rounds']}+"
    if stat["spread"] == 0:
        stat = stat | {"spread": None}
    return show(stat, 0)


def show_speed_up(speed_up: dict[str, Any] | None) -> str:
    """'4.3×', or '> 4.3×' where FedAvg did not reach the target."""
    if speed_up is None:
        return "–"
    return ("> " if speed_up["lower_bound"] else "") + f"{speed_up['value']:.1f}×"


def show_bytes(size: float | None, share: float | None = None) -> str:
    """'45.1 kB (2.3 %)': a size, and its share of the full model where known."""
    if size is None:
        return "–"
    unit = 0
    while size >= 999.5 and unit < 4:
        size, unit = size / 1000, unit + 1
    text = f"{show_number(size) if unit else round(size)} {('B', 'kB', 'MB', 'GB', 'TB')[unit]}"
    return text if share is None else f"{text} ({show_number(100 * share)} %)"


def show_epsilon(epsilon: float | str | None) -> str:
    """An ε of a metrics line: '1.25', or ∞ where nothing bounds it."""
    known = number(epsilon)
    return "∞" if known is None else show_number(known)


def _largest_epsilon(ends: Sequence[Line]) -> dict[str, float | str]:
    """The ε of each kind at the end of the run that spent most of it."""
    largest: dict[str, float | str] = {}
    for kind in dict.fromkeys(kind for end in ends for kind in end.get("epsilon") or {}):
        known = [number((end.get("epsilon") or {}).get(kind)) for end in ends]
        finite = [x for x in known if x is not None]
        largest[kind] = max(finite) if len(finite) == len(known) else "inf"
    return largest


def _goal(target: Target, central: Sequence[Line]) -> float | None:
    if target.value is not None:
        return number(target.value)
    early = [c for c in central if target.rounds is None or c["round"] <= target.rounds]
    return best_value(early, target.metric)


def _first(curve: Sequence[Line], metric: str, goal: float | None) -> int | None:
    higher = about(metric)[1]
    for line in curve:
        value = number(line.get(metric))
        if goal is not None and value is not None and (value >= goal if higher else value <= goal):
            return int(line["round"])
    return None


def _virtual(curve: Sequence[Line], round_: int | None) -> float | None:
    """The virtual seconds at which a round was done."""
    return next((number(x.get("virtual_seconds")) for x in curve if x["round"] == round_), None)


def _mean_of(seeds: dict[int, list[Line]], key: str) -> float | None:
    """Mean of `key` over all lines after round 0, where nothing has been sent yet."""
    lines = [line for curve in seeds.values() for line in curve if line["round"] > 0]
    known = [v for v in (number(line.get(key)) for line in lines) if v is not None]
    return statistics.fmean(known) if known else None


def _speed_up(
    name: str,
    curves: dict[str, dict[int, list[Line]]],
    to_target: dict[str, dict[int, int | None]],
    goals: dict[int, float | None],
) -> dict[str, Any] | None:
    """FedAvg's mean rounds / this algorithm's, over the seeds both ran, if it always got there.

    Where FedAvg did not get there its last round counts, which makes the ratio a lower bound.
    """
    baseline = to_target.get(BASELINE, {})
    seeds = [s for s in to_target[name] if s in baseline and goals[s] is not None]
    own = [to_target[name][s] for s in seeds]
    reached = [r for r in own if r is not None]
    if not own or len(reached) < len(own) or sum(reached) == 0:
        return None
    slow = [
        r if (r := baseline[s]) is not None else curves[BASELINE][s][-1]["round"] for s in seeds
    ]
    bound = any(baseline[s] is None for s in seeds)
    return {"value": sum(slow) / sum(reached), "lower_bound": bound}
