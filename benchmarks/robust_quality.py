"""What the bounds on single clients cost, and what they save: quality with and without liars.

    FEDROWS_DATA=… python benchmarks/robust_quality.py --out robust-quality.json

Every setting is run with the same seeds. A run ends with an AUC on held-out examples: of all
clients, and of those that are honest in the runs with liars. A liar also trains its own row, which
nobody else holds, the wrong way: its own examples say how well it harms itself, those of the others
what the bounds save. The spread is the largest difference between two seeds of the unbounded run
without liars, on the same examples. The bounds are those of a deployment: row-clip, weight-quantile
and FedSubAvg's cap. A liar sends ten times its update, with the sign turned round, and claims
100,000 examples.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import nan
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedrows import catalogue
from fedrows.algorithm import Round
from fedrows.client import Upload
from fedrows.data.federation import FederatedData
from fedrows.fleet import NO_TRAFFIC, OpenRound, Traffic
from fedrows.measure.metrics import auc
from fedrows.plan import Plan
from fedrows.rows.heat import Heat, ceiling, heat_of
from fedrows.rows.index import Index
from fedrows.rows.params import Submodels
from fedrows.runs.settings import presets
from fedrows.server import rounds
from fedrows.simulation import Simulation
from fedrows.simulator.simulated_fleet import SimulatedFleet

# Those of a deployment: of the plan, and of the algorithm.
BOUNDS, OWN = {"row_clip": 0.75, "weight_quantile": 0.25}, {"cap": "cohort"}
ROUNDS = {"movielens": 300, "amazon": 100, "synthetic": 30}
LIARS, TIMES, CLAIM = 0.05, -10.0, 100_000.0
# Name → whether clients are bounded, and the share of liars.
SETTINGS = {
    "unbounded": (False, 0.0),
    "bounded": (True, 0.0),
    "unbounded, 5 % liars": (False, LIARS),
    "bounded, 5 % liars": (True, LIARS),
}


def liars(clients: int, seed: int, share: float) -> torch.Tensor:
    """Who lies in the runs of a seed: (N,) bool."""
    draw = torch.Generator().manual_seed(seed)
    return torch.rand(clients, generator=draw) < share


class LyingFleet:
    """A simulated fleet, some of whose clients lie about their examples and their updates."""

    def __init__(self, fleet: SimulatedFleet, share: float) -> None:
        self.fleet, self.least = fleet, 0
        self.lies = liars(fleet.clients, fleet.plan.seed, share)
        claimed = fleet.data.sizes.double().masked_fill(self.lies, CLAIM)
        self.weights = claimed.clamp(max=ceiling(claimed, fleet.plan.weight_quantile))
        self._heat = {t: heat_of(x, self.weights) for t, x in fleet.data.index.items()}

    @property
    def clients(self) -> int:
        return self.fleet.clients

    def gather(self) -> None:
        """Nobody comes or goes."""

    def heat(self) -> Mapping[str, Heat]:
        return self._heat

    def draw(self, counter: int, count: int) -> torch.Tensor:
        return self.fleet.draw(counter, count)

    def open_round(self, round_: Round) -> OpenRound:
        return LyingRound(self, self.fleet.open_round(round_), round_)


@dataclass
class LyingRound:
    """A round in which the liars turn their updates round."""

    fleet: LyingFleet
    inner: OpenRound
    round: Round

    @property
    def index(self) -> Mapping[str, Index]:
        return self.inner.index

    @property
    def traffic(self) -> Traffic:
        return NO_TRAFFIC

    def train(self, start: Submodels, sent: Submodels | None) -> Upload:
        upload = self.inner.train(start, sent)
        times = torch.where(self.fleet.lies[self.round.cohort], TIMES, 1.0)
        update = upload.update.map(torch.clone)
        update.scale_(times.to(next(iter(update.rows.values())).dtype))
        return replace(upload, update=update)


def measure(
    task: str, data: FederatedData, name: str, seed: int, rounds_: int, device: str
) -> dict[str, Any]:
    """One run to its end."""
    of, (bounded, share) = catalogue.task(task), SETTINGS[name]
    plan_presets, own = presets(of, "fedsubavg")
    more: dict[str, Any] = dict(BOUNDS) if bounded else {}
    plan = Plan(**{**plan_presets, "rounds": rounds_, "seed": seed, "device": device, **more})
    algorithm = catalogue.algorithm("fedsubavg")(**own, **(OWN if bounded else {}))
    model = catalogue.model(of.model)(data, seed)
    honest = ~liars(data.clients, seed, LIARS).numpy()

    def auc_of_honest(scores: np.ndarray, label: np.ndarray, client: np.ndarray) -> float:
        own = torch.from_numpy(honest[client])
        return auc(torch.from_numpy(scores)[own], torch.from_numpy(label)[own])

    since = time.perf_counter()
    simulation = Simulation(data, model, algorithm, plan, metrics={"auc_of_honest": auc_of_honest})
    if share:
        fleet = LyingFleet(simulation.simulated, share)
        for _ in rounds(fleet, plan, simulation.progress):
            pass
    else:
        for _ in simulation:
            pass
    line = simulation.evaluate()
    return {
        "task": task,
        "setting": name,
        "seed": seed,
        "rounds": rounds_,
        "test_auc": line["test_auc"],
        "test_auc_of_honest": line["test_auc_of_honest"],
        "test_loss": line["test_loss"],
        "seconds": round(time.perf_counter() - since, 1),
    }


def summary(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Mean and spread of every setting, and how many spreads it is behind the unbounded run."""
    found = []
    for task in dict.fromkeys(line["task"] for line in lines):
        own = [line for line in lines if line["task"] == task]
        for name in SETTINGS:
            row: dict[str, Any] = {"task": task, "setting": name}
            for metric, of in (("test_auc", ""), ("test_auc_of_honest", "_of_honest")):
                base = [x[metric] for x in own if x["setting"] == "unbounded"]
                values = [x[metric] for x in own if x["setting"] == name]
                if not values:
                    break
                spread = max(base) - min(base)
                behind = statistics.mean(base) - statistics.mean(values)
                row[metric] = round(statistics.mean(values), 4)
                row[f"seeds{of}"] = [round(x, 4) for x in values]
                row[f"spreads_behind{of}"] = round(behind / spread, 2) if spread else nan
            else:
                found.append(row)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", default="movielens,amazon")
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--out", type=Path)
    typed = parser.parse_args()
    lines: list[dict[str, Any]] = []
    for task in typed.tasks.split(","):
        of = catalogue.task(task)
        data = of.load(of.options())
        for name in SETTINGS:
            for seed in map(int, typed.seeds.split(",")):
                rounds_ = typed.rounds or ROUNDS[task]
                lines.append(measure(task, data, name, seed, rounds_, typed.device))
                print(json.dumps(lines[-1]), flush=True)
        result = {
            "torch": torch.__version__,
            "device": typed.device,
            "summary": summary(lines),
            "runs": lines,
        }
        if typed.out:
            typed.out.write_text(json.dumps(result, indent=1) + "\n")
        for row in result["summary"]:
            print(row, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
