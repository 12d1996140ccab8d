"""Who makes the runs of a study: this process, or workers of one thread each.

Workers are processes of their own (`fedrows.study.worker`), so a script needs no main guard, and
one that dies takes nothing with it but its run.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from typing import Any, Protocol

from fedrows.errors import FedrowsError
from fedrows.study.bench import Bench, sentence
from fedrows.study.setting import Settled


@dataclass(frozen=True)
class Job:
    """A run to make."""

    id: str
    settled: Settled
    folder: Path
    device: str


class Ear(Protocol):
    """Whoever is told how the jobs go."""

    def round(self, job: Job, at: int) -> None:
        """A job has done some rounds."""

    def done(self, job: Job) -> None:
        """A job's run is in its file."""

    def failed(self, job: Job, why: str) -> None:
        """A job came to nothing."""


class Crew(Protocol):
    """Those who make runs, and keep what they have loaded from one study to the next."""

    def make(self, jobs: Sequence[Job], ear: Ear) -> None:
        """Makes all of them, in about this order."""

    def close(self) -> None:
        """Stops whatever goes on."""


class Alone:
    """One run after another, in this process: on a GPU, or on one core."""

    def __init__(self, bench: Bench | None = None) -> None:
        self._bench = bench or Bench()

    def make(self, jobs: Sequence[Job], ear: Ear) -> None:
        for job in jobs:
            heard = _heard(job, ear)
            try:
                self._bench.make(job.folder, job.id, job.settled, job.device, heard)
            except Exception as error:
                if not isinstance(error, FedrowsError):
                    traceback.print_exc()
                ear.failed(job, sentence(error))
            else:
                ear.done(job)

    def close(self) -> None:
        pass


def _heard(job: Job, ear: Ear) -> Callable[[int], None]:
    return lambda at: ear.round(job, at)


class Workers:
    """Several processes."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._events: SimpleQueue[tuple[_Worker, dict[str, Any] | None]] = SimpleQueue()
        self._idle: list[_Worker] = []
        self._all: list[_Worker] = []

    def make(self, jobs: Sequence[Job], ear: Ear) -> None:
        waiting, busy = list(reversed(jobs)), dict[_Worker, Job]()
        try:
            while waiting or busy:
                while waiting and len(busy) < self._count:
                    worker = self._idle.pop() if self._idle else self._hire()
                    busy[worker] = job = waiting.pop()
                    worker.give(job)
                worker, event = self._events.get()
                if worker not in busy:  # one that was idle, or is of an earlier crew, has died
                    self._idle = [one for one in self._idle if one is not worker]
                    continue
                job = busy[worker]
                if event is None:
                    del busy[worker]
                    ear.failed(job, f"its process ended with code {worker.code()}")
                elif event["event"] == "round":
                    ear.round(job, event["round"])
                else:
                    del busy[worker]
                    self._idle.append(worker)
                    if event["event"] == "done":
                        ear.done(job)
                    else:
                        ear.failed(job, event["why"])
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        for worker in self._all:
            worker.end()
        self._all, self._idle = [], []

    def _hire(self) -> _Worker:
        self._all.append(_Worker(self._events))
        return self._all[-1]


class _Worker:
    """A process, and a thread that listens to it."""

    def __init__(self, events: SimpleQueue[tuple[_Worker, dict[str, Any] | None]]) -> None:
        one = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
        path = os.pathsep.join(place or os.getcwd() for place in sys.path)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "fedrows.study.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, **one, "PYTHONPATH": path},
            encoding="utf-8",
        )
        self._events = events
        self._listener = Thread(target=self._listen, daemon=True)
        self._listener.start()

    def give(self, job: Job) -> None:
        """Sends a job; one who has died is heard of by the thread."""
        sent = {
            "id": job.id,
            "setting": job.settled.setting.as_dict(),
            "seed": job.settled.plan.seed,
            "folder": str(job.folder),
            "device": job.device,
        }
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            print(json.dumps(sent), file=self._process.stdin, flush=True)

    def code(self) -> int:
        """The exit code."""
        return self._process.wait()

    def end(self) -> None:
        """Stops it at once."""
        self._process.kill()
        self._process.wait()
        self._listener.join()
        assert self._process.stdin is not None
        with suppress(OSError):
            self._process.stdin.close()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                with suppress(ValueError):  # cut short by its end
                    self._events.put((self, json.loads(line)))
        self._events.put((self, None))
