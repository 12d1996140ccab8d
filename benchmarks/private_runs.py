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

from docs.card import card, dot, frame, linear, path, text
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
    typed = parser.parse_args()
    if typed.what == ["draw"]:
        lines = [json.loads(text) for text in Path(typed.out).read_text("utf-8").splitlines()]
        Path(typed.picture).write_text(picture(lines), encoding="utf-8")
        return
    measure = Measure(typed)
    if "equal" in typed.what:
        measure("equal", "in the clear", None)
        dials = {"index_epsilon": None, "min_contributors": 1}
        how = "real" if typed.real else "arithmetic"
        measure("equal", f"secure sums, {how}", Privacy.of("index", secure_sum=how, **dials))
    if "epsilon" in typed.what:
        for weighting in ("examples", "uniform"):
            group = f"heat, {weighting}"
            measure(group, "in the clear", None, weighting=weighting)
            for epsilon in EPSILONS:
                heat = {"heat": "randomized-response", "heat_epsilon": epsilon}
                privacy = Privacy.of("heat", **heat)
                measure(group, f"ε {epsilon:g} per value", privacy, epsilon, weighting=weighting)
    if "index" in typed.what:
        measure("index", "in the clear", None)
        for once, for_ever in ANSWERS:
            dials = {"index_epsilon": once, "index_epsilon_for_ever": for_ever}
            for minimum in (1, 2):
                how = {"secure_sum": "arithmetic", "min_contributors": minimum, **dials}
                name = f"ε {once:g} and {for_ever:g}, t = {minimum}"
                measure("index", name, Privacy.of("index", **how), once)
    if "minimum" in typed.what:
        for cohort in map(int, typed.cohorts.split(",")):
            for minimum in MINIMA:
                dials = {"index_epsilon": None, "min_contributors": minimum}
                privacy = Privacy.of("index", secure_sum="arithmetic", **dials)
                group, name = f"minimum, K = {cohort}", f"t = {minimum}"
                measure(group, name, privacy, minimum, clients_per_round=cohort)


class Measure:
    """Runs on MovieLens, each a line of the file."""

    def __init__(self, typed: argparse.Namespace) -> None:
        self.typed = typed
        self.task = catalogue.task("movielens")
        self.data = self.task.load(self.task.options())
        self.targets: dict[str, float] = {}

    def __call__(
        self, group: str, name: str, privacy: Privacy | None, x: float | None = None, **more: Any
    ) -> None:
        """One run: its losses by round, and how many rounds it took to the group's target."""
        plan, own = presets(self.task, "fedsubavg")
        settings = {**plan, "rounds": self.typed.rounds, "seed": self.typed.seed, "device": "cpu"}
        model = catalogue.model(self.task.model)(self.data, self.typed.seed)
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
        with Path(self.typed.out).open("a", encoding="utf-8") as file:
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
STYLE = """
  .line { fill: none; stroke-width: 2.4; stroke: var(--c) }
  .clear { stroke-dasharray: 3 5; opacity: .8 }
  .name { fill: var(--c) }
  .a { --c: #0f5fc2 }
  .b { --c: #c9480b }
  @media (prefers-color-scheme: dark) {
    .a { --c: #6aaeff }
    .b { --c: #ff9152 }
  }
"""


def picture(lines: list[Line]) -> str:
    """Two panels: what ε of heat costs in rounds, and what minimum contributors cost in loss."""
    rounds, curves = max(len(line["losses"]) for line in lines), dict[str, list[Line]]()
    for line in lines:
        curves.setdefault(line["group"], []).append(line)
    heat = {f"weights: {g.removeprefix('heat, ')}": x for g, x in curves.items() if "heat" in g}
    least = {g.removeprefix("minimum, "): x for g, x in curves.items() if "minimum" in g}
    left = Panel((62, 400), EPSILONS, "Rounds to the target", "ε of a row's coin")
    left.second = f"the loss that exact heat (dashed) has after {rounds * 3 // 4} rounds"
    right = Panel(
        (500, 840), MINIMA, f"Train loss after {rounds} rounds", "holders that open a row"
    )
    right.second = "when a row needs so many contributors in a round"
    parts = left.draw(heat, lambda line: line["rounds_to_target"] or rounds)
    parts += right.draw(least, lambda line: line["loss"])
    title = "What privacy costs: MovieLens, FedSubAvg"
    return "\n".join(card(WIDTH, HEIGHT, title, STYLE, parts)) + "\n"


class Panel:
    """One chart whose places on the x axis are named, not measured."""

    def __init__(
        self, span: tuple[int, int], names: Sequence[float], title: str, axis: str
    ) -> None:
        self.span, self.names, self.title, self.axis = span, names, title, axis
        self.second = ""

    def draw(self, curves: dict[str, list[Line]], value: Callable[[Line], float]) -> list[str]:
        """Title, grid and a line for each group; a run without x is a dashed level."""
        every = [value(line) for runs in curves.values() for line in runs]
        low, high = min(every), max(every)
        pad = (high - low) * 0.08 or 1.0
        low, high = max(0.0, low - pad), high + pad
        start, end = self.span
        y, x = linear(low, high, FLOOR, TOP), linear(0, len(self.names) - 1, start + 20, end - 20)
        parts = [text(start - 38, 34, self.title, "title"), text(start - 38, 56, self.second)]
        ticks = nice_ticks(low, high, most=5)
        labels = [(tick, tick_label(tick, ticks[1] - ticks[0])) for tick in ticks]
        parts += frame(y, labels, self.span, FLOOR)
        for position, name in enumerate(self.names):
            parts.append(text(x(position), FLOOR + 20, f"{name:g}", "middle"))
        parts.append(text((start + end) / 2, FLOOR + 42, self.axis, "middle"))
        for style, (group, runs) in zip("ab", curves.items(), strict=False):
            named = sorted((line["x"], value(line)) for line in runs if line["x"] is not None)
            dots = [(x(self.names.index(name)), y(number)) for name, number in named]
            parts.append(path(f"line {style}", dots))
            for line in (line for line in runs if line["x"] is None):
                parts.append(
                    path(f"line clear {style}", [(at, y(value(line))) for at in self.span])
                )
            parts += [dot(style, *point) for point in dots]
            top = min(dots, key=lambda point: point[1])
            late = "end " if top[0] > (start + end) / 2 else ""
            parts.append(text(top[0], top[1] - 12, group, f"name {late}{style}"))
        return parts


if __name__ == "__main__":
    main()
