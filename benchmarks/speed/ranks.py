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
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

import torch

from benchmarks.speed.bars import contest
from benchmarks.speed.blocks import seconds_per_round, settings, whole
from benchmarks.speed.models import SHAPES, Contenders, simulated
from benchmarks.speed.processes import Workers, orders_of
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
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        ranks = [(name, rank, size, port) for rank in range(size)]
        with closing(Workers(_rank, ranks)) as workers:
            count = _COUNTS[name]
            runs: Contenders = {"fedrows": (simulated(SHAPES[name]("cpu")), count)}
            split = partial(_in_all, workers, size)
            runs[f"fedrows, {size} processes"] = (split, count)
            result[name] = contest(seconds_per_round(runs, options.blocks), [])
    options.write(result)
    return result


def _in_all(workers: Workers, size: int, count: int) -> None:
    """Makes so many rounds, in which every rank trains its part."""
    workers([count] * size)


def _rank(pipe: Connection, name: str, rank: int, size: int, port: int) -> None:
    """One process: makes as many rounds as come through the pipe."""
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
    for count in orders_of(pipe):
        for _ in itertools.islice(loop, count):
            pass
