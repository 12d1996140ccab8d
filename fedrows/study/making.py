"""Makes one run of a study: plain data in, plain data out, so that it can be done anywhere.

On a CPU a run computes on one thread and a cohort is not cut into chunks unless the plan says so.
Its numbers then do not depend on how many workers there are, or on how busy the machine is.
"""

from __future__ import annotations

import gc
import json
import time
import traceback
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

import torch

from fedrows import catalogue
from fedrows.data.federation import FederatedData
from fedrows.errors import FedrowsError
from fedrows.runs.driver import InMemory, drive
from fedrows.runs.settings import check_clients
from fedrows.simulation import threads
from fedrows.study.finished import StudyError
from fedrows.study.setting import Setting, data_files
from fedrows.version import __version__
from fedrows.watch.observer import RoundReport

Json = dict[str, Any]
Heard = Callable[[int], None]  # is told the round

MOST_LOADED = 8  # data sets that a process keeps

_loaded: dict[str, FederatedData] = {}  # by task, options and files


def load(task: str, **options: Any) -> FederatedData:
    """Returns a task's data; a process loads them once, unless their files change."""
    files = [[str(p), p.stat().st_size, p.stat().st_mtime_ns] for p in data_files(task)]
    key = json.dumps([task, options, files], sort_keys=True)
    if key not in _loaded:
        if len(_loaded) >= MOST_LOADED:
            del _loaded[next(iter(_loaded))]
        chosen = catalogue.task(task)
        _loaded[key] = chosen.load(chosen.options(**options))
    return _loaded[key]


@dataclass(frozen=True)
class RunRequest:
    """A run to make, as it travels to whoever makes it."""

    id: str
    setting: Json  # of `Setting.as_dict`
    seed: int
    device: str
    elsewhere: bool = False  # perhaps on another machine, which must have the same data files


def attempt(request: RunRequest, heard: Heard | None = None) -> tuple[Json, str]:
    """Makes a run; returns the content of its file, and why it could not be made ("" if it was).

    Whatever goes wrong comes back as text: not every error can be pickled.
    """
    try:
        return _made(request, heard), ""
    except FedrowsError as error:
        return {}, sentence(error)
    except Exception as error:
        traceback.print_exc()
        return {}, sentence(error)


def _made(request: RunRequest, heard: Heard | None) -> Json:
    planned = Setting(**request.setting).planned(request.seed)
    if request.elsewhere and planned.id != request.id:
        raise StudyError(
            f"the data files of {planned.setting.task}, or the version of fedrows, are others "
            "where it was to be made: give both machines the same"
        )
    plan = replace(planned.settings.plan, device=request.device)
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
        drive(simulation, keeper, [] if heard is None else [_Rounds(heard)])
        facts = simulation.evaluator.facts()
    for table in facts["heat"]:
        del table["histogram"]
    return {
        "id": request.id,
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


class _Rounds:
    """Tells of rounds alone."""

    def __init__(self, heard: Heard) -> None:
        self._heard = heard

    def round(self, report: RoundReport) -> None:
        self._heard(report.round)

    def measured(self, line: Mapping[str, Any]) -> None:
        pass

    def event(self, name: str, fields: Mapping[str, Any]) -> None:
        pass


def sentence(error: BaseException) -> str:
    """What went wrong, in one line."""
    text = " ".join(str(error).split())
    return text if isinstance(error, FedrowsError) else f"{type(error).__name__}: {text}"
