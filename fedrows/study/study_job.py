"""One run of a study as a job: plain data in, plain data out, so that it can be made anywhere.

On a CPU a run computes on one thread and a cohort is not cut into chunks unless the plan says so.
Its numbers then do not depend on how many workers there are, or on how busy the machine is.
"""

from __future__ import annotations

import gc
import json
import time
from contextlib import nullcontext
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
from fedrows.runs.driver import InMemory, drive
from fedrows.runs.own_task import OwnData
from fedrows.runs.settings import check_clients, loaded
from fedrows.simulation import Simulation, threads
from fedrows.study.finished import StudyError, keep
from fedrows.study.jobs import ReportRound, Rounds
from fedrows.study.setting import PlannedRun, Setting, data_files
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
class RunRequest:
    """A run to make, as it travels to whoever makes it."""

    id: str
    setting: Json  # of `Setting.as_dict`
    seed: int
    device: str
    elsewhere: bool  # perhaps on another machine, which must have the same data files

    def make(self, heard: ReportRound) -> Json:
        """Makes the run; returns the content of its file."""
        planned = Setting(**self.setting).planned(self.seed)
        if self.elsewhere and planned.id != self.id:
            raise StudyError(
                f"the data files of {planned.setting.task}, or the version of fedrows, are others "
                "where it was to be made: give both machines the same"
            )
        plan = replace(planned.settings.plan, device=self.device)
        on = plan.torch_device
        data = load(planned.setting.task, **planned.setting.data)
        check_clients(plan, data)
        if on.type == "cuda":  # what the last run had there goes before this one comes
            gc.collect()
            torch.cuda.empty_cache()
        elif plan.chunk is None:  # not measured: that is not the same twice
            plan = replace(plan, chunk=plan.clients_per_round)
        since, keeper = time.perf_counter(), InMemory()
        with threads(1) if on.type == "cpu" else nullcontext():
            simulation = replace(planned.settings, plan=plan).simulation(data)
            try:
                drive(simulation, keeper, [Rounds(heard)])
            except NotFiniteError:  # that is a result too: it has no numbers from here on
                _add_empty_lines(simulation, keeper)
            facts = simulation.evaluator.facts()
        for table in facts["heat"]:
            del table["histogram"]
        return {
            "id": self.id,
            "seed": plan.seed,
            "setting": planned.setting.as_dict(),
            "config": planned.config(),
            "command": planned.command(on.type, plan.chunk),
            "device": torch.cuda.get_device_name(on) if on.type == "cuda" else "CPU",
            "torch": torch.__version__,
            "fedrows": __version__,
            "finished": datetime.now(UTC).isoformat(timespec="seconds"),
            "seconds": round(time.perf_counter() - since, 3),
            "facts": facts,
            "lines": keeper.lines(),
        }


def _add_empty_lines(simulation: Simulation, keeper: InMemory) -> None:
    """Adds a line without numbers for every evaluation that a run that diverged has left."""
    plan, last = simulation.plan, max((line["round"] for line in keeper.lines()), default=0)
    due = [*range(plan.evaluate_every, plan.rounds, plan.evaluate_every), plan.rounds]
    empty = simulation.evaluate()
    empty |= {metric: nan for metric in empty if is_metric(metric)}
    empty[DIVERGED] = True
    for round_ in (at for at in due if at > last):
        keeper.append({**empty, "round": round_})


@dataclass(frozen=True)
class StudyJob:
    """A run of a study, which is kept as one file in the study's folder."""

    id: str
    planned: PlannedRun
    folder: Path
    device: str

    @property
    def label(self) -> str:
        """What it is called in messages."""
        return self.planned.label

    @property
    def work(self) -> float:
        """How long it takes, roughly and in no unit."""
        return self.planned.work

    @property
    def rounds(self) -> int:
        """How many rounds it has."""
        return self.planned.settings.plan.rounds

    def request(self, elsewhere: bool) -> RunRequest:
        """Returns what travels."""
        setting, seed = self.planned.setting, self.planned.settings.plan.seed
        return RunRequest(self.id, setting.as_dict(), seed, self.device, elsewhere)

    def keep(self, content: Json) -> bool:
        """Writes the run's file."""
        keep(self.folder, content)
        return True
