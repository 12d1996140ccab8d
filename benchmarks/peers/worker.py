"""A peer at work: it is handed a federation, and told how many rounds to run, time and again.

    python -m peers.worker NAME FEDERATION.npz          (in benchmarks/, in the peer's environment)

Orders come in on standard input and are answered on standard output, a line of JSON each:

    what comes in   what is answered
    (at the start)  {"ready": {"flwr": "1.41.0", …}, "how": "…"}
    run 3           {"ran": 3}
    loss            {"loss": 0.69}       of the model as it is now, on the same examples each time
    (end of file)   nothing: the peer ends

Between two orders a peer waits in a read, so it takes no time from the others. Whatever libraries
print goes to standard error.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any, TextIO

import numpy as np


@dataclass(frozen=True)
class Federation:
    """All examples, one client after another, and the numbers of a run."""

    model: str  # lr, or lstm
    ids: np.ndarray  # (n, L) int64: the features of an example, or its words in order
    label: np.ndarray  # (n,) float32: 0 or 1
    splits: np.ndarray  # (N + 1,): client i has the examples splits[i] to splits[i + 1]
    rows: int  # how many features, or words, there are
    clients_per_round: int
    local_steps: int
    batch_size: int
    lr: float
    path: str  # where all this was read from

    @classmethod
    def read(cls, path: str) -> Federation:
        """What `fedrows bench peers` has written."""
        with np.load(path) as found:
            return cls(**{name: x if x.ndim else x.item() for name, x in found.items()}, path=path)

    @property
    def clients(self) -> int:
        """N."""
        return len(self.splits) - 1

    def draw(self, client: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """All batches of a client's round, drawn from its examples: (I · B, L) ids, and labels."""
        low, high = self.splits[client : client + 2]
        some = rng.integers(low, high, self.local_steps * self.batch_size)
        return self.ids[some], self.label[some]

    def some(self, count: int = 2_000) -> tuple[np.ndarray, np.ndarray]:
        """Examples of all clients, the same each time, to look at the loss."""
        every = slice(None, None, max(1, len(self.label) // count))
        return self.ids[every], self.label[every]


class Orders:
    """What a peer is told: iterate for the rounds to run; say how the loss is to be had."""

    def __init__(self, answers: TextIO, ready: dict[str, Any]) -> None:
        self.loss: Callable[[], float] = lambda: float("nan")
        self._answers = answers
        self._ready = ready

    def __iter__(self) -> Iterator[int]:
        """The rounds to run next; a block counts as run when the following one is asked for."""
        self._answer(self._ready)
        for line in sys.stdin:
            order, *number = line.split()
            if order == "loss":
                self._answer({"loss": self.loss()})
                continue
            yield int(number[0])
            self._answer({"ran": int(number[0])})

    def _answer(self, what: dict[str, Any]) -> None:
        print(json.dumps(what), file=self._answers, flush=True)


def main(name: str, path: str) -> None:
    """Starts the peer, which then follows its orders."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what is printed from here on is no answer
    peer = importlib.import_module(f"peers.{name}")
    installed = {package: version(package) for package in peer.PACKAGES}
    how = " ".join((peer.__doc__ or "").split("\n\n")[1].split())
    peer.follow(Federation.read(path), Orders(answers, {"ready": installed, "how": how}))


if __name__ == "__main__":
    main(*sys.argv[1:])
