"""MovieLens in private: secure sums against the clear, ε of heat, and minimum contributors.

    FEDROWS_DATA=… python benchmarks/private_runs.py equal epsilon minimum --out runs.jsonl
    python benchmarks/private_runs.py draw --out runs.jsonl --picture docs/private-runs.svg

equal     FedSubAvg in the clear, and with secure heat and secure updates at t = 1; --real runs the
          protocols themselves, which takes seconds a round
epsilon   randomized-response heat at several ε per value, against rounds to the target
index     clients lie about the rows they want, at several ε of a round and for ever
minimum   a row opens with t = 1, 2, 3, 5, 10 holders, in cohorts of 50 and of 500
draw      the last two as a picture

Everything is the task's preset but for --rounds and the weights: all clients weigh alike, since
private heat counts clients. The target is the clear run's loss after three quarters of the rounds.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from fedrows import catalogue
from fedrows.plan import Plan
from fedrows.privacy.options import Privacy
from fedrows.report.axes import nice_ticks, tick_label
from fedrows.runs.settings import presets
from fedrows.simulation import Simulation

EPSILONS = (0.5, 1.0, 2.0, 4.0, 8.0)
ANSWERS = ((1.0, 4.0), (2.0, 6.0), (4.0, 8.0), (6.0, 10.0))
MINIMA = (1, 2, 3, 5, 10)
Line = dict[str, Any]


def main() -> None:
    """Measures what is asked for, and writes a line for each run."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("what", nargs="+", choices=("equal", "epsilon", "index", "minimum", "draw"))
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--cohorts", default="50,500")
    parser.add_argument("--real", action="store_true")
    parser.add_argument("--out", default="private-runs.jsonl")
    parser.add_argument("--picture", default="docs/private-runs.svg")
    given = parser.parse_args()
    if given.what == ["draw"]:
        lines = [json.loads(text) for text in Path(given.out).read_text("utf-8").splitlines()]
        Path(given.picture).write_text(picture(lines), encoding="utf-8")
        return
    measure = Measure(given)
    if "equal" in given.what:
        measure("equal", "in the clear", None)
        dials = {"index_epsilon": None, "min_contributors": 1}
        how = "real" if given.real else "arithmetic"
        measure("equal", f"secure sums, {how}", Privacy.of("index", secure_sum=how, **dials))
    if "epsilon" in given.what:
        for weighting in ("examples", "uniform"):
            group = f"heat, {weighting}"
            measure(group, "in the clear", None, weighting=weighting)
            for epsilon in EPSILONS:
                heat = {"heat": "randomized-response", "heat_epsilon": epsilon}
                privacy = Privacy.of("heat", **heat)
                measure(group, f"ε {epsilon:g} per value", privacy, epsilon, weighting=weighting)
    if "index" in given.what:
        measure("index", "in the clear", None)
        for once, for_ever in ANSWERS:
            dials = {"index_epsilon": once, "index_epsilon_for_ever": for_ever}
            for minimum in (1, 2):
                how = {"secure_sum": "arithmetic", "min_contributors": minimum, **dials}
                name = f"ε {once:g} and {for_ever:g}, t = {minimum}"
                measure("index", name, Privacy.of("index", **how), once)
    if "minimum" in given.what:
        for cohort in map(int, given.cohorts.split(",")):
            for minimum in MINIMA:
                dials = {"index_epsilon": None, "min_contributors": minimum}
                privacy = Privacy.of("index", secure_sum="arithmetic", **dials)
                group, name = f"minimum, K = {cohort}", f"t = {minimum}"
                measure(group, name, privacy, minimum, clients_per_round=cohort)


class Measure:
    """Runs on MovieLens, each a line of the file."""

    def __init__(self, given: argparse.Namespace) -> None:
        self.given = given
        self.task = catalogue.task("movielens")
        self.data = self.task.load(self.task.options())
        self.targets: dict[str, float] = {}

    def __call__(
        self, group: str, name: str, privacy: Privacy | None, x: float | None = None, **more: Any
    ) -> None:
        """One run: its losses by round, and how many rounds it took to the group's target."""
        plan, own = presets(self.task, "fedsubavg")
        settings = {**plan, "rounds": self.given.rounds, "seed": self.given.seed, "device": "cpu"}
        model = catalogue.model(self.task.model)(self.data, self.given.seed)
        algorithm = catalogue.algorithm("fedsubavg")(**own)
        settings = {**settings, "weighting": "uniform", **more}
        run = Simulation(self.data, model, algorithm, Plan(**settings), privacy)
        since = time.perf_counter()
        losses, opened, left_out = [], [], []
        for progress in run:
            losses.append(run.evaluator.train_loss(progress.whole()))
            if run.private is not None and run.private.report.opened_share is not None:
                opened.append(run.private.report.opened_share)
                left_out.append(run.private.report.left_out_share or 0.0)
        early = losses[len(losses) * 3 // 4 - 1]
        target = self.targets.setdefault(group, early)
        need = next((number for number, loss in enumerate(losses, 1) if loss <= target), None)
        line: Line = {
            "group": group,
            "name": name,
            "x": x,
            "loss": losses[-1],
            "losses": losses,
            "target": target,
            "rounds_to_target": need,
            "opened_share": sum(opened) / len(opened) if opened else None,
            "left_out_share": sum(left_out) / len(left_out) if left_out else None,
            "epsilon": None if run.private is None else run.private.line()["epsilon"],
            "bytes_up": run.progress.bytes_up,
            "seconds": time.perf_counter() - since,
        }
        with Path(self.given.out).open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
        share = ""
        if opened:
            share = f"  {line['opened_share']:.1%} of the union opened"
            share += f", {line['left_out_share']:.1%} of the examples left out"
        print(
            f"{group:16} {name:28} loss {losses[-1]:.4f}  rounds to {target:.4f}: "
            f"{need or f'{len(losses)}+'}  {line['bytes_up']:,.0f} B up{share}  "
            f"{line['seconds']:.0f} s",
            flush=True,
        )


WIDTH, HEIGHT, TOP, FLOOR = 880, 380, 92, 310
PANELS = ((62, 400), (500, 840))  # where the two begin and end
STYLE = """
  .card { fill: #ffffff; stroke: #d8dee4 }
  text { font: 13px system-ui, -apple-system, "Segoe UI", Roboto, Arial, sans-serif; fill: #57606a }
  .title { font-size: 16px; font-weight: 600; fill: #1f2328 }
  .middle { text-anchor: middle }
  .end { text-anchor: end }
  .grid { stroke: #eaeef2 }
  .line { fill: none; stroke-width: 2.4; stroke: var(--c) }
  .clear { stroke-dasharray: 3 5; opacity: .8 }
  .dot, .name { fill: var(--c) }
  .a { --c: #0f5fc2 }
  .b { --c: #c9480b }
  @media (prefers-color-scheme: dark) {
    .card { fill: #12161c; stroke: #30363d }
    text { fill: #9198a1 }
    .title { fill: #f0f6fc }
    .grid { stroke: #21262d }
    .a { --c: #6aaeff }
    .b { --c: #ff9152 }
  }
"""


def picture(lines: list[Line]) -> str:
    """Two panels: what ε of heat costs in rounds, and what minimum contributors cost in loss."""
    rounds = max(len(line["losses"]) for line in lines)
    whole = {group: [x for x in lines if x["group"] == group] for group in groups(lines)}
    heat = {f"weights: {g.removeprefix('heat, ')}": x for g, x in whole.items() if "heat" in g}
    least = {g.removeprefix("minimum, "): x for g, x in whole.items() if "minimum" in g}
    left = Panel(PANELS[0], EPSILONS, "Rounds to the target", "ε of a row's coin")
    left.second = f"the loss that exact heat (dashed) has after {rounds * 3 // 4} rounds"
    right = Panel(PANELS[1], MINIMA, f"Train loss after {rounds} rounds", "holders that open a row")
    right.second = "when a row needs so many contributors in a round"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        f'aria-label="What privacy costs" width="{WIDTH}" height="{HEIGHT}">',
        "<title>What privacy costs: MovieLens, FedSubAvg</title>",
        f"<style>{STYLE}</style>",
        f'<rect class="card" x=".5" y=".5" width="{WIDTH - 1}" height="{HEIGHT - 1}" rx="10"/>',
        *left.draw(heat, lambda line: line["rounds_to_target"] or rounds),
        *right.draw(least, lambda line: line["loss"]),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def groups(lines: list[Line]) -> list[str]:
    """The groups there are, in order."""
    return list(dict.fromkeys(line["group"] for line in lines))


class Panel:
    """One chart whose places on the x axis are named, not measured."""

    def __init__(
        self, span: tuple[int, int], names: Sequence[float], title: str, axis: str
    ) -> None:
        self.span, self.names, self.title, self.axis = span, names, title, axis
        self.second = ""

    def draw(self, curves: dict[str, list[Line]], value: Callable[[Line], float]) -> list[str]:
        """Title, grid and a line for each group; a run without x is a dashed level."""
        every = [value(line) for its in curves.values() for line in its]
        low, high = min(every), max(every)
        pad = (high - low) * 0.08 or 1.0
        low, high = max(0.0, low - pad), high + pad
        start, end = self.span
        ticks = nice_ticks(low, high, most=5)

        def y(number: float) -> float:
            return FLOOR + (number - low) / (high - low) * (TOP - FLOOR)

        def x(name: float) -> float:
            return start + 20 + self.names.index(name) * (end - start - 40) / (len(self.names) - 1)

        parts = [text(start - 38, 34, self.title, "title"), text(start - 38, 56, self.second)]
        for tick in (t for t in ticks if low <= t <= high):
            parts.append(f'<path class="grid" d="M{start} {y(tick):.1f}H{end}"/>')
            label = tick_label(tick, ticks[1] - ticks[0])
            parts.append(text(start - 8, y(tick) + 4, label, "end"))
        parts += [text(x(name), FLOOR + 20, f"{name:g}", "middle") for name in self.names]
        parts.append(text((start + end) / 2, FLOOR + 42, self.axis, "middle"))
        for style, (group, its) in zip("ab", curves.items(), strict=False):
            named = sorted((line["x"], value(line)) for line in its if line["x"] is not None)
            dots = [(x(name), y(number)) for name, number in named]
            places = "L".join(f"{px:.1f} {py:.1f}" for px, py in dots)
            parts.append(f'<path class="line {style}" d="M{places}"/>')
            for line in (line for line in its if line["x"] is None):
                level = y(value(line))
                parts.append(f'<path class="line clear {style}" d="M{start} {level:.1f}H{end}"/>')
            for px, py in dots:
                parts.append(f'<circle class="dot {style}" cx="{px:.1f}" cy="{py:.1f}" r="4.5"/>')
            top = min(dots, key=lambda dot: dot[1])
            late = "end " if top[0] > (start + end) / 2 else ""
            parts.append(text(top[0], top[1] - 12, group, f"name {late}{style}"))
        return parts


def text(px: float, py: float, words: str, kind: str = "") -> str:
    """Words at a place."""
    return f'<text class="{kind}" x="{px:.1f}" y="{py:.1f}">{words}</text>'


if __name__ == "__main__":
    main()
