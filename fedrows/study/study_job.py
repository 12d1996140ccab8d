"""One run of a study as a job: plain data in, plain data out, so that it can be made anywhere.

On a CPU a run computes on one thread and a cohort is not cut into chunks unless the plan says so.
Its numbers then do not depend on how many workers there are, or on how busy the machine is.
"""

from __future__ import annotations

import gc
import json
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from math import nan
from pathlib import Path
from typing import Any

import torch

from fedrows import catalogue
from fedrows.data.federation import FederatedData
from fedrows.errors import NotFiniteError
from fedrows.files.whole import Json
from fedrows.measure.metric_choice import DIVERGED, is_metric
from fedrows.plan import Plan
from fedrows.runs.driver import InMemory, drive
from fedrows.runs.own_task import OwnData
from fedrows.runs.settings import check_clients, loaded
from fedrows.simulation import Simulation, threads
from fedrows.study.finished import StudyError, keep
from fedrows.study.scheduling import ReportRound, Rounds
from fedrows.study.setting import PlannedRun, Setting, data_files, work_of
from fedrows.version import __version__

MOST_LOADED = 8  # data sets that a process keeps

_loaded: dict[str, FederatedData] = {}  # by task, options and files


def load(task: str, **options: Any) -> FederatedData:
    """Returns a task's data; a process loads them once, unless their files change."""
    chosen = catalogue.task(task)
    made = chosen.options(**options)
    if isinstance(made, OwnData):
        return chosen.load(made)  # it is here already, and not to be kept beyond its study
    files = [[str(p), p.stat().st_size, p.stat().st_mtime_ns] for p in data_files(task, made)]
    key = json.dumps([task, options, files], sort_keys=True)
    if key not in _loaded:
        if len(_loaded) >= MOST_LOADED:
            del _loaded[next(iter(_loaded))]
        _loaded[key] = loaded(chosen, made)
    return _loaded[key]


@dataclass(frozen=True)
class StudyJob:
    """A run of a study, kept as one file in the study's folder; plain data, so that it travels."""

    id: str
    label: str
    work: float
    rounds: int
    setting: Json  # of `Setting.as_dict`
    seed: int
    folder: Path
    device: str
    elsewhere: bool = False  # perhaps on another machine, which must have the same data files

    @classmethod
    def of(cls, run: PlannedRun, folder: Path, device: str) -> StudyJob:
        """The job of a planned run."""
        plan, setting = run.settings.plan, run.setting.as_dict()
        work = work_of(run.settings)
        return cls(run.id, run.label, work, plan.rounds, setting, plan.seed, folder, device)

    def request(self, elsewhere: bool) -> StudyJob:
        return replace(self, elsewhere=elsewhere)

    def keep(self, content: Json) -> bool:
        keep(self.folder, content)
        return True

    def make(self, heard: ReportRound) -> Json:
        """Makes the run; returns the content of its file."""
        planned = Setting(**self.setting).planned(self.seed)
        if self.elsewhere and planned.id != self.id:
            raise StudyError(
                f"the data files of {planned.setting.task}, or the version of fedrows, are others "
                "where it was to be made: give both machines the same"
            )
        data = load(planned.setting.task, **planned.setting.data)
        made = TrainedRun.of(
            replace(planned.settings.plan, device=self.device),
            data,
            lambda plan: replace(planned.settings, plan=plan).simulation(data),
            heard,
        )
        if made.diverged:
            _add_empty_lines(made.simulation, made.lines)
        plan = made.simulation.plan
        with _one_thread(plan.torch_device):
            facts = made.simulation.evaluator.facts()
        for table in facts["heat"]:
            del table["histogram"]
        return {
            "id": self.id,
            "seed": plan.seed,
            "setting": planned.setting.as_dict(),
            "config": planned.config(),
            "command": planned.command(plan.torch_device.type, plan.chunk),
            **made.about,
            "finished": datetime.now(UTC).isoformat(timespec="seconds"),
            "facts": facts,
            "lines": made.lines,
        }


@dataclass(frozen=True)
class TrainedRun:
    """A run as studies and searches make it: in one go, the same on every machine."""

    simulation: Simulation
    lines: list[Json]
    diverged: bool
    about: Json  # where it was made, and in how many seconds

    @classmethod
    def of(
        cls,
        plan: Plan,
        data: FederatedData,
        build: Callable[[Plan], Simulation],
        heard: ReportRound,
    ) -> TrainedRun:
        """Trains it."""
        check_clients(plan, data)
        device = plan.torch_device
        if device.type == "cuda":  # what the last run had there goes before this one comes
            gc.collect()
            torch.cuda.empty_cache()
        elif plan.chunk is None:  # not measured: that is not the same twice
            plan = replace(plan, chunk=plan.clients_per_round)
        since, keeper, diverged = time.perf_counter(), InMemory(), False
        with _one_thread(device):
            simulation = build(plan)
            try:
                drive(simulation, keeper, [Rounds(heard)])
            except NotFiniteError:  # that is a result too
                diverged = True
        about = {
            "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU",
            "torch": torch.__version__,
            "fedrows": __version__,
            "seconds": round(time.perf_counter() - since, 3),
        }
        return cls(simulation, keeper.lines(), diverged, about)


def _one_thread(device: torch.device) -> AbstractContextManager[None]:
    """One thread on a CPU, so that numbers do not depend on how many there are."""
    return threads(1) if device.type == "cpu" else nullcontext()


def _add_empty_lines(simulation: Simulation, lines: list[Json]) -> None:
    """Adds a line without numbers for every evaluation that a run that diverged has left."""
    plan, last = simulation.plan, max((line["round"] for line in lines), default=0)
    due = [*range(plan.evaluate_every, plan.rounds, plan.evaluate_every), plan.rounds]
    empty = simulation.evaluate()
    empty |= {metric: nan for metric in empty if is_metric(metric)}
    empty[DIVERGED] = True
    for round_ in (at for at in due if at > last):
        lines.append({**empty, "round": round_})
