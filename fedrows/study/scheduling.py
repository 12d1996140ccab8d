"""Jobs, and who makes them: this process, processes on this machine, or any executor.

A job is a run that can be made here, in another process, or on another machine. A study's runs, a
comparison's and a search's are such. They differ in what travels and in where it is kept. A study's
run has no folder of its own until it is finished, so its round is told in the study's status.json.
"""

from __future__ import annotations

import os
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, wait
from pathlib import Path
from threading import Lock
from typing import Protocol, TypeVar

from fedrows.errors import FedrowsError, PlanError
from fedrows.files.whole import Json, unwritable
from fedrows.plan import Plan
from fedrows.runs.folder import RUNS
from fedrows.runs.status_file import EVERY, STATUS, process_facts, replace_quietly
from fedrows.study.finished import could_not
from fedrows.study.processes import WorkerProcesses
from fedrows.watch.observer import RoundReport, Watcher

LOOK_EVERY = 0.2  # seconds, whether to stop
MOST = 200  # runs that status.json names

ReportRound = Callable[[int], None]  # is told the round
J = TypeVar("J", bound="Job")


class Request(Protocol):
    """A run as it travels to whoever makes it: plain data that can be pickled."""

    def make(self, heard: ReportRound) -> Json:
        """Makes the run; returns plain data as well."""


class Job(Protocol):
    """A run to make."""

    @property
    def label(self) -> str:
        """What it is called in messages."""

    @property
    def work(self) -> float:
        """How long it takes, roughly and in no unit."""

    @property
    def rounds(self) -> int:
        """How many rounds it has."""

    def request(self, elsewhere: bool) -> Request:
        """Returns what travels. elsewhere: perhaps to another machine."""

    def keep(self, content: Json) -> bool:
        """Keeps what was made; returns False if the run was stopped before its end."""


def nobody(round_: int) -> None:
    """Hears nothing."""


def attempt(request: Request, heard: ReportRound = nobody) -> tuple[Json, str]:
    """Makes a run; returns what it came to, and why it could not be made ("" if it was).

    Whatever goes wrong comes back as text: not every error can be pickled.
    """
    try:
        return request.make(heard), ""
    except FedrowsError as error:
        return {}, sentence(error)
    except Exception as error:
        traceback.print_exc()
        return {}, sentence(error)


def sentence(error: BaseException) -> str:
    """What went wrong, in one line."""
    text = " ".join(str(error).split())
    return text if isinstance(error, FedrowsError) else f"{type(error).__name__}: {text}"


class Rounds(Watcher):
    """A watcher that tells of rounds alone."""

    def __init__(self, heard: ReportRound) -> None:
        self._heard = heard

    def round(self, report: RoundReport) -> None:
        self._heard(report.round)


ReportProgress = Callable[[int, int, str, int], None]  # (runs done, runs in all, label, round)
Here = Callable[[J, ReportRound], tuple[Json, str]]


def executor_for(workers: int | None, device: str, runs: int | None = None) -> Executor | None:
    """Processes for several runs on a CPU; None, which is this process, otherwise."""
    if workers is not None and workers < 1:
        raise PlanError(f"workers is {workers}, but must be at least 1.")
    if Plan(device=device).torch_device.type == "cuda":
        return None
    count = workers or _cores()
    count = count if runs is None else min(count, runs)
    return WorkerProcesses(count) if count > 1 else None


def made_here(job: Job, heard: ReportRound) -> tuple[Json, str]:
    """Makes a run in this process; errors come back as text."""
    return attempt(job.request(elsewhere=False), heard)


def make(
    jobs: Sequence[J],
    executor: Executor | None,
    progress: ReportProgress | None = None,
    before: int = 0,
    *,
    here: Here[J] = made_here,
    stopping: Callable[[], bool] = lambda: False,
    stop: Callable[[], None] = lambda: None,
) -> Iterator[tuple[J, Json, str]]:
    """Makes runs; yields each when it is kept or has failed, with what it came to, or why not.

    An executor begins with the longest; without one, `here` makes them one after another. before:
    runs done before, for the progress. Once `stopping` says so, no other run is begun here, and
    `stop` is called to reach those that an executor has.
    """
    done, lock = before, Lock()

    def hear(job: J, round_: int) -> None:
        if progress is not None:
            with lock:  # workers are heard in threads of their own
                progress(done, before + len(jobs), job.label, round_)

    def heard_of(job: J) -> ReportRound:
        return lambda round_: hear(job, round_)

    if executor is None:
        made = _one_by_one(jobs, heard_of, here, stopping)
    else:
        longest_first = sorted(jobs, key=lambda job: -job.work)
        made = _together(longest_first, executor, heard_of, stopping, stop)
    for job, content, why in made:
        finished = False
        if not why:
            try:
                finished = job.keep(content)
            except OSError as error:
                why = sentence(error)
        if finished:
            done += 1
            hear(job, job.rounds)
        yield job, content, why


def make_all(
    jobs: Sequence[Job],
    executor: Executor | None,
    folder: Path | None,
    progress: ReportProgress | None = None,
    before: int = 0,
) -> None:
    """Makes runs that are kept in a folder, or in memory; a StudyError names those that failed."""
    if folder is not None and jobs:
        try:
            (folder / RUNS).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise unwritable(folder, error) from error
        progress = written(folder, progress)
    failures = [(job, why) for job, _, why in make(jobs, executor, progress, before) if why]
    if failures:
        job, why = min(failures, key=lambda failure: jobs.index(failure[0]))
        where = "memory" if folder is None else str(folder)
        raise could_not(job.label, why, len(failures), len(jobs), where)


def _one_by_one(
    jobs: Sequence[J],
    heard_of: Callable[[J], ReportRound],
    here: Here[J],
    stopping: Callable[[], bool],
) -> Iterator[tuple[J, Json, str]]:
    for job in jobs:
        if stopping():
            return
        yield job, *here(job, heard_of(job))


def _together(
    jobs: Sequence[J],
    executor: Executor,
    heard_of: Callable[[J], ReportRound],
    stopping: Callable[[], bool],
    stop: Callable[[], None],
) -> Iterator[tuple[J, Json, str]]:
    futures: dict[Future[tuple[Json, str]], J] = {}
    stopped = False
    try:
        for job in jobs:
            if isinstance(executor, WorkerProcesses):
                future = executor.submit(attempt, job.request(elsewhere=False), heard_of(job))
            else:
                future = executor.submit(attempt, job.request(elsewhere=True))
            futures[future] = job
        left = set(futures)
        while left:
            ended, left = wait(left, LOOK_EVERY, FIRST_COMPLETED)
            for future in ended:
                try:
                    content, why = future.result()
                except Exception as error:  # of the executor: a process or a machine is gone
                    content, why = {}, sentence(error)
                yield futures[future], content, why
            if not stopped and stopping():
                stopped = True
                stop()
    finally:
        for future in futures:
            future.cancel()


def _cores() -> int:
    """How many cores this process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on every system
        return os.cpu_count() or 1


def written(folder: Path, progress: ReportProgress | None) -> ReportProgress:
    """The same progress, which is also written into the study's folder."""
    status = _StudyStatus(folder)

    def report(done: int, of: int, label: str, round_: int) -> None:
        status.take_in(done, of, label, round_)
        if progress is not None:
            progress(done, of, label, round_)

    return report


class _StudyStatus:
    def __init__(self, folder: Path) -> None:
        self._path, self._process, self._next = folder / STATUS, process_facts(), 0.0
        self._rounds: dict[str, int] = {}  # of the runs that are being made
        self._done = -1

    def take_in(self, done: int, of: int, label: str, round_: int) -> None:
        finished, self._done = self._done >= 0 and done > self._done, done
        self._rounds[label] = round_
        if finished:
            del self._rounds[label]
        elif len(self._rounds) > MOST:  # those that failed stay
            del self._rounds[next(iter(self._rounds))]
        if time.monotonic() >= self._next or done == of:
            self._next = time.monotonic() + EVERY
            facts = {"done": done, "of": of, "running": self._rounds, "time": time.time()}
            replace_quietly(self._path, self._process | facts)
