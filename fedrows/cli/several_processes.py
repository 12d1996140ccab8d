"""How a run is asked to stop, and how several processes make one run together.

Rank 0 speaks and writes, the others follow.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, redirect_stdout
from types import FrameType

import torch

from fedrows.errors import INTERRUPTED, FedrowsError
from fedrows.runs.signals import ENDING, handling
from fedrows.simulation import Simulation
from fedrows.simulator import process_group
from fedrows.simulator.process_group import GoneError

REFUSED = 2


class Stop:
    """Ctrl-C, SIGTERM and signals like it ask a run to stop after its round.

    A second Ctrl-C stops at once.
    """

    def __init__(self) -> None:
        self.asked = False
        self._handlers = ExitStack()

    def __enter__(self) -> Stop:
        self._handlers.enter_context(handling([signal.SIGINT, *ENDING], self._ask))
        return self

    def __exit__(self, *_: object) -> None:
        self._handlers.close()

    def _ask(self, number: int, frame: FrameType | None) -> None:
        if self.asked and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.asked = True


@contextmanager
def one_voice() -> Iterator[None]:
    """Of several processes only rank 0 is heard, and only one of them says why they end early."""
    if not process_group.several():
        yield
        return
    torch.set_num_threads(process_group.cores())  # torchrun says 1, whatever there is
    everyone = process_group.join()
    try:
        if everyone.rank == 0:
            yield
        else:
            with open(os.devnull, "w") as nowhere, redirect_stdout(nowhere):
                yield
    except (FedrowsError, OSError, KeyboardInterrupt) as error:
        if everyone.speaks():
            raise
        code = INTERRUPTED if isinstance(error, KeyboardInterrupt) else REFUSED
        raise SystemExit(code) from None


def agreed(stop: Stop, simulation: Simulation) -> Callable[[], bool]:
    """Whether a run is to stop after its round: all its processes say the same."""
    ranked = simulation.ranked
    if ranked is None:
        return lambda: stop.asked
    ranked.stopping = lambda: stop.asked
    return lambda: ranked.stopped


def follow(simulation: Simulation, again: str) -> int:
    """Trains what falls to a rank other than 0, and gives the exit code.

    again: the command that goes on, for the message if rank 0 is gone.
    """
    try:
        with Stop() as stop:
            asked = agreed(stop, simulation)
            for _ in simulation:
                if asked():
                    break
    except GoneError as error:
        raise GoneError(error.what, f"go on with `{again}`") from error
    return 0 if simulation.progress.round == simulation.plan.rounds else INTERRUPTED


def threads_of(threads: int | None, begun_in: int) -> int | None:
    """The threads of a process, if a run that was begun in so many is to use as many in all."""
    now = process_group.join().size if process_group.several() else 1
    return None if threads is None else max(1, threads * begun_in // now)
