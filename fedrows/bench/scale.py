"""The size of the table does not matter: one cohort in a small and in a large table.

same ids     the cohort's ids are what they were; only the table around them has grown
spread ids   the same cohort, its ids scattered at random over the large table, next to a bare
             index_select + index_add_ of the same rows: cache misses are the floor
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from fedrows.algorithms.fedsubavg import FedSubAvg
from fedrows.bench.blocks import Rounds, medians, seconds_per_round, settings, whole
from fedrows.cli.flags import Parser, UsageError
from fedrows.data import FederatedData
from fedrows.fleet import SimulatedFleet
from fedrows.models.logistic import Logistic
from fedrows.params import index_add_, index_select
from fedrows.plan import Plan
from fedrows.seeds import COHORT, choose
from fedrows.server import begin, rounds

CLIENTS, EXAMPLES, COLUMNS = 2_000, 80, 5


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Measures, prints and returns how a round's time grows with the table."""
    parser = Parser("bench scale", (__doc__ or "").split("\n")[0])
    parser.add_argument("--small", metavar="N", default=10**4, help="Rows (default: 10,000).")
    parser.add_argument("--large", metavar="N", default=10**7, help="Rows (default: 10,000,000).")
    options = settings(parser, argv, blocks=9)
    small, large = (whole(f"--{name}", options.own[name]) for name in ("small", "large"))
    if large < small:
        raise UsageError(f"--large is {large}, but must be at least the {small} of --small.")
    data = federation(small)
    spread = torch.from_numpy(np.random.default_rng(0).choice(large, small, replace=False))
    scattered = federation(small, large, spread.numpy())
    plan = Plan(rounds=10**9, device="cpu")
    contenders = {
        "small": (simulated(data, plan), 100),
        "same ids": (simulated(replace(data, tables={"w": large}), plan), 100),
        "spread ids": (simulated(scattered, plan), 100),
        "bare small": (bare(data, plan), 100),
        "bare spread": (bare(scattered, plan), 100),
    }
    time = medians(seconds_per_round(contenders, options.blocks))
    growth, floor = time["spread ids"] / time["small"], time["bare spread"] / time["bare small"]
    result = {
        "small": small,
        "large": large,
        "milliseconds": {name: 1000 * seconds for name, seconds in time.items()},
        "same_ids_growth": time["same ids"] / time["small"],
        "spread_ids_growth": growth,
        "bare_growth": floor,
    }
    for name, seconds in time.items():
        print(f"{name:12} {1000 * seconds:8.3f} ms a round")
    print(f"same ids, {large:,} rows: {result['same_ids_growth']:.2f} × (bar: 1.1)")
    print(f"spread ids: {growth:.2f} ×, bare {floor:.2f} ×: {growth / floor:.2f} (bar: 1.5)")
    options.write(result)
    return result


def federation(
    rows: int, table: int | None = None, ids_of: np.ndarray | None = None
) -> FederatedData:
    """Clients with random rows of a table, or the same with every id renamed."""
    rng = np.random.default_rng(1)
    owner = np.repeat(np.arange(CLIENTS), EXAMPLES)
    ids = rng.integers(0, rows, (len(owner), COLUMNS))
    return FederatedData.build(
        client=owner,
        ids={"w": ids if ids_of is None else ids_of[ids]},
        label=rng.integers(0, 2, len(owner)),
        test=np.zeros(len(owner), dtype=bool),
        tables={"w": table or rows},
    )


def simulated(data: FederatedData, plan: Plan) -> Rounds:
    """FedSubAvg rounds."""
    model, algorithm = Logistic(data), FedSubAvg()
    loop = rounds(SimulatedFleet(model, algorithm, data, plan), plan, begin(model, algorithm, plan))

    def run(count: int) -> None:
        for _ in itertools.islice(loop, count):
            pass

    return run


def bare(data: FederatedData, plan: Plan) -> Rounds:
    """What any round must do at least: read the cohort's rows and add to them."""
    table = torch.zeros(data.tables["w"], 1)
    cohorts = (
        choose(plan.seed, COHORT, number, data.clients, plan.clients_per_round)
        for number in range(1, 101)
    )
    ids_of = itertools.cycle([data.index["w"].select(cohort).ids for cohort in cohorts])

    def run(count: int) -> None:
        for ids in itertools.islice(ids_of, count):
            index_add_(table, ids, index_select(table, ids))

    return run
