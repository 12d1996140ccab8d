"""A module with no layer of fedrows in it: a simulated round against what one would do instead.

fedrows        FedSubAvg rounds: sampling, gathering, training, aggregating; no evaluation
centralised    plain PyTorch on as many samples: I steps of K · B, gathered beforehand
one by one     plain PyTorch, one client after another on a copy of the model, then FedAvg
two processes  the same loop, split over two processes of one thread
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fedrows.bench.bars import contest
from fedrows.bench.blocks import seconds_per_round, settings
from fedrows.bench.models import BARS, SHAPES, contenders
from fedrows.cli.flags import Parser


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Measures, prints and returns rounds/s and the ratios."""
    options = settings(Parser("bench own", (__doc__ or "").split("\n")[0]), argv, blocks=5)
    shape = SHAPES["own"]("cpu")
    with contenders("own", shape) as those:
        result = contest(seconds_per_round(those, options.blocks), BARS["own"])
    result = {"data": shape.data.name, **result}
    options.write(result)
    return result
