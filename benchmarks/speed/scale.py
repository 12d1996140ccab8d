"""The size of the table does not matter: one cohort in tables of ever more rows, 16 wide.

same ids     the cohort's ids are what they were; only the table around them has grown
spread ids   the same cohort, its ids scattered at random over the large table, next to a bare
             index_select + index_add_ of the same rows: cache misses are the floor
beyond       the memory that rounds take beside the table itself
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.speed.bars import at_most, said
from benchmarks.speed.blocks import (
    Rounds,
    medians,
    seconds_per_round,
    settings,
    taken_from,
    whole,
)
from benchmarks.speed.machine import resident
from fedrows.algorithms.fedsubavg import FedSubAvg
from fedrows.cli.flags import Parser, UsageError
from fedrows.data.batches import Batch
from fedrows.data.federation import FederatedData
from fedrows.model import Model
from fedrows.plan import Plan
from fedrows.rows.params import Params, Submodels, index_add_, index_select
from fedrows.rows.schema import Schema, Table
from fedrows.seeds import COHORT, SAMPLE, choose
from fedrows.server import Progress, rounds
from fedrows.simulator import fast_paths

WIDTH, CLIENTS, EXAMPLES, COLUMNS = 16, 2_000, 80, 5
BLOCK = 40  # rounds
SAME, SPREAD = 1.1, 1.5  # the growth that is let pass, the second beside that of the bare
PLAN = Plan(rounds=10**9, device="cpu")


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Measures, prints and returns how a round's time grows with the table."""
    parser = Parser("bench scale", (__doc__ or "").split("\n")[0])
    parser.add_argument("--small", metavar="N", default=10**4, help="Rows (default: 10,000).")
    parser.add_argument("--large", metavar="N", default=10**7, help="Rows (default: 10,000,000).")
    options = settings(parser, argv, blocks=9)
    small, large = (whole(f"--{name}", options.own[name]) for name in ("small", "large"))
    if large < small:
        raise UsageError(f"--large is {large}, but must be at least the {small} of --small.")
    sizes = [small * 10**k for k in range(1, 19) if small * 10**k < large] + [large]
    contenders, beyond = contestants(small, small)[0], {}
    for rows in sizes:
        runs, beyond[rows] = contestants(small, rows)
        contenders |= runs
    times = seconds_per_round(contenders, options.blocks)
    time = medians(times)
    growth = {
        rows: {
            kind: time[f"{kind} {rows}"] / time[f"{kind} {small}"]
            for kind in ("same", "spread", "bare")
        }
        for rows in sizes
    }
    bars = []
    for rows, kinds in growth.items():
        ratio = kinds["spread"] / kinds["bare"]
        bars.append(at_most(f"{rows:,} rows, the same ids, growth", kinds["same"], SAME))
        bars.append(at_most(f"{rows:,} rows, ids at random, growth by bare growth", ratio, SPREAD))
        milliseconds = time[f"spread {rows}"] * 1000
        print(
            f"  {rows:13,} rows   same ids {kinds['same']:.2f} ×   at random {kinds['spread']:.2f} "
            f"×, {milliseconds:.2f} ms   bare {kinds['bare']:.2f} ×   "
            f"{beyond[rows]:.0f} MiB beside the table"
        )
    for bar in bars:
        print(f"  {said(bar)}")
    result = {
        "small": small,
        "large": large,
        "width": WIDTH,
        "seconds_per_round": times,
        "milliseconds": {name: 1000 * seconds for name, seconds in time.items()},
        "growth": {str(rows): runs for rows, runs in growth.items()},
        "mebibytes_beyond_the_table": {str(rows): size for rows, size in beyond.items()},
        "bars": bars,
    }
    options.write(result)
    return result


def contestants(small: int, rows: int) -> tuple[dict[str, tuple[Rounds, int]], float]:
    """The contenders that share a table of so many rows, and the MiB they take beside it."""
    before = resident()
    spread = choose(0, SAMPLE, 0, rows, small).numpy()
    spread = np.random.default_rng(0).permutation(spread)
    same, scattered = federation(small, rows), federation(small, rows, spread)
    params = Flat(same).start()
    made = {
        f"same {rows}": (simulated(same, params), BLOCK),
        f"spread {rows}": (simulated(scattered, params), BLOCK),
        f"bare {rows}": (bare(scattered, params.tables["w"]), BLOCK),
    }
    for run, _ in made.values():
        run(3)
    return made, (resident() - before - params.tables["w"].nbytes) / 2**20


class Flat(Model):
    """Logistic regression whose weights are 16 wide: p = σ(b + Σ_l Σ_d w[id_l, d])."""

    closed_form = True

    def __init__(self, data: FederatedData) -> None:
        self.schema = Schema({"w": Table(data.tables["w"], WIDTH)}, {"bias": ()})

    def start(self) -> Params:
        table = torch.empty(self.schema.tables["w"].rows, WIDTH)
        return Params({"w": table.fill_(0.0)}, {"bias": torch.zeros(())})  # written, so resident

    def scores(self, params: Params, fields: Mapping[str, Tensor]) -> Tensor:
        return params.tables["w"][fields["w"]].sum((1, 2)) + params.dense["bias"]

    def gradient(self, block: Submodels, batch: Batch) -> Submodels:
        rows, ids = block.rows["w"], batch.ids["w"]  # (R, 16), (K, B, L)
        weights = rows.sum(1).index_select(0, ids.reshape(-1)).view(ids.shape)
        error = (weights.sum(2) + block.dense["bias"][:, None]).sigmoid_().sub_(batch.label)
        error /= error.shape[1]  # (K, B)
        each = error[:, :, None].expand_as(ids).reshape(-1)
        of_row = rows.new_zeros(len(rows)).index_add_(0, ids.reshape(-1), each)  # (R,)
        gradient_rows = of_row[:, None].expand_as(rows).contiguous()
        return Submodels(block.index, {"w": gradient_rows}, {"bias": error.sum(1)})


def federation(rows: int, table: int, ids_of: np.ndarray | None = None) -> FederatedData:
    """Clients with random rows of a table's first, or the same with every id renamed."""
    rng = np.random.default_rng(1)
    owner = np.repeat(np.arange(CLIENTS), EXAMPLES)
    ids = rng.integers(0, rows, (len(owner), COLUMNS))
    return FederatedData.build(
        client=owner,
        ids={"w": ids if ids_of is None else ids_of[ids]},
        label=rng.integers(0, 2, len(owner)),
        test=np.zeros(len(owner), dtype=bool),
        tables={"w": table},
    )


def simulated(data: FederatedData, params: Params) -> Rounds:
    """FedSubAvg rounds on a table that is there."""
    algorithm = FedSubAvg()
    fleet = fast_paths.fleet(Flat(data), algorithm, data, PLAN)
    return taken_from(rounds(fleet, PLAN, Progress(0, params, {}, algorithm)))


def bare(data: FederatedData, table: Tensor) -> Rounds:
    """What any round must do at least: read the cohort's rows and add to them."""
    cohorts = (
        choose(PLAN.seed, COHORT, number, data.clients, PLAN.clients_per_round)
        for number in range(1, 101)
    )
    sets = [data.index["w"].select(cohort).ids for cohort in cohorts]
    ids_of = itertools.cycle(sets)
    nothing = torch.zeros(max(map(len, sets)), WIDTH)

    def run(count: int) -> None:
        for ids in itertools.islice(ids_of, count):
            index_select(table, ids)
            index_add_(table, ids, nothing[: len(ids)])

    return run
