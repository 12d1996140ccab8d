"""Who makes the runs of a study: this process, processes on this machine, or any executor."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future, as_completed
from dataclasses import replace
from pathlib import Path
from threading import Lock

from fedrows.errors import PlanError
from fedrows.plan import Plan
from fedrows.study.finished import keep
from fedrows.study.making import Json, RunRequest, attempt, sentence
from fedrows.study.processes import WorkerProcesses
from fedrows.study.setting import PlannedRun

Progress = Callable[[int, int, str, int], None]  # (runs done, runs in all, label, round)
Heard = Callable[[RunRequest, int], None]


def executor_for(workers: int | None, device: str, runs: int | None = None) -> Executor | None:
    """Processes for several runs on a CPU; None, which is this process, otherwise."""
    if workers is not None and workers < 1:
        raise PlanError(f"workers is {workers}, but must be at least 1.")
    if Plan(device=device).torch_device.type == "cuda":
        return None
    count = workers or _cores()
    count = count if runs is None else min(count, runs)
    return WorkerProcesses(count) if count > 1 else None


def make(
    missing: Mapping[str, PlannedRun],
    folder: Path,
    executor: Executor | None,
    device: str,
    progress: Progress | None = None,
    before: int = 0,
) -> list[tuple[PlannedRun, str]]:
    """Makes runs, the longest first; returns those that failed, and why.

    A run is kept as soon as it is finished. before: runs done before, for the progress.
    """
    longest_first = sorted(missing.items(), key=lambda one: -one[1].work)
    requests = [
        RunRequest(id_, run.setting.as_dict(), run.settings.plan.seed, device)
        for id_, run in longest_first
    ]
    done, lock, failures = before, Lock(), dict[str, str]()

    def heard(request: RunRequest, round_: int) -> None:
        if progress is not None:
            with lock:  # workers are heard in threads of their own
                progress(done, before + len(requests), missing[request.id].label, round_)

    for request, content, why in _made(requests, executor, heard):
        if not why:
            try:
                keep(folder, content)
            except OSError as error:
                why = sentence(error)
        if why:
            failures[request.id] = why
            continue
        done += 1
        heard(request, missing[request.id].settings.plan.rounds)
    return [(run, failures[id_]) for id_, run in missing.items() if id_ in failures]


def _made(
    requests: Sequence[RunRequest], executor: Executor | None, heard: Heard
) -> Iterator[tuple[RunRequest, Json, str]]:
    """Every request as it is finished, with the content of its file or why there is none."""
    if executor is None:
        for request in requests:
            yield request, *attempt(request, _of(request, heard))
        return
    futures: dict[Future[tuple[Json, str]], RunRequest] = {}
    try:
        for request in requests:
            if isinstance(executor, WorkerProcesses):
                future = executor.submit(attempt, request, _of(request, heard))
            else:
                future = executor.submit(attempt, replace(request, elsewhere=True))
            futures[future] = request
        for future in as_completed(futures):
            try:
                content, why = future.result()
            except Exception as error:  # of the executor: a process or a machine is gone
                content, why = {}, sentence(error)
            yield futures[future], content, why
    finally:
        for future in futures:
            future.cancel()


def _of(request: RunRequest, heard: Heard) -> Callable[[int], None]:
    return lambda round_: heard(request, round_)


def _cores() -> int:
    """How many cores this process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on every system
        return os.cpu_count() or 1
