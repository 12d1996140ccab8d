"""Studies: algorithms × settings × seeds on a task. A study makes the runs that are missing.

study = Study.grid("synthetic", ["fedavg", "fedsubavg"], seeds=[0, 1], plan={"rounds": 100})
results = study.run("my-study")
print(results.frame())

Every finished run is one file in DIR/runs, named by a hash of what decides its numbers: a second
call makes only what is missing or changed, and a call may be stopped anywhere.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from fedrows import catalogue
from fedrows.algorithm import Algorithm
from fedrows.errors import PlanError
from fedrows.options import known_keywords
from fedrows.options import options as options_of
from fedrows.plan import Plan
from fedrows.runs.own_task import OwnTask
from fedrows.study.comparison import Comparison
from fedrows.study.finished import (
    AbsentError,
    DamagedError,
    FinishedRun,
    StudyError,
    path_of,
    read,
)
from fedrows.study.results import Results, shown_view
from fedrows.study.scheduling import ReportProgress, executor_for, make_all
from fedrows.study.setting import PlannedRun, Setting, work_of
from fedrows.study.study_job import StudyJob

__all__ = [
    "Comparison",
    "FinishedRun",
    "OwnTask",
    "Results",
    "Setting",
    "Study",
    "StudyError",
    "finished",
]

LIGHT = 5e6  # a study of less work is over before a worker has started

Say = Callable[[str], None]


class Study:
    """Settings, each to be run with every seed.

    executor: who makes the runs; processes on this machine if none is given.
    """

    @known_keywords
    def __init__(
        self, settings: Sequence[Setting], seeds: Sequence[int], executor: Executor | None = None
    ) -> None:
        self.settings, self.seeds, self.executor = list(settings), list(seeds), executor
        self.results: Results | None = None
        for what, values in (("setting", self.settings), ("seed", self.seeds)):
            if not values:
                raise PlanError(f"A study needs at least one {what}, but has none: give it one.")

    def __repr__(self) -> str:
        tasks = ", ".join(dict.fromkeys(setting.task for setting in self.settings))
        state = "not run yet" if self.results is None else f"{len(self.results.runs)} runs made"
        names = ", ".join(
            dict.fromkeys(catalogue.short(setting.algorithm) for setting in self.settings)
        )
        count = f"{len(self.settings)} settings × {len(self.seeds)} seeds"
        return f"Study({names} on {tasks}: {count}, {state})"

    def _repr_html_(self) -> str:
        """A table and the curves, for notebooks."""
        return shown_view(repr(self), [] if self.results is None else self.results.runs)

    @classmethod
    @known_keywords
    def grid(
        cls,
        task: str | OwnTask,
        algorithms: Sequence[str | type[Algorithm] | Algorithm],
        seeds: Sequence[int],
        *,
        plan: Mapping[str, Any] | None = None,
        options: Mapping[str, Mapping[str, Any]] | None = None,
        data: Mapping[str, Any] | None = None,
        model: Mapping[str, Any] | None = None,
        vary: Mapping[str, Sequence[Any]] | None = None,
        executor: Executor | None = None,
    ) -> Study:
        """Every algorithm with every combination of what varies.

        task: a task's name, or your own data and module as an `OwnTask`. algorithms: names, classes
        or instances. options: an algorithm's own, by its name. model: those of the task's model.
        vary: values of the plan's, the algorithms', the task's or its model's options; an algorithm
        that does not have one is not varied by it.
        """
        listed = [algorithms] if isinstance(algorithms, str | type | Algorithm) else algorithms
        bases = [Setting.of(task, each, plan, None, data, model=model) for each in listed]
        names = [setting.algorithm for setting in bases]
        settings = []
        with _known(bases):
            for base in bases:
                name, label = (
                    base.algorithm,
                    _label(base) if names.count(base.algorithm) > 1 else "",
                )
                own = {**base.options, **(options or {}).get(name, {})}
                kinds = {key: _kind(key, base.task, name, names) for key in vary or {}}
                varied = {key: values for key, values in (vary or {}).items() if kinds[key]}
                for combination in itertools.product(*varied.values()):
                    parts: dict[str, Any] = {
                        "plan": {**base.plan},
                        "options": {**own},
                        "data": {**base.data},
                        "model": {**base.model},
                    }
                    for key, value in zip(varied, combination, strict=True):
                        parts[kinds[key]][key] = value
                    pairs = zip(varied, combination, strict=True)
                    words = [label, *(f"{key}={value}" for key, value in pairs)]
                    settings.append(replace(base, **parts, label=" ".join(words).strip()))
        return cls(settings, seeds, executor)

    def planned(self) -> dict[str, PlannedRun]:
        """Every run by its id; settings that differ in their label alone share runs."""
        with _known(self.settings):
            every = [setting.planned(seed) for setting in self.settings for seed in self.seeds]
            return {run.id: run for run in every}

    def run(
        self,
        folder: str | Path,
        workers: int | None = None,
        say: Say | None = None,
        *,
        device: str = "auto",
        progress: ReportProgress | None = None,
    ) -> Results:
        """The results, once every run that is missing was made.

        workers: processes of one thread each, as many as there are cores if not given, unless the
        study has an executor of its own; on a GPU runs go one after another, and so do those of
        data, modules and algorithms that were given in Python. A run that fails is named at the
        end; the others are made and kept all the same.
        """
        with _known(self.settings):
            return self._run(Path(folder), self._workers(workers), say, device, progress)

    def _workers(self, workers: int | None) -> int | None:
        """How many processes; one if others could not know what this one was given."""
        if not any(setting.own for setting in self.settings):
            return workers
        if self.executor is not None or (workers or 1) > 1:
            raise PlanError(
                "Data, modules and algorithm classes that are given in Python are known to this "
                "process alone: leave workers and executor out, or name them as plug-ins."
            )
        return 1

    def _run(
        self,
        folder: Path,
        workers: int | None,
        say: Say | None,
        device: str,
        progress: ReportProgress | None,
    ) -> Results:
        planned = self.planned()
        at_hand = finished(folder, planned, say)
        missing = {id_: run for id_, run in planned.items() if id_ not in at_hand}
        if missing:
            if workers is None and sum(work_of(run.settings) for run in missing.values()) < LIGHT:
                workers = 1
            executor = self.executor or executor_for(workers, device, len(missing))
            try:
                jobs = [StudyJob.of(run, folder, device) for run in missing.values()]
                make_all(jobs, executor, folder, progress, len(at_hand))
            finally:
                if executor is not None and executor is not self.executor:
                    executor.shutdown()
            at_hand |= finished(folder, missing, say)
        runs = [(one, one.planned(seed).id) for one in self.settings for seed in self.seeds]
        self.results = Results([replace(at_hand[id_], setting=setting) for setting, id_ in runs])
        return self.results


@contextmanager
def _known(settings: Sequence[Setting]) -> Iterator[None]:
    """Makes what settings were given in Python known by its name, for a while."""
    known: dict[str, object] = {}
    with ExitStack() as stack:
        for setting in settings:
            for name, thing in (
                (setting.task, setting.own_task),
                (setting.algorithm, setting.own_algorithm),
            ):
                if thing is not None and known.setdefault(name, thing) is not thing:
                    if isinstance(thing, OwnTask):  # the same data and module, given twice
                        continue
                    raise PlanError(f"Two algorithms are called {name}: give one another name.")
            stack.enter_context(setting.known())
        yield


def _label(setting: Setting) -> str:
    """The options in which an algorithm that was given as an instance differs from its defaults."""
    of = setting.own_algorithm or catalogue.algorithm(setting.algorithm)
    usual = asdict(of())
    options = setting.options.items()
    return " ".join(f"{key}={value}" for key, value in options if usual.get(key) != value)


def finished(
    folder: Path, planned: Mapping[str, PlannedRun], say: Say | None = None
) -> dict[str, FinishedRun]:
    """Those of the runs that are in the folder, and whole."""
    runs = {}
    for id_, run in planned.items():
        try:
            runs[id_] = read(path_of(folder, id_), run.setting)
        except AbsentError:
            continue
        except DamagedError as error:
            if say is not None:
                say(f"{str(error)[:-1]}: {run.label} is run again.")
    return runs


def _kind(key: str, task: str, algorithm: str, algorithms: Sequence[str]) -> str:
    """Which part of a setting an option belongs to; "" if only other algorithms have it."""
    owners: dict[str, type] = {
        "plan": Plan,
        "options": catalogue.algorithm(algorithm),
        "data": catalogue.task(task).options,
        "model": catalogue.model_options(catalogue.task(task).model),
    }
    for kind, owner in owners.items():
        if key in {item.name for item in options_of(owner)}:
            return kind
    others = {item.name for name in algorithms for item in options_of(catalogue.algorithm(name))}
    return "" if key in others else "plan"  # where it will be refused by name
