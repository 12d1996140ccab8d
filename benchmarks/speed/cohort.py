"""The size of the cohort does not matter to a client: logistic regression for K from 10 to 5,000.

time    microseconds of a round, by client: at each step up at most 1.1 times what it was before
memory  the most that a process of its own held beyond what it held before its first round
bytes   what a client is sent and sends back
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

from benchmarks.speed import shapes
from benchmarks.speed.bars import at_most, said
from benchmarks.speed.blocks import medians, seconds_per_round, settings
from benchmarks.speed.machine import forget_peak, peak, resident
from benchmarks.speed.models import simulated
from fedrows.algorithms.fedsubavg import FedSubAvg
from fedrows.cli.flags import Parser
from fedrows.server import begin, rounds
from fedrows.simulator import fast_paths

SIZES = (10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000)
STEP = 1.1  # how much more a client may cost in the next larger cohort
_CLIENTS = 15_000  # of a block, over all its rounds


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Measures, prints and returns what a client costs in cohorts of every size."""
    options = settings(Parser("bench cohort", (__doc__ or "").split("\n")[0]), argv, blocks=9)
    shape = shapes.ratings("cpu")
    sizes = [size for size in SIZES if size <= shape.data.clients]
    contenders = {
        str(size): (
            simulated(shapes.replace_plan(shape, clients_per_round=size)),
            -(-_CLIENTS // size),
        )
        for size in sizes
    }
    times = seconds_per_round(contenders, options.blocks)
    seconds = [medians(times)[str(size)] / size for size in sizes]
    bars = [
        at_most(f"K = {large:,} against {small:,}, time by client", after / before, STEP)
        for (small, before), (large, after) in itertools.pairwise(zip(sizes, seconds, strict=True))
    ]
    rows = [
        {"clients": size, "microseconds_per_client": 1e6 * of_client, **in_a_process(size)}
        for size, of_client in zip(sizes, seconds, strict=True)
    ]
    for row in rows:
        print(
            f"  K = {row['clients']:5,} {row['microseconds_per_client']:8.1f} µs a client   "
            f"{row['peak_bytes'] / 2**20:6.1f} MiB   {row['bytes_down']:,.0f} B down, "
            f"{row['bytes_up']:,.0f} B up a client"
        )
    for bar in bars:
        print(f"  {said(bar)}", flush=True)
    result = {"data": shape.data.name, "rows": rows, "seconds_per_round": times, "bars": bars}
    options.write(result)
    return result


def in_a_process(size: int) -> dict[str, float]:
    """What three rounds take of the memory of a fresh process, and what travels in them."""
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        return pool.submit(memory_and_bytes, size).result()


def memory_and_bytes(size: int) -> dict[str, float]:
    """Peak memory beyond what was held before the first round; bytes of the last round."""
    shape = shapes.replace_plan(shapes.ratings("cpu"), clients_per_round=size)
    model, algorithm = shape.model(), FedSubAvg()
    fleet = fast_paths.fleet(model, algorithm, shape.data, shape.plan)
    progress = begin(model, algorithm, shape.plan)
    forget_peak()
    before = resident()
    for _ in itertools.islice(rounds(fleet, shape.plan, progress), 3):
        pass
    return {
        "peak_bytes": max(0, peak() - before),
        "bytes_down": progress.bytes_down,
        "bytes_up": progress.bytes_up,
    }
