"""Processes of one thread each on this machine, as an executor.

It differs from `ProcessPoolExecutor` in three ways that a study needs. A script that uses it needs
no `if __name__ == "__main__"`. A process that dies fails its own call and no other. And a call may
tell how far it is while it goes on.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Any

from fedrows.study.finished import StudyError

ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


class WorkerProcesses(Executor):
    """Hands calls to processes, one at a time to each; a process keeps the data it has loaded."""

    def __init__(self, count: int) -> None:
        self._threads = ThreadPoolExecutor(count, "fedrows-worker")  # one waits for each process
        self._all: list[subprocess.Popen[bytes]] = []
        self._idle: list[subprocess.Popen[bytes]] = []
        self._closed = False

    def submit(self, call: Any, /, *arguments: Any, **named: Any) -> Future[Any]:
        """Calls `call(argument, heard)` in a process, both of them importable there.

        heard stays here: it is called, in some thread, with what the call tells of itself.
        """
        return self._threads.submit(self._call, call, *arguments, **named)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Ends the processes at once, whatever they do: what a study has finished is kept."""
        self._closed = True
        for process in list(self._all):
            process.kill()
        self._threads.shutdown(wait=True, cancel_futures=True)
        for process in self._all:
            process.wait()
            for pipe in filter(None, (process.stdin, process.stdout)):
                with suppress(OSError):
                    pipe.close()

    def _call(self, call: Any, argument: Any, heard: Callable[[Any], None]) -> Any:
        process = self._free()
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            pickle.dump((call, argument), process.stdin)
            process.stdin.flush()
            while (answer := pickle.load(process.stdout))[0] == "heard":
                heard(answer[1])
        except (EOFError, OSError, pickle.UnpicklingError):  # cut short by its end
            raise StudyError(f"its process ended with code {process.wait()}") from None
        self._idle.append(process)
        return answer[1]

    def _free(self) -> subprocess.Popen[bytes]:
        """An idle process that is still alive, or a new one."""
        with suppress(IndexError):
            while (process := self._idle.pop()).poll() is not None:
                pass
            return process
        return self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        path = os.pathsep.join(folder or os.getcwd() for folder in sys.path)
        process = subprocess.Popen(
            [sys.executable, "-m", "fedrows.study.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, **ONE_THREAD, "PYTHONPATH": path},
        )
        self._all.append(process)
        if self._closed:
            process.kill()
        return process
