"""The runs that `asynchronous.py` compares: what each of them is, and how it is run.

All runs of a task use the same number of updates. A learning rate that falls does so by updates,
not by steps, so that runs with more steps do not end with a smaller one.
"""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import Any

import torch

from fedrows import catalogue
from fedrows.data.federation import FederatedData
from fedrows.plan import Plan
from fedrows.runs.settings import Settings, presets
from fedrows.simulation import Simulation

ALGORITHM = "boundedsubavg"
CLOCKS = ("heavy-tail", "constant", "log-normal")
RULES = ("row", "version", "none")
CONCURRENCY = (10, 20)  # C / M
OVER = 1.3
SMALLER = 5  # K / M
NEAR = 1.01  # the target, times the least loss of the synchronous run
SEARCH_SEED = 100  # of the runs that choose a learning rate; no measured run has it


@dataclass(frozen=True)
class Setting:
    """A task as it is measured here, and what differs from its presets."""

    task: str
    rates: tuple[float, ...]  # learning rates to choose from, times that of the plan
    options: Mapping[str, Any] = field(default_factory=dict)
    plan: Mapping[str, Any] = field(default_factory=dict)
    # Schedules of the learning rate: the rules have the first, a synchronous run can choose.
    schedules: tuple[str, ...] = ("constant",)
    deadlines: tuple[float, ...] = (1.0, 2.0, 5.0)  # in median times of an update
    # Whether a rule's rate must also reach the least loss of the synchronous run.
    as_good: bool = False
    evaluations: int = 100
    judged: int = 8_000  # examples, at most
    why: str = "the presets"


SETTINGS = {
    x.task: x
    for x in (
        Setting("synthetic", (0.5, 1, 2, 4, 8), {"validation": 0.2}),
        Setting(
            "movielens-mf", (0.25, 0.5, 1, 2), {},
            {"rounds": 200, "clients_per_round": 100, "lr": 2.0, "start": "zero"},
            why="100 clients in a round instead of 500, 200 rounds instead of 400 and a start at "
            "zero, to fit a CPU",
        ),
        Setting(
            "amazon", (0.5, 1, 2, 4, 8), {"validation": 0.2}, {"rounds": 30, "train_sample": 2_000},
            schedules=("cosine", "constant"), deadlines=(0.7, 1.0, 2.0),
            as_good=True, evaluations=15, judged=3_000,
            why="30 rounds instead of 300, since the loss is least before and then rises, with a "
            "rate that falls as a cosine; the synchronous run can also choose a constant rate",
        ),
    )
}  # fmt: skip
Change = Callable[[Simulation], None]
Line = tuple[float, float]  # virtual seconds, loss


@dataclass(frozen=True)
class Run:
    """One run of one task.

    kind: waiting (rounds of K clients), smaller (rounds of M clients), or a rule of staleness.
    """

    task: str
    clock: str
    seed: int
    kind: str
    rate: float = 1  # times that of the plan
    schedule: str = "constant"  # of the rate
    deadline: float | None = None  # in median times of an update
    times: int = 0  # C / M
    smaller: int = SMALLER  # K / M
    over: float = OVER  # how many times K clients a synchronous round asks

    @property
    def waits(self) -> bool:
        """Whether it is synchronous."""
        return self.kind not in RULES

    @property
    def searches(self) -> bool:
        """Whether it only serves to choose a learning rate."""
        return self.seed == SEARCH_SEED

    @property
    def name(self) -> str:
        """What the results call it among the runs of its kind, clock and seed."""
        if self.waits:
            return "none" if self.deadline is None else f"{self.deadline:g}"
        return f"{self.kind}, {self.times}"

    @property
    def named_rate(self) -> str:
        """What the results call it among the runs that choose a rate."""
        return f"{self.rate:g}" + f", {self.schedule}" * (self.schedule != "constant")


def deadlines(task: str, clock: str) -> tuple[float | None, ...]:
    """Deadlines of synchronous rounds, in median times of an update.

    Equal devices take nearly equally long, so that no deadline helps.
    """
    return (None,) if clock == "constant" else (None, *SETTINGS[task].deadlines)


def searched(task: str, clock: str, kind: str) -> list[Run]:
    """The runs that choose a learning rate: at the largest concurrency, and without a deadline."""
    times = 0 if kind == "waiting" else CONCURRENCY[-1]
    setting = SETTINGS[task]
    among = setting.schedules if kind == "waiting" else setting.schedules[:1]
    return [
        Run(task, clock, SEARCH_SEED, kind, rate, schedule, times=times)
        for schedule, rate in itertools.product(among, setting.rates)
    ]


def measured(seed: int, chosen: Mapping[str, Run]) -> list[Run]:
    """The runs that are compared, of the kinds whose learning rate is chosen."""
    runs = []
    for kind, best_rate in chosen.items():
        run = replace(best_rate, seed=seed)
        if kind == "waiting":
            runs += [replace(run, deadline=x) for x in deadlines(run.task, run.clock)]
            if run.clock == "heavy-tail":
                runs.append(replace(run, kind="smaller"))
        else:
            runs += [replace(run, times=x) for x in CONCURRENCY]
    return runs


@dataclass
class Bench:
    """One task on one device."""

    setting: Setting
    data: FederatedData
    device: str = "cpu"

    def settings(self, run: Run, **plan: Any) -> Settings:
        """The task's presets with the changes of the setting and the run, and some more."""
        task, of = catalogue.task(self.setting.task), catalogue.algorithm(ALGORITHM)
        usual, own = presets(task, ALGORITHM)
        usual = {**usual, **self.setting.plan}
        made = {**usual, "seed": run.seed, "clock": run.clock, "lr": run.rate * usual["lr"],
                "lr_schedule": run.schedule}  # fmt: skip
        options = task.options(**self.setting.options)
        return Settings(task, options, of(**own), Plan(**{**made, "device": self.device, **plan}))

    def lines(self, run: Run, change: Change | None = None) -> Iterator[Line]:
        """The time and the loss at every evaluation of a run, which may be changed before it.

        The loss is that of validation examples if the run serves to choose a learning rate, and
        of test examples if not.
        """
        simulation = self.settings(run, **self.plan(run)).simulation(self.data)
        simulation.prepare()
        if change is not None:
            change(simulation)
        assert simulation.schedule is not None
        judge = copy.copy(simulation.evaluator)
        examples = judge.validation if run.searches else judge.test
        few = torch.arange(min(self.setting.judged, len(examples)), device=examples.label.device)
        judge.train = examples.pick(few * (len(examples) // len(few)))
        for _ in simulation:
            if simulation.due:
                params = simulation.progress.whole()
                simulation.evaluator.calibrate(params)  # by training examples
                yield simulation.schedule.clock.now, judge.train_loss(params)

    def plan(self, run: Run) -> dict[str, Any]:
        """What the plan of a run has that the task's has not."""
        plan = self.settings(run).plan
        parts = 1 if run.kind == "waiting" else run.smaller
        rounds, count = plan.rounds * parts, plan.clients_per_round // parts
        made = {"rounds": rounds, "lr_decay": plan.lr_decay ** (1 / parts),
                "evaluate_every": max(1, rounds // self.setting.evaluations)}  # fmt: skip
        if not run.waits:
            return {**made, "mode": "async", "buffer": count, "staleness": run.kind,
                    "concurrency": run.times * count}  # fmt: skip
        made |= {"clients_per_round": count, "over_select": run.over}
        if run.deadline is not None:
            made["deadline"] = run.deadline * self.median_update(run.clock, run.seed)
        return made

    def median_update(self, clock: str, seed: int) -> float:
        """How long the median client takes for an update, in virtual seconds."""
        run = Run(self.setting.task, clock, seed, "waiting")
        schedule = self.settings(run).simulation(self.data).schedule
        assert schedule is not None
        return float(schedule.clock.typical.median())


def best(lines: Sequence[Line]) -> float:
    """The least loss of a run: the mean of three evaluations; infinite if it has diverged."""
    losses = [math.inf if math.isnan(loss) else loss for _, loss in lines]
    return min(fmean(losses[i : i + 3]) for i in range(max(1, len(losses) - 2)))


def reached(lines: Sequence[Line], target: float) -> float | None:
    """The virtual seconds until the loss is first no higher than the target."""
    return next((now for now, loss in lines if loss <= target), None)


def outcome(lines: Sequence[Line], target: float) -> dict[str, Any]:
    """What is kept of a run."""
    return {"seconds": reached(lines, target), "best": best(lines)}


def bench_of(task: str, device: str = "cpu") -> Bench:
    """A task with its data."""
    setting, named = SETTINGS[task], catalogue.task(task)
    return Bench(setting, named.load(named.options(**setting.options)), device)
