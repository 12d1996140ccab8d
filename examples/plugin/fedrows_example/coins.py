"""Collectors and the coins they like, made up: a good coin is liked more often."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedrows import FederatedData
from fedrows.options import check, option
from fedrows.task import Task


@dataclass(frozen=True)
class Coins:
    """How many of what."""

    collectors: int = option(60, "Collectors, which are the clients.", least=2)
    kinds: int = option(40, "Kinds of coins.", least=2)
    seed: int = option(0, "Seed of the data.", least=0)

    def __post_init__(self) -> None:
        check(self)


def load(options: Coins) -> FederatedData:
    """Twenty coins for each collector, of which the last four are for testing."""
    draw = np.random.default_rng(options.seed)
    quality = draw.normal(size=options.kinds)
    count = 20 * options.collectors
    coin = draw.integers(0, options.kinds, count)
    liked = draw.random(count) < 1 / (1 + np.exp(-2 * quality[coin]))
    return FederatedData.build(
        client=np.repeat(np.arange(options.collectors), 20),
        ids={"coin": coin},
        label=liked.astype(np.int64),
        test=np.tile(np.arange(20) >= 16, options.collectors),
        tables={"coin": options.kinds},
        name="coins",
    )


TASK = Task(
    name="coins",
    summary="Made-up collectors and the coins that they like.",
    options=Coins,
    load=load,
    model="taste",
    plan={"rounds": 50, "lr": 0.3, "clients_per_round": 10},
    algorithms={"fedavgm": {"lr": 0.1}},
)
