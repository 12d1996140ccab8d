"""Virtual time to a target: synchronous rounds against rounds that do not wait.

    python benchmarks/asynchronous.py [TASK …] [--seeds 3] [--out benchmarks/results]

For every kind of devices and seed: a synchronous run with over-selection 1.3 and the best of a few
deadlines, and asynchronous runs with each rule of staleness that may use as many client updates.
The target is the validation loss that the synchronous run ends with (the train loss where a task
holds out no validation examples). Writes asynchronous.json, with seeds and spread.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch

from fedrows import catalogue
from fedrows.data.federation import FederatedData
from fedrows.runs.settings import Settings, presets

CLOCKS = ("constant", "log-normal", "heavy-tail")
DEADLINES = (None, 2.0, 5.0, 20.0)  # times the median time of an update
RULES = ("row", "version", "none")
OVER = 1.3


def settings_of(task: str, algorithm: str, seed: int, **plan: Any) -> Settings:
    """The presets of a task with some changes."""
    from fedrows.plan import Plan

    found, of = catalogue.task(task), catalogue.algorithm(algorithm)
    usual, own = presets(found, algorithm)
    return Settings(found, found.options(), of(**own), Plan(**{**usual, "seed": seed, **plan}))


def curve(settings: Settings, data: FederatedData) -> list[dict[str, Any]]:
    """The metrics of a run, evaluation by evaluation."""
    run = settings.simulation(data)
    run.prepare()
    return [run.evaluate() for _ in run if run.due]


def measured(line: dict[str, Any]) -> float:
    """The loss that a run is judged by."""
    value = line.get("validation_loss")
    return float(line["train_loss"] if value is None else value)


def reached(lines: list[dict[str, Any]], target: float) -> float | None:
    """The virtual seconds until a loss is first no higher than the target."""
    return next((x["virtual_seconds"] for x in lines if measured(x) <= target), None)


def compare(task: str, clock: str, seed: int, given: argparse.Namespace) -> dict[str, Any]:
    """One kind of devices and one seed."""
    base = settings_of(task, given.algorithm, seed, clock=clock, device=given.device)
    if given.rounds:
        base = settings_of(
            task, given.algorithm, seed, clock=clock, device=given.device, rounds=given.rounds
        )
    plan, data = base.plan, base.task.load(base.options)
    every = max(1, plan.rounds // 60)
    usual = {"clock": clock, "device": given.device, "rounds": plan.rounds}
    update = median_update(base, data)

    def made(**changes: Any) -> list[dict[str, Any]]:
        changed = {**usual, "evaluate_every": every, **changes}
        return curve(settings_of(task, given.algorithm, seed, **changed), data)

    waited = {
        deadline: made(over_select=OVER, **({"deadline": deadline * update} if deadline else {}))
        for deadline in DEADLINES
    }
    # The best deadline is the one that gets to the loss of the patient run first.
    target = measured(waited[None][-1])
    times = {d: reached(lines, target) for d, lines in waited.items()}
    best = min(times, key=lambda d: times[d] if times[d] is not None else float("inf"))
    K, result = plan.clients_per_round, {}
    M = max(1, K // 5)
    for rule, times_m in itertools.product(RULES, given.concurrency):
        steps, concurrency = plan.rounds * K // M, min(times_m * M, data.clients)
        lines = made(
            over_select=1.0, mode="async", buffer=M, concurrency=concurrency, staleness=rule,
            rounds=steps, evaluate_every=every * K // M,
        )  # fmt: skip
        result[f"{rule}, C = {times_m} M"] = {
            "seconds": reached(lines, target),
            "final": measured(lines[-1]),
        }
    return {
        "target": target,
        "deadline": best,
        "sync": {"seconds": times[best], "final": measured(waited[best][-1])},
        "async": result,
    }


def median_update(settings: Settings, data: FederatedData) -> float:
    """How long the median client takes for an update, in virtual seconds."""
    run = settings.simulation(data)
    assert run.schedule is not None
    clock, everyone = run.schedule.clock, torch.arange(data.clients)
    took = clock.devices.seconds(everyone, torch.zeros_like(everyone), clock.work)
    return float(took.median())


def main() -> int:
    """Measures, prints and writes."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("tasks", nargs="*", default=["synthetic"])
    parser.add_argument("--algorithm", default="boundedsubavg")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rounds", type=int, help="synchronous rounds (default: the task's)")
    parser.add_argument("--concurrency", type=int, nargs="*", default=[5, 20], help="C / M")
    parser.add_argument("--clocks", nargs="*", default=list(CLOCKS))
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    given = parser.parse_args()
    since, found = time.monotonic(), {}
    for task, clock in itertools.product(given.tasks or ["synthetic"], given.clocks):
        runs = [compare(task, clock, seed, given) for seed in range(given.seeds)]
        found[f"{task}, {clock}"] = runs
        for name in runs[0]["async"]:
            pairs = [(x["sync"]["seconds"], x["async"][name]["seconds"]) for x in runs]
            ratios = [a / b for a, b in pairs if a and b]
            final = [x["async"][name]["final"] - x["sync"]["final"] for x in runs]
            ratio = f"{statistics.mean(ratios):.1f}" if len(ratios) == len(runs) else "–"
            print(
                f"{time.monotonic() - since:6.0f} s  {task:12} {clock:11} {name:18} "
                f"times faster {ratio:>6}   final loss {statistics.mean(final):+.4f}",
                flush=True,
            )
        given.out.mkdir(parents=True, exist_ok=True)
        path = given.out / "asynchronous.json"
        path.write_text(json.dumps({"algorithm": given.algorithm, "runs": found}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
