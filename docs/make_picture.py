"""Draws docs/picture.svg, the picture in the README, from the folder of a comparison.

    fedrows compare synthetic --algorithms fedavg,fedsubavg,centralsgd --out runs/picture
    python docs/make_picture.py runs/picture docs/picture.svg

On the left the train loss by round with the target and where it was reached, on the right the final
test loss by heat. Lines and dots are means over the seeds of the comparison.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from statistics import fmean
from typing import Any

from card import card, dot, frame, linear, path, text

from fedrows.measure.summary import Target, by_algorithm, display, summarise
from fedrows.report.axes import nice_ticks, tick_label
from fedrows.runs.folder import read_lines

WIDTH, HEIGHT = 880, 400
FLOOR, TOP = 330, 92
LEFT, RIGHT = (62, 440), (594, 860)  # where the two panels begin and end
FEWEST = 100  # test examples of a bucket that is worth a dot
ORDER = ["fedavg", "centralsgd", "fedsubavg"]  # the last is drawn on top

STYLE = """
  .name, .mark { font-weight: 600; fill: var(--c) }
  .target { stroke: #57606a; stroke-dasharray: 2 4 }
  .line, .thread { fill: none; stroke-linejoin: round; stroke-linecap: round }
  .line { stroke-width: 2.6 }
  .thread { stroke-width: 1.4; opacity: .45 }
  .drop { stroke-dasharray: 2 3; opacity: .7 }
  .fedsubavg { --c: #0f5fc2 }
  .fedavg { --c: #c9480b }
  .centralsgd { --c: #6e7781 }
  .line.centralsgd, .thread.centralsgd { stroke-dasharray: 2 6 }
  .line, .thread, .drop { stroke: var(--c) }
  @media (prefers-color-scheme: dark) {
    .target { stroke: #9198a1 }
    .fedsubavg { --c: #6aaeff }
    .fedavg { --c: #ff9152 }
    .centralsgd { --c: #a8b0ba }
  }
"""


def main(folder: Path, picture: Path) -> None:
    """Reads the comparison and writes the picture."""
    lines = read_lines(folder / "metrics.jsonl")
    target = Target(**json.loads((folder / "config.json").read_text("utf-8"))["target"])
    summary, curves = summarise(lines, target), by_algorithm(lines)
    seeds = len(next(iter(curves.values())))
    rounds = summary["algorithms"][0]["rounds"]
    title = f"Train and test loss of {', '.join(map(display, ORDER))} over {rounds} rounds"
    parts = [
        *by_round(curves, summary, rounds),
        *by_heat(curves, rounds),
        text(24, HEIGHT - 14, f"fedrows compare synthetic: means over {seeds} seeds, each "
             "algorithm at the task's own settings (learning rate 0.1)"),
    ]  # fmt: skip
    lines = card(WIDTH, HEIGHT, title, STYLE, parts)
    picture.write_text("\n".join(lines) + "\n", encoding="utf-8")


def by_round(curves: dict[str, Any], summary: dict[str, Any], rounds: int) -> list[str]:
    """The left panel."""
    means = {name: mean_curve(curves[name]) for name in ORDER}
    losses = [loss for curve in means.values() for _, loss in curve]
    x, (low, high) = linear(0, rounds, *LEFT), (min(losses) - 0.008, max(losses) + 0.004)
    y = linear(low, high, FLOOR, TOP)
    goal = summary["target"]["over_seeds"]["mean"]
    reached = {a["name"]: a["rounds_to_target"] for a in summary["algorithms"]}
    parts = [text(24, 36, "Train loss by round", "title")]
    parts.append(text(24, 58, "lower is better; dotted: the best loss of CentralSGD"))
    parts += frame(y, labelled(low, high), LEFT, FLOOR)
    for tick in nice_ticks(0, rounds):
        parts.append(text(x(tick), FLOOR + 20, tick_label(tick, 100), "middle"))
    parts.append(f'<path class="target" d="M{LEFT[0]} {y(goal):.1f}H{LEFT[1]}"/>')
    parts += [path(f"line {name}", [(x(r), y(v)) for r, v in means[name]]) for name in ORDER]
    for name in ("centralsgd", "fedsubavg"):
        mean = reached[name]["mean"]
        if mean is None or None in reached[name]["values"]:
            continue
        at, words = x(mean), f"{mean:.0f} rounds"
        parts.append(f'<path class="drop {name}" d="M{at:.1f} {y(goal):.1f}V{FLOOR}"/>')
        parts.append(dot(name, at, y(goal)))
        late = at > LEFT[1] - 90
        beside = (at - 10, y(goal) + 20) if late else (at + 10, y(goal) - 9)
        parts.append(text(*beside, words, f"mark {'end ' if late else ''}{name}"))
    ends = {name: y(means[name][-1][1]) for name in ORDER}
    for name, shift in {"fedavg": -12, "centralsgd": 8, "fedsubavg": 4}.items():
        parts.append(text(LEFT[1] + 10, ends[name] + shift, display(name), f"name {name}"))
    return parts


def by_heat(curves: dict[str, Any], rounds: int) -> list[str]:
    """The right panel."""
    compared = ["fedavg", "fedsubavg"]  # CentralSGD lies where FedAvg does
    finals = {name: [seed[-1]["buckets"] for seed in curves[name].values()] for name in compared}
    shape = finals["fedavg"][0]
    shown = [i for i, bucket in enumerate(shape) if bucket["examples"] >= FEWEST]
    losses = {
        n: [fmean(f[i]["loss"] for f in of_name) for i in shown] for n, of_name in finals.items()
    }
    every = [loss for of_name in losses.values() for loss in of_name]
    low, high = min(every) - 0.008, max(every) + 0.008
    y, x = linear(low, high, FLOOR, TOP), linear(-0.5, len(shown) - 0.5, *RIGHT)
    parts = [text(RIGHT[0] - 46, 36, f"Test loss after {rounds} rounds", "title")]
    parts.append(text(RIGHT[0] - 46, 58, "by the number of clients that hold the item"))
    parts += frame(y, labelled(low, high), RIGHT, FLOOR)
    for position, i in enumerate(shown):
        parts.append(text(x(position), FLOOR + 20, f"{short(shape[i]['low'])}+", "middle"))
    parts.append(text(RIGHT[0], FLOOR + 40, "← cold"))
    parts.append(text(RIGHT[1], FLOOR + 40, "hot →", "end"))
    for name in compared:
        at = [(x(position), y(loss)) for position, loss in enumerate(losses[name])]
        parts.append(path(f"thread {name}", at))
        parts += [dot(name, *point) for point in at]
    return parts


def mean_curve(seeds: dict[int, list[dict[str, Any]]]) -> list[tuple[int, float]]:
    """(round, train loss) with the loss averaged over seeds."""
    columns = zip(*seeds.values(), strict=True)
    return [(lines[0]["round"], fmean(line["train_loss"] for line in lines)) for lines in columns]


def labelled(low: float, high: float) -> list[tuple[float, str]]:
    """Round numbers between two values, with their labels."""
    ticks = nice_ticks(low, high, most=4)
    return [(tick, tick_label(tick, ticks[1] - ticks[0])) for tick in ticks]


def short(number: int) -> str:
    """1000 as 1k."""
    return f"{number // 1000}k" if number >= 1000 else str(number)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
