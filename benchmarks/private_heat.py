"""MovieLens with private heat: what the noise on counts does to training.

    FEDROWS_DATA=… python benchmarks/private_heat.py --rounds 100 --seeds 0,1,2 --out heat.jsonl

Prints the train loss of FedSubAvg (the task's presets) after the last round, and the rounds that it
needs to the target, with each kind of heat. `fedrows privacy heat` has what the ways to count cost.

Noisy counts are of clients, while exact heat under the presets is of weights: a different and
larger correction, with noise or without. Hold them against the control that counts clients exactly,
or against exact heat under --weighting uniform. Capped counts alone estimate the weights.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from statistics import fmean
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from fedrows import catalogue
from fedrows.data.federation import FederatedData
from fedrows.plan import Plan
from fedrows.privacy.counting import Counting, heats
from fedrows.runs.settings import presets
from fedrows.simulation import Simulation
from fedrows.task import Task

EPSILONS = (0.5, 1.0, 2.0, 4.0, 8.0)
CONTROL = "exact, but clients counted, not weights"  # what counts of clients are to be held against


def main() -> None:
    """Prints a line for each kind of heat."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--seeds", default="0")
    parser.add_argument("--weighting", default="examples")
    parser.add_argument("--target", type=float, help="default: exact heat's last loss")
    parser.add_argument("--out")
    typed = parser.parse_args()
    task = catalogue.task("movielens")
    data = task.load(task.options())
    seeds = [*map(int, typed.seeds.split(","))]
    target = typed.target
    for name, how in kinds_of_heat(data, typed.weighting).items():
        runs = [losses(task, data, how, typed, seed) for seed in seeds]
        last = [run[-1] for run in runs]
        target = target or fmean(last)  # exact heat's, which is the first
        need = [next((r for r, x in enumerate(run, 1) if x <= target), None) for run in runs]
        print(
            f"{name:44} loss {fmean(last):.4f}  rounds to {target:.3f}: "
            + ", ".join(f"{typed.rounds}+" if r is None else str(r) for r in need),
            flush=True,
        )
        if typed.out:
            line = json.dumps({"heat": name, "seeds": seeds, "losses": runs})
            with Path(typed.out).open("a") as file:
                file.write(line + "\n")


def kinds_of_heat(data: FederatedData, weighting: str) -> dict[str, Counting | None]:
    """What is compared, by name."""
    made: dict[str, Counting | None] = {"exact": Counting(), CONTROL: None}
    for epsilon in EPSILONS:
        for coins in ("row", "value"):
            made[f"randomized-response, ε {epsilon} per {coins}"] = Counting(
                "randomized-response", epsilon, coins=coins
            )
    made["randomized-response, ε 2.0 per row, floor 1"] = Counting(
        "randomized-response", 2.0, heat_z=0, coins="row"
    )
    cap = float(data.weights(weighting).quantile(0.9))
    made[f"randomized-response, ε 2.0 per row, cap {cap:.0f}"] = Counting(
        "randomized-response", 2.0, heat_cap=cap, coins="row"
    )
    made["hashed, ε 2.0 per row"] = Counting("hashed", 2.0)
    return made


def losses(
    task: Task, data: FederatedData, how: Counting | None, typed: Any, seed: int
) -> list[float]:
    """The train loss after every round."""
    plan, own = presets(task, "fedsubavg")
    more = {"rounds": typed.rounds, "seed": seed, "device": "cpu", "weighting": typed.weighting}
    settings = Plan(**{**plan, **more})
    model = catalogue.model(task.model)(data, seed)
    run = Simulation(data, model, catalogue.algorithm("fedsubavg")(**own), settings)
    counted = heats(data, typed.weighting if how else "uniform", how or Counting())
    run.fleet._heat = {name: count.heat for name, count in counted.items()}
    return [run.evaluator.train_loss(step.whole()) for step in run]


if __name__ == "__main__":
    main()
