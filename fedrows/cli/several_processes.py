"""A run in several processes on the command line: rank 0 speaks and writes, the others follow."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout

import torch

from fedrows.cli.stop import Stop
from fedrows.errors import INTERRUPTED, FedrowsError
from fedrows.simulation import Simulation
from fedrows.simulator import process_group
from fedrows.simulator.process_group import GoneError

REFUSED = 2


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
