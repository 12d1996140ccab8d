"""One process on all threads against several that split each cohort, as under torchrun.

fedrows                  a process with all threads
fedrows, N processes     N processes on this machine, with N times fewer threads each (see `ranks`)
"""

from __future__ import annotations

import itertools
import os
import socket
from collections.abc import Sequence
from contextlib import closing
from multiprocessing.connection import Connection
from typing import Any

import torch
from torch import multiprocessing

from benchmarks.speed.bars import contest
from benchmarks.speed.blocks import seconds_per_round, settings, whole
from benchmarks.speed.models import SHAPES, Contenders, simulated
from fedrows.algorithms.fedsubavg import FedSubAvg
from fedrows.cli.flags import Parser, UsageError
from fedrows.server import begin, rounds
from fedrows.simulator import fast_paths, process_group
from fedrows.simulator.torchrun_fleet import TorchrunFleet

_COUNTS = {"lr": 100, "lstm": 1, "din": 1, "own": 10}  # rounds of a block


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Measures, prints and returns rounds/s of one process and of several."""
    parser = Parser("bench ranks", (__doc__ or "").split("\n")[0])
    names = ",".join(SHAPES)
    parser.add_argument("--only", metavar="NAMES", default="lr,lstm", help=f"Of {names}.")
    parser.add_argument("--processes", metavar="N", default="2", help="How many (default: 2).")
    options = settings(parser, argv, blocks=5)
    size = whole("--processes", options.own["processes"])
    result: dict[str, Any] = {"threads": torch.get_num_threads(), "processes": size}
    for name in options.own["only"].split(","):
        if name not in SHAPES:
            raise UsageError(f"--only names {name!r}, but must name some of {names}.")
        print(name)
        with closing(_Processes(name, size)) as split:
            one, count = simulated(SHAPES[name]("cpu")), _COUNTS[name]
            runs: Contenders = {"fedrows": (one, count)}
            runs[f"fedrows, {size} processes"] = (split, count)
            result[name] = contest(seconds_per_round(runs, options.blocks), [])
    options.write(result)
    return result


class _Processes:
    """A run in several processes, each of which waits to be told how many rounds to make."""

    def __init__(self, name: str, size: int) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        context = multiprocessing.get_context("spawn")
        self._pipes: list[Connection] = []
        self._processes = []
        for rank in range(size):
            near, far = context.Pipe()
            process = context.Process(target=_rank, args=(far, name, rank, size, port))
            process.start()
            far.close()
            self._pipes.append(near)
            self._processes.append(process)

    def __call__(self, count: int) -> None:
        for pipe in self._pipes:
            pipe.send(count)
        for pipe in self._pipes:
            pipe.recv()

    def close(self) -> None:
        """Ends the processes, rank 0 last: the others' hearts beat in its store."""
        for pipe, process in reversed(list(zip(self._pipes, self._processes, strict=True))):
            pipe.close()
            process.join()


def _rank(pipe: Connection, name: str, rank: int, size: int, port: int) -> None:
    """One process: makes as many rounds as come through the pipe, until it is closed."""
    numbers = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size}
    os.environ |= {key: str(value) for key, value in numbers.items()}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    torch.set_num_threads(process_group.cores())
    shape, algorithm = SHAPES[name]("cpu"), FedSubAvg()
    model, plan = shape.model(), shape.plan
    fleet = TorchrunFleet(
        fast_paths.fleet(model, algorithm, shape.data, plan), process_group.join()
    )
    loop = rounds(fleet, plan, begin(model, algorithm, plan))
    while True:
        try:
            count = pipe.recv()
        except EOFError:
            return
        for _ in itertools.islice(loop, count):
            pass
        pipe.send(None)
