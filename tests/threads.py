"""Ranks that are threads of one process, and a small federation for them to train."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedrows.data.federation import FederatedData
from fedrows.plan import Plan
from fedrows.simulator.process_group import RankGroup


class Module(nn.Module):
    def __init__(self, items: int, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.item = nn.Embedding(items, 4)
        self.user = nn.Embedding(30, 4)
        self.mlp = nn.Sequential(nn.Linear(8, 6), nn.Tanh(), nn.Linear(6, 1))

    def forward(self, item: Tensor, user: Tensor) -> Tensor:
        return self.mlp(torch.cat([self.item(item), self.user(user)], -1))[:, 0]


def federation(items: int = 40, seed: int = 0, local: Sequence[str] = ()) -> FederatedData:
    """30 clients with 2 to 12 examples each, of whom nobody has items past the 40th."""
    rng = np.random.default_rng(seed)
    owner = np.repeat(np.arange(30), rng.integers(2, 13, 30))
    return FederatedData.build(
        client=owner,
        ids={"item": rng.zipf(1.3, len(owner)).clip(max=39), "user": owner},
        label=rng.random(len(owner)) < 0.5,
        test=np.zeros(len(owner), dtype=bool),
        tables={"item": items, "user": 30},
        local=local,
    )


def plan_of(**options: Any) -> Plan:
    usual = {"rounds": 8, "clients_per_round": 7, "lr": 0.3, "local_steps": 3, "dtype": "float64"}
    return Plan(**{**usual, "device": "cpu", **options})


class Threads(RankGroup):
    """A rank that is a thread; all share a table and meet at a barrier."""

    def __init__(self, rank: int, size: int, table: list[Any], meet: threading.Barrier) -> None:
        self.rank, self.size, self._table, self._meet = rank, size, table, meet

    def gather(self, mine: Tensor) -> Tensor:
        self._table[self.rank] = mine
        self._meet.wait(60)
        found = torch.stack(list(self._table))
        self._meet.wait(60)
        return found


def as_ranks(size: int, prepare: Callable[[RankGroup], Callable[[], Any]]) -> list[Any]:
    """What every one of some ranks makes of its work, which is prepared one after another."""
    table, meet = [None] * size, threading.Barrier(size)
    work = [prepare(Threads(rank, size, table, meet)) for rank in range(size)]

    def run(rank: int) -> Any:
        try:
            return work[rank]()
        except Exception:
            meet.abort()  # nobody waits for this rank
            raise

    with ThreadPoolExecutor(size, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        return list(pool.map(run, range(size)))
