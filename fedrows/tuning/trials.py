"""One trial: a short or a whole run that never sees a test example, made here or anywhere.

What is tuned is a task, or data and a module of the user's own. Both come to a run that can be
pickled, and that says what decides its numbers.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

from fedrows import catalogue
from fedrows.algorithm import Algorithm
from fedrows.catalogue import FROM
from fedrows.data.federation import FederatedData
from fedrows.files.whole import Json
from fedrows.measure.metric_choice import TEST
from fedrows.plan import Plan
from fedrows.runs.own_task import OwnTask
from fedrows.runs.settings import Settings, from_config
from fedrows.simulation import Simulation
from fedrows.study.finished import keep
from fedrows.study.scheduling import ReportRound
from fedrows.study.setting import files_of, work_in, work_of
from fedrows.study.study_job import TrainedRun, load
from fedrows.tuning.space import TriedValues

FORMAT = 1  # grows when the same trial comes to other numbers
MACHINE = ("device", "threads", "deterministic")  # of the plan: no part of a trial's name


class Tunable(Protocol):
    """A run that may be tried with other values; plain enough to be pickled."""

    @property
    def plan(self) -> Plan: ...

    @property
    def algorithm(self) -> Algorithm: ...

    def with_values(self, values: Mapping[str, Any], **plan: Any) -> Tunable:
        """The same run with other options, of the algorithm or of the plan; raises a PlanError."""

    def data(self) -> FederatedData:
        """The federation, test examples included."""

    def simulation(self, data: FederatedData, plan: Plan) -> Simulation:
        """The run before its first round."""

    def decides(self) -> Json:
        """What decides its numbers, beside the plan and the algorithm's options."""

    @property
    def work(self) -> float:
        """How long it takes, roughly and in no unit."""


@dataclass(frozen=True)
class TaskRun:
    """A run of a task, as config.json has it."""

    config: Json

    def __reduce__(self) -> tuple[type[TaskRun], tuple[Json]]:
        return TaskRun, (self.config,)  # what it has found by name stays here

    @cached_property
    def settings(self) -> Settings:
        """The run with everything found by its name."""
        [settings] = from_config(self.config, Path("tune")).values()
        return settings

    @property
    def plan(self) -> Plan:
        return self.settings.plan

    @property
    def algorithm(self) -> Algorithm:
        return self.settings.algorithm

    def with_values(self, values: Mapping[str, Any], **plan: Any) -> TaskRun:
        algorithm, new = _replaced(self.algorithm, self.plan, values, plan)
        return TaskRun(replace(self.settings, algorithm=algorithm, plan=new).config())

    def data(self) -> FederatedData:
        return load(self.settings.task.name, **asdict(self.settings.options))

    def simulation(self, data: FederatedData, plan: Plan) -> Simulation:
        return replace(self.settings, plan=plan).simulation(data)

    def decides(self) -> Json:
        settings = self.settings
        config = json.loads(json.dumps(self.config))
        for plugin in ("task", "algorithm"):  # where its file lies decides no numbers
            config[plugin].pop(FROM, None)
        builder = catalogue.builder(settings.task.model)
        plugins = (type(settings.algorithm), settings.task.load, builder)
        code = [file for plugin in plugins if (file := catalogue.code_of(plugin))]
        rest = {key: config[key] for key in config.keys() - {"plan", "algorithm", "torch"}}
        return {**rest, "files": files_of(settings.task.name, settings.options), "code": code}

    @property
    def work(self) -> float:
        return work_of(self.settings)


@dataclass(frozen=True, eq=False)
class ModuleRun:
    """A run on data and a module of the user's own."""

    own: OwnTask
    algorithm: Algorithm
    plan: Plan

    def with_values(self, values: Mapping[str, Any], **plan: Any) -> ModuleRun:
        algorithm, new = _replaced(self.algorithm, self.plan, values, plan)
        algorithm.check_plan(new)
        return replace(self, algorithm=algorithm, plan=new)

    def data(self) -> FederatedData:
        return self.own.data

    def simulation(self, data: FederatedData, plan: Plan) -> Simulation:
        return Simulation(data, self.own.model(), self.algorithm, plan, metrics=self.own.metrics)

    def decides(self) -> Json:
        code = catalogue.code_of(type(self.algorithm))
        digest = self.own.digest(without_test(self.own.data))  # which have no say
        return {"own": digest, **({"code": code} if code else {})}

    @property
    def work(self) -> float:
        return work_in(self.plan)


def trial_id(run: Tunable, tests: bool) -> str:
    """A hash of everything that decides a trial's numbers. tests: whether it is tested as well."""
    plan = {name: value for name, value in asdict(run.plan).items() if name not in MACHINE}
    decides = {
        "tune": FORMAT,
        "tests": tests,
        "algorithm": [run.algorithm.name, asdict(run.algorithm)],
        "plan": plan,
        **run.decides(),
    }
    text = json.dumps(decides, sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


@dataclass(frozen=True)
class TrialJob:
    """A trial to make, which is kept as one file in a folder, or by whoever asked for it."""

    id: str
    run: Tunable
    values: TriedValues
    device: str
    tests: bool = False
    folder: Path | None = None
    done: dict[str, Json] = field(default_factory=dict, compare=False)  # gets what was made, by id

    @cached_property
    def label(self) -> str:
        words = " ".join(f"{name} {show(value)}" for name, value in self.values.items())
        return f"{self.run.algorithm.name} {words}, {self.rounds} rounds"

    @property
    def work(self) -> float:
        return self.run.work

    @property
    def rounds(self) -> int:
        return self.run.plan.rounds

    def request(self, elsewhere: bool) -> TrialJob:
        return replace(self, folder=None, done={})

    def keep(self, content: Json) -> bool:
        self.done[self.id] = content
        if self.folder is not None:
            keep(self.folder, content)
        return True

    def make(self, heard: ReportRound) -> Json:
        """Makes the trial; returns the content of its file."""
        data = self.run.data()
        seen = data if self.tests else without_test(data)
        plan = replace(self.run.plan, device=self.device)
        made = TrainedRun.of(plan, data, lambda plan: self.run.simulation(seen, plan), heard)
        return {
            "id": self.id,
            "algorithm": self.run.algorithm.name,
            "values": self.values,
            "rounds": plan.rounds,
            "seed": plan.seed,
            "lines": [_without(line, self.tests) for line in made.lines],
            "diverged": made.diverged,
            **made.about,
        }


def without_test(data: FederatedData) -> FederatedData:
    """The same federation without its test examples: what a search may see."""
    return replace(data, test=data.test.none())


def show(value: Any) -> str:
    """A value as people write it."""
    return f"{value:g}" if isinstance(value, float) else str(value)


def _without(line: Json, tests: bool) -> Json:
    """A line without the buckets, and without what there is of test examples if none were asked."""
    return {
        key: value
        for key, value in line.items()
        if key != "buckets" and (tests or not key.startswith(f"{TEST}_"))
    }


def _replaced(
    algorithm: Algorithm, plan: Plan, values: Mapping[str, Any], more: Mapping[str, Any]
) -> tuple[Algorithm, Plan]:
    own = {item for item in asdict(algorithm)}
    new = replace(algorithm, **{name: value for name, value in values.items() if name in own})
    rest = {name: value for name, value in values.items() if name not in own}
    return new, replace(plan, **{**rest, **more})
