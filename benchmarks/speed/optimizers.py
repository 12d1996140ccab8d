"""What another optimiser at the client costs: rounds with each, against rounds with SGD.

MovieLens' logistic regression, whose steps are the cheapest, and a user's own module. Adam is to
cost at most 1.5 times as much as SGD.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from benchmarks.speed import shapes
from benchmarks.speed.bars import at_most, said
from benchmarks.speed.blocks import medians, seconds_per_round, settings
from benchmarks.speed.models import simulated
from fedrows.cli.flags import Parser
from fedrows.optimizers.local_optimizer import OPTIMIZERS

BAR = 1.5  # what Adam may cost, SGD being 1
_SHAPES = {"lr": (shapes.ratings, 30), "own": (shapes.own, 5)}  # and the rounds of a block


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Measures, prints and returns the seconds of a round with each optimiser."""
    parser = Parser("bench optimizers", (__doc__ or "").split("\n")[0])
    parser.add_argument("--device", metavar="NAME", default="cpu", help="cpu (default) or cuda.")
    options = settings(parser, argv, blocks=9)
    times, bars = {}, []
    for name, (make, count) in _SHAPES.items():
        shape = make(options.own["device"])
        contenders = {
            optimizer: (simulated(shapes.replace_plan(shape, optimizer=optimizer)), count)
            for optimizer in OPTIMIZERS
        }
        times[name] = seconds_per_round(contenders, options.blocks)
        time = medians(times[name])
        for optimizer, seconds in time.items():
            ratio = seconds / time["sgd"]
            print(f"  {name:4} {optimizer:9} {1e3 * seconds:8.2f} ms a round   {ratio:5.2f} × sgd")
        bars.append(at_most(f"{name}, adam against sgd", time["adam"] / time["sgd"], BAR))
        print(f"  {said(bars[-1])}", flush=True)
    result = {"seconds_per_round": times, "bars": bars}
    options.write(result)
    return result
