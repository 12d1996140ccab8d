"""Settings of the recommenders, searched on validation data, and what they come to on test data.

    python benchmarks/recommenders_search.py movielens-mf --seconds 480
    python benchmarks/recommenders_search.py amazon-wide taobao --algorithms fedavg,boundedsubavg
    python benchmarks/recommenders_search.py amazon-wide --algorithms ""    # the anchors alone

Every algorithm climbs from the task's presets, one setting at a time, the learning rate first. A
trial is one run with a seed that no reported run has, and its score is the AUC on validation
examples after its last round. Algorithms take turns, so each has the same number of trials when the
time is up. A rate climbs as long as it gets better: there is no edge. Settings that end at the end
of their list are named in the results. All algorithms have the task's number of rounds and of
clients in a round.

Then each algorithm runs with its chosen setting and the seeds 0 to 4, on training and validation
examples together: nothing is chosen any more. Results are written after every run.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Generator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.speed.machine import short_facts
from fedrows import catalogue
from fedrows.data.federation import FederatedData
from fedrows.errors import FedrowsError
from fedrows.measure.all_anchors import anchors
from fedrows.measure.evaluation import Evaluator
from fedrows.measure.summary import spread
from fedrows.measure.trivial_baselines import baselines
from fedrows.options import options
from fedrows.plan import Plan
from fedrows.runs.settings import presets
from fedrows.simulation import Simulation
from fedrows.task import Task

Setting = dict[str, Any]

SEED = 1000  # of the search
SEARCH_SHARE = 0.6  # of the time
BUDGET = 14  # trials of an algorithm
ALGORITHMS = ("boundedsubavg", "fedsubavg", "fedavg", "steppedmean", "fedadam", "centralsgd")
METRICS = ("test_auc", "test_gauc", "test_loss", "test_accuracy")
MODEL = ("factors", "ridge")  # what goes to the model's builder
STEP = {"lr": 2.0, "server_lr": 3.0, "tau": 10.0}  # settings that climb by a factor
# What is varied after the rate, in this order: the values, of which the presets are one.
LISTS: Mapping[str, Mapping[str, Sequence[Any]]] = {
    "movielens-mf": {
        "ridge": (0.02, 0.03, 0.045, 0.07),
        "factors": (8, 16, 32),
        "start": ("zero", "counted"),
    },
    "amazon-wide": {
        "start_pseudo": (5.0, 8.0, 12.0, 20.0),
        "start_near": (0, 2, 4),
        "local_steps": (5, 10, 20),
        "weight_decay": (0.0, 1e-4, 1e-3, 1e-2),
        "start": ("zero", "counted"),
    },
    "taobao": {
        "weight_decay": (0.0, 1e-3, 1e-2, 3e-2),
        "local_steps": (5, 10, 20),
        "start": ("zero", "counted"),
    },
}
START: Mapping[str, Setting] = {  # where the model's settings start
    "movielens-mf": {"ridge": 0.03, "factors": 16},
}


class Runs:
    """The runs of one task, each with its own setting."""

    def __init__(self, task: Task, device: str) -> None:
        self.task, self.device = task, device
        self.data = task.load(task.options(validation=task.held_out))
        self.whole = task.load(task.options(validation=0.0))

    def start(self, algorithm: str) -> Setting:
        """The presets of what may be varied."""
        plan, own = presets(self.task, algorithm)
        of = catalogue.algorithm(algorithm)(**own)
        names = ["lr", *LISTS[self.task.name]]
        setting = {name: getattr(Plan(**plan), name) for name in names if name not in MODEL}
        for name in ("server_lr", "tau"):
            if hasattr(of, name):
                setting[name] = getattr(of, name)
        return setting | START.get(self.task.name, {})

    def simulation(
        self, data: FederatedData, algorithm: str, setting: Setting, seed: int
    ) -> Simulation:
        """A run before its first round."""
        plan, own = presets(self.task, algorithm)
        own_names = {item.name for item in options(catalogue.algorithm(algorithm))}
        own |= {k: v for k, v in setting.items() if k in own_names}
        plan |= {k: v for k, v in setting.items() if k not in own_names and k not in MODEL}
        plan |= {"seed": seed, "device": self.device, "evaluate_every": plan["rounds"]}
        plan["clients_per_round"] = min(plan["clients_per_round"], data.clients)
        of_model = {k: v for k, v in setting.items() if k in MODEL}
        model = catalogue.builder(self.task.model)(data, seed, **of_model)
        return Simulation(data, model, catalogue.algorithm(algorithm)(**own), Plan(**plan))

    def validated(self, algorithm: str, setting: Setting) -> tuple[float, float]:
        """AUC and GAUC on validation examples after a run; −∞ if it did not end."""
        try:
            run = self.simulation(self.data, algorithm, setting, SEED)
            for _ in run.rounds():
                pass
        except FedrowsError as error:
            say(f"  {error}")
            return -math.inf, -math.inf
        held = replace(self.data, test=self.data.validation)
        metrics = Evaluator(run.model, held, run.plan)(run.progress.whole())
        auc, gauc = metrics["test_auc"], metrics["test_gauc"]
        return (auc, gauc) if math.isfinite(auc) else (-math.inf, -math.inf)

    def tested(self, algorithm: str, setting: Setting, seed: int) -> dict[str, float]:
        """The metrics on test examples after a run on training and validation examples."""
        run = self.simulation(self.whole, algorithm, setting, seed)
        for _ in run.rounds():
            pass
        metrics = run.evaluator(run.progress.whole())
        return {name: metrics[name] for name in METRICS}


def climb(start: Setting, lists: Mapping[str, Sequence[Any]]) -> Generator[Setting, float, None]:
    """Settings to try, each of which wants its score back; ends when no change is better."""
    best, known = dict(start), dict[str, float]()

    def key(setting: Setting) -> str:
        return json.dumps(setting, sort_keys=True)

    known[key(best)] = yield best
    names = [name for name in ("lr", "server_lr", "tau", *lists) if name in best]
    while True:
        before = dict(best)
        for name in names:
            for direction in (1, -1):
                while (value := moved(name, best[name], direction, lists)) is not None:
                    tried = best | {name: value}
                    if key(tried) not in known:
                        known[key(tried)] = yield tried
                    if known[key(tried)] <= known[key(best)]:
                        break
                    best = tried
        if best == before:
            return


def moved(name: str, value: Any, direction: int, lists: Mapping[str, Sequence[Any]]) -> Any:
    """The next value of a setting; None at the end of its list."""
    if name in STEP:
        return float(f"{value * STEP[name] ** direction:.3g}")
    values = sorted({*lists[name], value})
    position = values.index(value) + direction
    return values[position] if 0 <= position < len(values) else None


def search(
    runs: Runs, algorithms: Sequence[str], until: float, budget: int, keep: Any
) -> dict[str, Setting]:  # fmt: skip
    """The best setting of each algorithm, all having had the same number of trials."""
    lists = LISTS[runs.task.name]
    climbs = {name: climb(runs.start(name), lists) for name in algorithms}
    wanted: dict[str, Setting | None] = {name: next(one) for name, one in climbs.items()}
    best: dict[str, tuple[float, Setting]] = {}
    trials: dict[str, list[Any]] = {name: [] for name in algorithms}
    for number in range(budget):
        for name in algorithms:
            setting = wanted[name]
            if setting is None:
                continue
            since = time.perf_counter()
            score, gauc = runs.validated(name, setting)
            trials[name].append({
                "setting": setting, "validation_auc": score, "validation_gauc": gauc,
                "seconds": (seconds := time.perf_counter() - since),
            })  # fmt: skip
            if name not in best or score > best[name][0]:
                best[name] = score, setting
            say(f"  {number + 1:2} {name:14} {score:.4f} {gauc:.4f} {seconds:5.1f} s  {setting}")
            wanted[name] = _next(climbs[name], score)
            keep(searched={n: found(n, best[n], trials[n], lists) for n in best})
        if time.monotonic() > until or not any(wanted.values()):
            break
    return {name: setting for name, (_, setting) in best.items()}


def found(
    name: str, best: tuple[float, Setting], trials: list[Any], lists: Mapping[str, Sequence[Any]]
) -> dict[str, Any]:
    """What the search came to for one algorithm, for the file."""
    score, setting = best
    edges = [k for k, values in lists.items() if len(values) > 2 and k in setting
             and setting[k] in (min(values), max(values))]  # fmt: skip
    return {"setting": setting, "validation_auc": score, "at_the_end_of": edges, "trials": trials}


def report(
    runs: Runs, chosen: dict[str, Setting], seeds: int, until: float, keep: Any
) -> None:  # fmt: skip
    """Runs every algorithm with every seed, the seeds in the outer loop, while there is time."""
    values: dict[str, list[dict[str, float]]] = {name: [] for name in chosen}
    for seed in range(seeds):
        for name, setting in chosen.items():
            if time.monotonic() > until:
                say(f"  out of time before seed {seed} of {name}")
                return
            try:
                values[name].append(runs.tested(name, setting, seed))
            except FedrowsError as error:
                say(f"  {name}, seed {seed}: {error}")
                continue
            keep(final={n: spreads(lines) for n, lines in values.items() if lines})
            shown = "  ".join(f"{k} {v:.4f}" for k, v in values[name][-1].items())
            say(f"  seed {seed} {name:14} {shown}")


def spreads(lines: Sequence[Mapping[str, float]]) -> dict[str, Any]:
    """Mean and standard deviation of each metric over seeds, and the values."""
    return {metric: spread([line[metric] for line in lines]) for metric in METRICS}


def main(words: Sequence[str]) -> int:
    """Searches and reports every task that is named."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("tasks", nargs="+", choices=sorted(LISTS))
    parser.add_argument("--algorithms", default=",".join(ALGORITHMS))
    parser.add_argument("--seconds", type=float, default=480.0, help="for each task")
    parser.add_argument("--budget", type=int, default=BUDGET, help="trials of an algorithm")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--no-anchors", action="store_true")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    typed = parser.parse_args(words)
    for name in typed.tasks:
        begun, algorithms = time.monotonic(), [x for x in typed.algorithms.split(",") if x]
        runs = Runs(catalogue.task(name), typed.device)
        results: dict[str, Any] = {"task": name, "machine": short_facts(typed.device)}
        file = typed.out / f"recommenders_{name}.json"

        def keep(file: Path = file, results: dict[str, Any] = results, **parts: Any) -> None:
            results.update(parts)
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")

        say(f"{name}: searching for at most {SEARCH_SHARE * typed.seconds:.0f} s")
        keep(baselines=baselines(runs.whole))
        until = begun + SEARCH_SHARE * typed.seconds
        chosen = search(runs, algorithms, until, typed.budget, keep)
        order = sorted(chosen, key=lambda n: -results["searched"][n]["validation_auc"])
        say(f"{name}: {typed.seeds} seeds at the chosen settings")
        until = begun + typed.seconds
        report(runs, {n: chosen[n] for n in order}, typed.seeds, until, keep)
        if not typed.no_anchors:
            say(f"{name}: anchors")
            own = runs.task.load(runs.task.options())  # as `fedrows run TASK --anchors` has them
            keep(anchors=anchors(own, say))
        keep(seconds=time.monotonic() - begun)
        for n, one in results.get("final", {}).items():
            say(f"  {n:14} " + "  ".join(f"{m} {show(one[m])}" for m in METRICS))
        say(f"{name}: {file}")
    return 0


def show(stat: Mapping[str, Any]) -> str:
    """'0.8012 ± 0.0003'."""
    more = "" if stat["spread"] is None else f" ± {stat['spread']:.4f}"
    return f"{stat['mean']:.4f}{more}"


def say(line: str) -> None:
    """Prints at once."""
    print(line, flush=True)


def _next(one: Generator[Setting, float, None], score: float) -> Setting | None:
    """What a climb wants to try next; None at its end."""
    try:
        return one.send(score)
    except StopIteration:
        return None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
