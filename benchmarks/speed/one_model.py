"""Rounds of one model, by fedrows and by what one would do instead.

fedrows        FedSubAvg rounds: sampling, gathering, training, aggregating; no evaluation
centralised    plain PyTorch on as many samples: I steps of K · B, gathered beforehand; for logistic
               regression nn.Embedding and nn.EmbeddingBag, of which the faster one counts
one by one     plain PyTorch, one client after another on a copy of the model, then FedAvg
two processes  the same loop, split over two processes of one thread
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from benchmarks.speed.bars import contest
from benchmarks.speed.blocks import seconds_per_round, settings
from benchmarks.speed.models import BARS, SHAPES, contenders
from fedrows.cli.flags import Parser


def comparison(name: str, title: str | None, blocks: int = 5) -> Callable[..., dict[str, Any]]:
    """The `main` of a model's benchmark; `blocks` is how many there are unless others are typed."""

    def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
        """Measures, prints and returns rounds/s and the ratios."""
        options = settings(Parser(f"bench {name}", (title or "").strip()), argv, blocks)
        shape = SHAPES[name]("cpu")
        with contenders(name, shape) as runs:
            result = contest(seconds_per_round(runs, options.blocks), BARS[name])
        result = {"data": shape.data.name, **result}
        options.write(result)
        return result

    return main
