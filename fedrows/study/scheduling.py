"""Who makes jobs: this process, processes on this machine, or any executor."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, wait
from threading import Lock
from typing import TypeVar

from fedrows.errors import PlanError
from fedrows.files.whole import Json
from fedrows.plan import Plan
from fedrows.study.jobs import Job, ReportRound, attempt, sentence
from fedrows.study.processes import WorkerProcesses

LOOK_EVERY = 0.2  # seconds, whether to stop

J = TypeVar("J", bound=Job)
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
