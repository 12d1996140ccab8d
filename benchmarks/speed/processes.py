"""FedAvg as a loop over clients, split over processes of one thread: plain PyTorch on all cores.

The server's model lies in shared memory. Each process trains its share of the cohort on a copy of
it, one client after another, and adds what comes out to a sum of its own, in shared memory as well.
"""

from __future__ import annotations

import copy
from multiprocessing.connection import Connection
from typing import Any

import torch
from torch import multiprocessing, nn

from benchmarks.speed.baselines import Client
from fedrows.data.examples import Examples
from fedrows.data.federation import FederatedData
from fedrows.plan import Plan


class InProcesses:
    """Rounds of FedAvg, one client after another in each of some processes."""

    def __init__(self, module: nn.Module, data: FederatedData, plan: Plan, count: int = 2) -> None:
        self._server, self._data, self._plan = module.share_memory(), data, plan
        self._sums = [copy.deepcopy(module).share_memory() for _ in range(count)]
        self._pipes: list[Connection] = []
        self._processes: list[Any] = []

    @torch.no_grad()
    def __call__(self, count: int) -> None:
        if not self._processes:
            self._start()
        for _ in range(count):
            cohort = torch.randperm(self._data.clients)[: self._plan.clients_per_round]
            share = self._data.sizes[cohort].to(torch.float32)
            share /= share.sum()
            for number, pipe in enumerate(self._pipes):
                part = slice(number, None, len(self._pipes))
                pipe.send((cohort[part].tolist(), share[part].tolist()))
            for pipe in self._pipes:
                pipe.recv()
            parts = zip(*(part.parameters() for part in self._sums), strict=True)
            for x, sums in zip(self._server.parameters(), parts, strict=True):
                torch.sum(torch.stack(sums), 0, out=x)

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        for total in self._sums:
            near, far = context.Pipe()
            needed = (far, self._server, total, self._data.train, self._plan)
            process = context.Process(target=_work, args=needed, daemon=True)
            process.start()
            far.close()
            self._pipes.append(near)
            self._processes.append(process)

    def close(self) -> None:
        """Ends the processes."""
        for pipe, process in zip(self._pipes, self._processes, strict=True):
            pipe.close()
            process.join()


def _work(
    pipe: Connection, server: nn.Module, total: nn.Module, train: Examples, plan: Plan
) -> None:
    """Trains the clients that come through the pipe, until it is closed."""
    torch.set_num_threads(1)
    client = Client(server, train, plan)
    while True:
        try:
            cohort, shares = pipe.recv()
        except EOFError:
            return
        client.train(cohort, shares, dict(total.named_parameters()))
        pipe.send(None)
