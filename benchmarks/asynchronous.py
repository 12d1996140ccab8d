"""Virtual time to a target: synchronous rounds against rounds that do not wait.

    FEDROWS_DATA=… python benchmarks/asynchronous.py [TASK …] [--seeds 3]

For every task, kind of devices and seed:

    waiting   synchronous rounds of K clients, over-selection 1.3, by deadline
    smaller   synchronous rounds of M = K / 5 clients, so that they take as many steps as the next
    async     a step on every M updates, C = 10 M or 20 M clients at a time, by rule of staleness

All may use the same number of updates (but for Amazon's), and have the same learning rate. A run is
judged by its loss on validation examples, averaged over its last three evaluations. The target is
that of the synchronous run without a deadline. Writes results/asynchronous.json task by task, and
the tasks that were not asked for stay as they are; `python docs/make_asynchronous.py` writes the
page.
"""

from __future__ import annotations

import argparse
import copy
import itertools
import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch

from benchmarks.speed.machine import facts
from fedrows import catalogue
from fedrows.data.federation import FederatedData
from fedrows.plan import Plan
from fedrows.runs.settings import Settings, presets
from fedrows.simulation import Simulation

ALGORITHM = "boundedsubavg"
CLOCKS = ("heavy-tail", "log-normal", "constant")
DEADLINES = (None, 1.0, 2.0, 5.0)  # times the median time of an update
RULES = ("row", "version", "none")
OVER = 1.3
SMALLER = 5  # K / M
JUDGED = 4000  # validation examples, at most
RESULT = Path(__file__).parent / "results" / "asynchronous.json"


@dataclass(frozen=True)
class Setting:
    """A task as it is measured here: what differs from its presets, and why."""

    task: str
    options: Mapping[str, Any]
    plan: Mapping[str, Any]
    evaluations: int
    deadlines: tuple[float | None, ...] = DEADLINES
    smaller: tuple[float | None, ...] = (None, 2.0)  # deadlines of rounds of M clients
    concurrency: tuple[int, ...] = (10, 20)  # C / M
    rules: tuple[str, ...] = RULES
    more: int = 1  # how many times as many updates an asynchronous run may use
    why: str = ""


SETTINGS = {
    x.task: x
    for x in (
        Setting("synthetic", {"validation": 0.2}, {}, 60, why="the presets"),
        Setting(
            "movielens-mf", {},
            {"rounds": 100, "clients_per_round": 50, "lr": 2.0, "start": "zero"},
            50, deadlines=(None, 2.0, 5.0), smaller=(None,), concurrency=(20,),
            why="50 clients in a round instead of 500, 100 rounds instead of 400, a rate of 2 "
            "instead of 8 and a start at zero, to fit two cores of a CPU",
        ),
        Setting(
            "amazon", {"validation": 0.2, "history": 10}, {"rounds": 20, "clients_per_round": 50},
            10, deadlines=(None, 2.0), smaller=(), concurrency=(10,), rules=("row", "version"),
            more=3,
            why="50 clients in a round instead of 100, 20 rounds instead of 300 and histories of "
            "10 items instead of 100, to fit two cores of a CPU. This is only the beginning of "
            "training, and asynchronous runs may use three times as many updates",
        ),
    )
}  # fmt: skip
Change = Callable[[Simulation], None]
Line = tuple[float, float]  # virtual seconds, loss


@dataclass
class Bench:
    """One task with one kind of devices and one seed."""

    setting: Setting
    clock: str
    seed: int
    data: FederatedData
    base: Settings = field(init=False)

    def __post_init__(self) -> None:
        self.base = self.settings()

    def settings(self, **plan: Any) -> Settings:
        """The task's presets with the changes of the setting, and some more."""
        task, of = catalogue.task(self.setting.task), catalogue.algorithm(ALGORITHM)
        usual, own = presets(task, ALGORITHM)
        made = {**usual, **self.setting.plan, "seed": self.seed, "clock": self.clock}
        options = task.options(**self.setting.options)
        return Settings(task, options, of(**own), Plan(**{**made, "device": "cpu", **plan}))

    def lines(self, change: Change | None = None, **plan: Any) -> Iterator[Line]:
        """The time and the loss at every evaluation of a run, which may be changed before it."""
        run = self.settings(**plan).simulation(self.data)
        run.prepare()
        if change is not None:
            change(run)
        assert run.schedule is not None
        judge = copy.copy(run.evaluator)
        few = torch.arange(min(JUDGED, len(judge.validation)))
        judge.train = judge.validation.pick(few * (len(judge.validation) // len(few)))
        for _ in run:
            if run.due:
                params = run.progress.whole()
                run.evaluator.calibrate(params)  # by training examples
                yield run.schedule.clock.now, judge.train_loss(params)

    def waiting(self, deadline: float | None, smaller: int = 1) -> Iterator[Line]:
        """A synchronous run; the deadline in median times of an update."""
        plan = self.base.plan
        rounds = plan.rounds * smaller
        end = {} if deadline is None else {"deadline": deadline * self.median_update()}
        return self.lines(
            over_select=OVER, rounds=rounds, clients_per_round=plan.clients_per_round // smaller,
            evaluate_every=max(1, rounds // self.setting.evaluations), **end,
        )  # fmt: skip

    def without_waiting(
        self, rule: str, times: int, change: Change | None = None
    ) -> Iterator[Line]:
        """An asynchronous run with C = times · M."""
        plan = self.base.plan
        buffer = plan.clients_per_round // SMALLER
        rounds = plan.rounds * plan.clients_per_round // buffer * self.setting.more
        return self.lines(
            change, mode="async", buffer=buffer, concurrency=times * buffer, staleness=rule,
            rounds=rounds, evaluate_every=max(1, rounds // self.setting.evaluations),
        )  # fmt: skip

    def median_update(self) -> float:
        """How long the median client takes for an update, in virtual seconds."""
        run = self.base.simulation(self.data)
        assert run.schedule is not None
        return float(run.schedule.clock.typical.median())


def final(lines: list[Line]) -> float:
    """The loss that a run ends with."""
    return fmean(loss for _, loss in lines[-3:])


def reached(lines: list[Line], target: float) -> float | None:
    """The virtual seconds until the loss is first no higher than the target."""
    return next((now for now, loss in lines if loss <= target), None)


def outcome(lines: list[Line], target: float) -> dict[str, Any]:
    """What is kept of a run."""
    return {"seconds": reached(lines, target), "final": final(lines), "all": lines[-1][0]}


def compare(bench: Bench) -> dict[str, Any]:
    """Every kind of run; by name, what came of it."""
    setting = bench.setting
    waiting = {deadline: [*bench.waiting(deadline)] for deadline in setting.deadlines}
    target = final(waiting[None])
    smaller = {deadline: [*bench.waiting(deadline, SMALLER)] for deadline in setting.smaller}
    found: dict[str, Any] = {"target": target, "median_update": bench.median_update()}
    for name, runs in {"waiting": waiting, "smaller": smaller}.items():
        found[name] = {named(x): outcome(lines, target) for x, lines in runs.items()}
    found["async"] = {
        f"{rule}, {times}": outcome([*bench.without_waiting(rule, times)], target)
        for rule, times in itertools.product(setting.rules, setting.concurrency)
    }
    return found


def named(deadline: float | None) -> str:
    """A deadline in words."""
    return "none" if deadline is None else f"{deadline:g}"


def load(setting: Setting) -> FederatedData:
    """The data of a task."""
    task = catalogue.task(setting.task)
    return task.load(task.options(**setting.options))


def written(key: str, part: Mapping[str, Any], command: str) -> None:
    """Puts a part into the results, which keep their other parts."""
    whole = json.loads(RESULT.read_text("utf-8")) if RESULT.exists() else {}
    whole[key] = {**facts(), "command": command, **part}
    RESULT.write_text(json.dumps(whole, indent=1) + "\n", "utf-8")


def main() -> int:
    """Measures, prints and writes."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("tasks", nargs="*", default=[], help=", ".join(SETTINGS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--clocks", nargs="*", default=list(CLOCKS))
    given = parser.parse_args()
    torch.set_num_threads(1)
    since = time.monotonic()
    for task in given.tasks or SETTINGS:
        setting, runs = SETTINGS[task], {}
        data = load(setting)
        for clock in given.clocks:
            runs[clock] = []
            for seed in range(given.seeds):
                runs[clock].append(compare(Bench(setting, clock, seed, data)))
                print(f"{time.monotonic() - since:6.0f} s  {task}, {clock}, seed {seed}: "
                      f"{json.dumps(runs[clock][-1])}", flush=True)  # fmt: skip
                plan = Bench(setting, clock, 0, data).base.plan
                part = {"why": setting.why, "rounds": plan.rounds, "clients": data.clients,
                        "clients_per_round": plan.clients_per_round,
                        "buffer": plan.clients_per_round // SMALLER, "clocks": runs}  # fmt: skip
                command = f"python benchmarks/asynchronous.py {task}"
                if set(given.clocks) != set(CLOCKS):
                    command += f" --clocks {' '.join(given.clocks)}"
                written(task, part, command)
    return 0


if __name__ == "__main__":
    sys.exit(main())
