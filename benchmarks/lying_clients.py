"""Simulated clients that lie, and runs with and without them; for the benchmarks of robustness.

A liar sends ten times its update, with the sign turned round, and claims 100,000 examples.
"""

from __future__ import annotations

import functools
import json
import multiprocessing
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
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

LIARS, TIMES, CLAIM = 0.05, -10.0, 100_000.0


@dataclass(frozen=True)
class Setting:
    """What clients are bounded by, and whether some lie."""

    plan: Mapping[str, Any] = field(default_factory=dict)  # options of the plan
    own: Mapping[str, Any] = field(default_factory=dict)  # of the algorithm
    algorithm: str = "fedsubavg"
    liars: float = 0.0


def liars(clients: int, seed: int, share: float) -> torch.Tensor:
    """Who lies in the runs of a seed: (N,) bool."""
    draw = torch.Generator().manual_seed(seed)
    return torch.rand(clients, generator=draw) < share


class LyingFleet:
    """A simulated fleet, some of whose clients lie about their examples and their updates."""

    def __init__(self, fleet: SimulatedFleet, share: float) -> None:
        self.fleet, self.least = fleet, 0
        self.lies = liars(fleet.clients, fleet.plan.seed, share)
        if fleet.plan.weighting == "uniform":
            self.weights = fleet.weights  # nobody is asked for a number of examples
        else:
            claimed = fleet.data.sizes.double().cpu().masked_fill(self.lies, CLAIM)
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
        times = torch.where(self.fleet.lies[self.round.cohort.cpu()], TIMES, 1.0)
        update = upload.update.map(torch.clone)
        update.scale_(times.to(next(iter(update.rows.values())).dtype))
        return replace(upload, update=update)


def simulation(
    task: str, data: FederatedData, setting: Setting, seed: int, rounds_: int, device: str
) -> Simulation:
    """A run with the task's presets, which also measures the examples of honest clients."""
    of = catalogue.task(task)
    plan_presets, own = presets(of, setting.algorithm)
    own = {**own, **setting.own}
    more = {"rounds": rounds_, "seed": seed, "device": device, **setting.plan}
    honest = ~liars(data.clients, seed, LIARS).numpy()

    def auc_of_honest(scores: np.ndarray, label: np.ndarray, client: np.ndarray) -> float:
        chosen = torch.from_numpy(honest[client])
        return auc(torch.from_numpy(scores)[chosen], torch.from_numpy(label)[chosen])

    return Simulation(
        data,
        catalogue.model(of.model)(data, seed),
        catalogue.algorithm(setting.algorithm)(**own),
        Plan(**{**plan_presets, **more}),
        metrics={"auc_of_honest": auc_of_honest},
    )


def run(simulated: Simulation, share: float) -> Iterator[int]:
    """Runs the rounds, and says after each of them which it was."""
    if not share:
        for progress in simulated:
            yield progress.round
        return
    fleet = LyingFleet(simulated.simulated, share)
    for progress in rounds(fleet, simulated.plan, simulated.progress):
        yield progress.round


def measured(
    simulated: Simulation, setting: Setting, part: str, at: tuple[int, ...] = ()
) -> list[dict[str, Any]]:
    """A run's metrics on its validation or test examples, after its last round and after others."""
    since, lines = time.perf_counter(), []
    for number in run(simulated, setting.liars):
        if number == simulated.plan.rounds or number in at:
            line = simulated.evaluate()
            metrics = {x: line[f"{part}_{x}"] for x in ("auc", "auc_of_honest", "loss")}
            lines.append({"round": number} | {f"{part}_{x}": y for x, y in metrics.items()})
            lines[-1]["seconds"] = round(time.perf_counter() - since, 1)
    return lines


@functools.cache
def loaded(task: str, validation: float | None = None) -> FederatedData:
    """A task's data; with this share of validation examples, if it is not the task's own."""
    of = catalogue.task(task)
    options = of.options()
    return of.load(options if validation is None else replace(options, validation=validation))


def in_processes(
    work: Callable[..., list[dict[str, Any]]],
    calls: Sequence[tuple[Any, ...]],
    workers: int,
    seconds: float,
    out: Path,
) -> None:
    """Calls a function with each of some arguments; its lines go into a file as they come.

    When the time is over nothing more is begun, and half a minute later what still runs is ended.
    """
    context = multiprocessing.get_context("spawn")
    queue, lock, until = context.Queue(), context.Lock(), time.time() + seconds
    for call in [*calls, *[None] * workers]:
        queue.put(call)
    shared = (work, queue, out, lock, until)
    processes = [context.Process(target=_take_calls, args=shared) for _ in range(workers)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(max(0.0, until + 30 - time.time()))
        process.kill()


def _take_calls(work: Callable[..., Any], queue: Any, out: Path, lock: Any, until: float) -> None:
    while time.time() < until and (call := queue.get()) is not None:
        try:
            lines = work(*call)
        except Exception as error:
            traceback.print_exc()
            lines = [{"call": str(call), "error": str(error)}]
        with lock, out.open("a", encoding="utf-8") as file:
            file.writelines(json.dumps(line) + "\n" for line in lines)
