"""FedAvg as a loop over clients, split over processes of one thread: plain PyTorch on all cores.

The server's model lies in shared memory. Each process trains its share of the cohort on a copy of
it, one client after another, and adds what comes out to a sum of its own, in shared memory as well.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection
from typing import Any

import torch
from torch import multiprocessing, nn

from benchmarks.speed.baselines import Client
from fedrows.data.examples import Examples
from fedrows.data.federation import FederatedData
from fedrows.plan import Plan


class Workers:
    """Processes that call `work(pipe, *own)`, each with its own arguments, and wait for orders."""

    def __init__(self, work: Callable[..., None], arguments: Sequence[tuple[Any, ...]]) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipes: list[Connection] = []
        self._processes: list[Any] = []
        for own in arguments:
            near, far = context.Pipe()
            process = context.Process(target=work, args=(far, *own), daemon=True)
            process.start()
            far.close()
            self._pipes.append(near)
            self._processes.append(process)

    def __call__(self, orders: Sequence[Any]) -> None:
        """Gives each process its order, and waits until all have carried theirs out."""
        for pipe, order in zip(self._pipes, orders, strict=True):
            pipe.send(order)
        for pipe in self._pipes:
            pipe.recv()

    def close(self) -> None:
        """Ends the processes, the first one last: of ranks, it has the store of the others."""
        for pipe, process in reversed(list(zip(self._pipes, self._processes, strict=True))):
            pipe.close()
            process.join()


def orders_of(pipe: Connection) -> Iterator[Any]:
    """What comes through a pipe until it is closed; each is confirmed when the next is wanted."""
    while True:
        try:
            yield pipe.recv()
        except EOFError:
            return
        pipe.send(None)


class InProcesses:
    """Rounds of FedAvg, one client after another in each of two processes."""

    def __init__(self, module: nn.Module, data: FederatedData, plan: Plan) -> None:
        self._server, self._data, self._plan = module.share_memory(), data, plan
        self._sums = [copy.deepcopy(module).share_memory() for _ in range(2)]
        self._workers: Workers | None = None

    @torch.no_grad()
    def __call__(self, count: int) -> None:
        if self._workers is None:
            own = [(self._server, total, self._data.train, self._plan) for total in self._sums]
            self._workers = Workers(_work, own)
        for _ in range(count):
            cohort = torch.randperm(self._data.clients)[: self._plan.clients_per_round]
            share = self._data.sizes[cohort].to(torch.float32)
            share /= share.sum()
            parts = [slice(number, None, 2) for number in range(2)]
            self._workers([(cohort[part].tolist(), share[part].tolist()) for part in parts])
            totals = zip(*(total.parameters() for total in self._sums), strict=True)
            for x, sums in zip(self._server.parameters(), totals, strict=True):
                torch.sum(torch.stack(sums), 0, out=x)

    def close(self) -> None:
        """Ends the processes."""
        if self._workers is not None:
            self._workers.close()


def _work(
    pipe: Connection, server: nn.Module, total: nn.Module, train: Examples, plan: Plan
) -> None:
    """Trains the clients that come through the pipe."""
    torch.set_num_threads(1)
    client = Client(server, train, plan)
    for cohort, shares in orders_of(pipe):
        client.train(cohort, shares, dict(total.named_parameters()))
