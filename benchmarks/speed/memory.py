"""A long run does not grow: memory after round 100 and after round 1,000, in a fresh process each.

lr   logistic regression at MovieLens' shapes
own  a module with no layer of fedrows in it
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

from benchmarks.speed.bars import at_most, said
from benchmarks.speed.blocks import settings, whole
from benchmarks.speed.machine import resident
from benchmarks.speed.models import SHAPES, simulated
from fedrows.cli.flags import Parser, UsageError

MODELS = ("lr", "own")
EVERY = 100  # rounds between two looks
GROWTH = 0.02


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Measures, prints and returns how the resident memory of long runs grows."""
    parser = Parser("bench memory", (__doc__ or "").split("\n")[0])
    parser.add_argument("--rounds", metavar="N", default=1_000, help="Rounds (default: 1000).")
    options = settings(parser, argv, blocks=1)
    count = whole("--rounds", options.own["rounds"])
    if count < 2 * EVERY:
        raise UsageError(f"--rounds is {count}, but must be at least {2 * EVERY}.")
    held, bars = {}, []
    for model in MODELS:
        with ProcessPoolExecutor(1, get_context("spawn")) as pool:
            held[model] = pool.submit(watch, model, count).result()
        first, last = held[model][0], held[model][-1]
        last_round = EVERY * len(held[model])
        what = f"{model}, growth of memory from round {EVERY} to round {last_round:,}"
        bars.append(at_most(what, abs(last - first) / first, GROWTH))
        print(f"  {model:4} " + " ".join(f"{x / 2**20:.0f}" for x in held[model]) + " MiB")
        print(f"  {said(bars[-1])}", flush=True)
    result = {"every": EVERY, "resident_bytes": held, "bars": bars}
    options.write(result)
    return result


def watch(model: str, count: int) -> list[int]:
    """Resident memory after every hundred rounds."""
    run, held = simulated(SHAPES[model]("cpu")), []
    for _ in range(count // EVERY):
        run(EVERY)
        held.append(resident())
    return held
