"""A study: a task × algorithms × settings × seeds. It runs what is missing, and yields the numbers.

study = Study.grid("synthetic", ["fedavg", "fedsubavg"], seeds=[0, 1], plan={"rounds": 100})
results = study.run("my-study")
print(study.frame())

Every finished run is one file in DIR/runs, named by a hash of what decides its numbers: a second
call makes only what is missing or changed, and a call may be stopped anywhere.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fedrows import catalogue
from fedrows.errors import PlanError
from fedrows.options import options as options_of
from fedrows.plan import Plan
from fedrows.runs.folder import RUNS, unwritable
from fedrows.study.bench import Bench
from fedrows.study.crew import Alone, Crew, Job, Workers
from fedrows.study.kept import AbsentError, DamagedError, Run, StudyError, place_of, read
from fedrows.study.setting import Setting, Settled

__all__ = ["Results", "Run", "Setting", "Study", "StudyError", "crew_for", "kept", "make"]

LIGHT = 5e6  # a study of less work is over before a worker has started

Say = Callable[[str], None]
Progress = Callable[[int, int, str, int], None]  # (runs done, runs in all, label, round)


@dataclass
class Study:
    """Settings, each to be run with every seed."""

    settings: Sequence[Setting]
    seeds: Sequence[int]
    results: Results | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        self.settings, self.seeds = list(self.settings), list(self.seeds)
        if not self.settings or not self.seeds:
            raise PlanError("A study needs at least one setting and one seed: it has none.")

    @classmethod
    def grid(
        cls,
        task: str,
        algorithms: Sequence[str],
        seeds: Sequence[int],
        *,
        plan: Mapping[str, Any] | None = None,
        options: Mapping[str, Mapping[str, Any]] | None = None,
        data: Mapping[str, Any] | None = None,
        vary: Mapping[str, Sequence[Any]] | None = None,
    ) -> Study:
        """Every algorithm with every combination of what varies.

        options: an algorithm's own, by its name. vary: values of the plan's, the algorithms' or
        the task's options; an algorithm that does not have one is not varied by it.
        """
        found = []
        for name in algorithms:
            own = dict((options or {}).get(name, {}))
            kinds = {key: _kind(key, task, name, algorithms) for key in vary or {}}
            mine = {key: values for key, values in (vary or {}).items() if kinds[key]}
            for combination in itertools.product(*mine.values()):
                parts = {"plan": dict(plan or {}), "options": dict(own), "data": dict(data or {})}
                for key, value in zip(mine, combination, strict=True):
                    parts[kinds[key]][key] = value
                words = [f"{key}={value}" for key, value in zip(mine, combination, strict=True)]
                found.append(Setting(task, name, **parts, label=" ".join(words)))
        return cls(found, seeds)

    def wanted(self) -> dict[str, Settled]:
        """Every run by its id; settings that differ in their label alone share runs."""
        every = [its.settled(seed) for its in self.settings for seed in self.seeds]
        return {one.id: one for one in every}

    def ids(self) -> dict[str, tuple[Setting, int]]:
        """The setting and the seed of every run, by its id."""
        return {run: (one.setting, one.plan.seed) for run, one in self.wanted().items()}

    def run(
        self,
        folder: str | Path,
        workers: int | None = None,
        say: Say | None = None,
        *,
        device: str = "auto",
        progress: Progress | None = None,
        crew: Crew | None = None,
    ) -> Results:
        """The results, once every run that is missing was made.

        workers: processes of one thread each, as many as there are cores if not given; on a GPU
        runs go one after another. crew: whoever makes the runs, if they are to be kept for another
        study. A run that fails is named at the end; the others are made and kept all the same.
        """
        folder, wanted = Path(folder), self.wanted()
        found = kept(folder, wanted, say)
        missing = {run: one for run, one in wanted.items() if run not in found}
        if missing:
            _open(folder)
            if workers is None and sum(one.work for one in missing.values()) < LIGHT:
                workers = 1
            hired = crew or crew_for(workers, device, len(missing))
            try:
                failures = make(missing, folder, hired, device, progress, len(found))
            finally:
                if crew is None:
                    hired.close()
            if failures:
                raise _failure(failures, len(missing), folder)
            found |= kept(folder, missing, say)
        self.results = Results(
            [
                replace(found[its.settled(seed).id], setting=its)
                for its in self.settings
                for seed in self.seeds
            ]
        )
        return self.results

    def frame(self, package: str = "polars") -> Any:
        """The tidy frame of the last run: see `Results.frame`."""
        return self._had().frame(package)

    def page(self, path: str | Path, title: str = "A study") -> Path:
        """Writes the page of the last run into a folder: see `Results.page`."""
        return self._had().page(path, title)

    def _had(self) -> Results:
        if self.results is None:
            raise StudyError("The study has no results yet: call its run(folder) first.")
        return self.results


@dataclass(frozen=True)
class Results:
    """The finished runs of a study, setting by setting, seed by seed."""

    runs: list[Run]

    def of(self, setting: Setting) -> list[Run]:
        """The runs of a setting, by seed."""
        return list({run.id: run for run in self.runs if run.setting == setting}.values())

    def __iter__(self) -> Iterator[Run]:
        return iter(self.runs)

    def frame(self, package: str = "polars") -> Any:
        """A row per setting, seed and evaluated round, in polars or pandas."""
        from fedrows.study.frame import frame

        return frame(self.runs, package)

    def page(self, path: str | Path, title: str = "A study") -> Path:
        """Writes index.html, results.md, figures and data into a folder; gives the page's path."""
        from fedrows.study.page import write

        return write(self.runs, Path(path), title)


def kept(folder: Path, wanted: Mapping[str, Settled], say: Say | None = None) -> dict[str, Run]:
    """Those of the runs that are in the folder, and whole."""
    found = {}
    for run, one in wanted.items():
        try:
            found[run] = read(place_of(folder, run), one.setting)
        except AbsentError:
            continue
        except DamagedError as error:
            if say is not None:
                say(f"{str(error)[:-1]}: {one.label} is run again.")
    return found


def make(
    missing: Mapping[str, Settled],
    folder: Path,
    crew: Crew,
    device: str,
    progress: Progress | None = None,
    before: int = 0,
) -> list[tuple[Job, str]]:
    """Makes runs, the longest first; gives those that failed, and why. before: runs done before."""
    jobs = [Job(run, one, folder, device) for run, one in missing.items()]
    ear = _Ear(before, before + len(jobs), progress)
    crew.make(sorted(jobs, key=lambda job: -job.settled.work), ear)
    place = {job.id: number for number, job in enumerate(jobs)}
    return sorted(ear.failures, key=lambda failure: place[failure[0].id])  # not as workers ended


def crew_for(
    workers: int | None, device: str, jobs: int | None = None, bench: Bench | None = None
) -> Crew:
    """Whoever makes runs best: processes for several on a CPU, this process otherwise."""
    if workers is not None and workers < 1:
        raise PlanError(f"workers is {workers}, but must be at least 1.")
    if Plan(device=device).torch_device.type == "cuda":
        return Alone(bench)
    count = workers or _cores()
    count = count if jobs is None else min(count, jobs)
    return Workers(count) if count > 1 else Alone(bench)


def _cores() -> int:
    """How many cores this process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on every system
        return os.cpu_count() or 1


def _kind(key: str, task: str, algorithm: str, algorithms: Sequence[str]) -> str:
    """Which part of a setting an option belongs to; "" if only other algorithms have it."""
    owners: dict[str, type] = {
        "plan": Plan,
        "options": catalogue.algorithm(algorithm),
        "data": catalogue.task(task).options,
    }
    for kind, owner in owners.items():
        if key in {item.name for item in options_of(owner)}:
            return kind
    others = {item.name for name in algorithms for item in options_of(catalogue.algorithm(name))}
    return "" if key in others else "plan"  # where it will be refused by name


def _open(folder: Path) -> None:
    """Makes the folder for runs before any of them is."""
    try:
        (folder / RUNS).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise unwritable(folder, error) from error


class _Ear:
    """Counts the runs of a study."""

    def __init__(self, done: int, of: int, progress: Progress | None) -> None:
        self._done, self._of, self._progress = done, of, progress
        self.failures: list[tuple[Job, str]] = []

    def round(self, job: Job, at: int) -> None:
        if self._progress is not None:
            self._progress(self._done, self._of, job.settled.label, at)

    def done(self, job: Job) -> None:
        self._done += 1
        self.round(job, job.settled.plan.rounds)

    def failed(self, job: Job, why: str) -> None:
        self.failures.append((job, why))


def _failure(failures: list[tuple[Job, str]], of: int, folder: Path) -> StudyError:
    job, why = failures[0]
    others = f", and {len(failures) - 1} more like it," if len(failures) > 1 else ""
    return StudyError(
        f"{job.settled.label}{others} could not be run ({why.rstrip('.')}): {of - len(failures)} "
        f"other runs were made and are kept in {folder}."
    )
