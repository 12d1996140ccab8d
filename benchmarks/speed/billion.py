"""A billion rows cost what was touched: rounds on mapped tables, their memory and their disk.

Every client's ids lie anywhere in the table, so nearly every row that a round touches is new. The
module has an embedding of a billion rows that could not be made in memory.

    resident   the memory of the process at its peak, mapped pages, heat and lazy state included
    disk       what the files take at the end for each row that was touched; between checkpoints a
               log has what changed rows were, so it is also taken at its largest, round by round

There is a checkpoint in every quarter of the rounds, and as in any run whenever the log is long.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.speed.bars import at_most, said
from benchmarks.speed.blocks import settings, whole
from benchmarks.speed.machine import forget_peak, peak
from fedrows.algorithm import Algorithm
from fedrows.algorithms.fedadam import FedAdam
from fedrows.algorithms.fedsubavg import FedSubAvg
from fedrows.cli.flags import Parser
from fedrows.data.federation import FederatedData
from fedrows.lifting.lifted import Lifted
from fedrows.plan import Plan
from fedrows.runs import checkpoint
from fedrows.runs.folder import CHECKPOINT
from fedrows.simulation import Simulation

WIDTH, CLIENTS, EXAMPLES, COLUMNS = 16, 2_000, 80, 5
RESIDENT, DISK = 2 * 2**30, 256  # bytes, the second for each touched row
ALGORITHMS: dict[str, Algorithm] = {x.name: x for x in (FedSubAvg(), FedAdam(lazy=True))}


class Sum(nn.Module):
    """A dense layer over the sum of an example's embeddings, which are drawn as they are read."""

    def __init__(self, rows: int) -> None:
        super().__init__()
        self.item = nn.Embedding(rows, WIDTH, device="meta")
        self.out = nn.Linear(WIDTH, 1)

    def forward(self, item: Tensor) -> Tensor:
        return self.out(self.item(item).sum(1))[:, 0]


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Measures, prints and returns what rounds on a huge table cost."""
    parser = Parser("bench billion", (__doc__ or "").split("\n")[0])
    parser.add_argument("--rows", metavar="N", default=10**9, help="Rows (default: 10⁹).")
    parser.add_argument("--rounds", metavar="N", default=100, help="Rounds (default: 100).")
    options = settings(parser, argv, blocks=1)
    rows, rounds = whole("--rows", options.own["rows"]), whole("--rounds", options.own["rounds"])
    data = federation(rows)
    result: dict[str, Any] = {"rows": rows, "width": WIDTH, "rounds": rounds}
    bars = result["bars"] = []
    for name, algorithm in ALGORITHMS.items():
        result[name] = costs = measure(data, algorithm, rounds)
        print(
            f"  {name:10} {costs['touched']:,} rows, {costs['milliseconds']:.0f} ms a round, "
            f"{costs['saving_milliseconds']:.1f} more for {costs['checkpoints']} checkpoints, "
            f"{costs['disk_per_row']:.0f} bytes of disk a touched row at the end"
        )
        most = costs["disk_per_row_with_log"]
        bars.append(at_most(f"{name}, bytes resident", costs["resident"], RESIDENT))
        bars.append(at_most(f"{name}, most bytes of disk a touched row", most, DISK))
        for bar in bars[-2:]:
            print(f"  {said(bar)}", flush=True)
    options.write(result)
    return result


def federation(rows: int) -> FederatedData:
    """Clients whose ids lie anywhere in a table."""
    rng = np.random.default_rng(0)
    owner = np.repeat(np.arange(CLIENTS), EXAMPLES)
    return FederatedData.build(
        client=owner,
        ids={"item": rng.integers(0, rows, (len(owner), COLUMNS))},
        label=rng.integers(0, 2, len(owner)),
        test=np.arange(len(owner)) % 10 == 0,
        tables={"item": rows},
    )


def measure(data: FederatedData, algorithm: Algorithm, rounds: int) -> dict[str, float]:
    """Runs, evaluates and saves now and then; what that took."""
    plan = Plan(rounds=rounds, clients_per_round=50, tables="mapped", device="cpu")
    forget_peak()
    with tempfile.TemporaryDirectory(prefix="fedrows-") as folder:
        home = Path(folder)
        torch.manual_seed(0)
        model = Lifted(Sum(data.tables["item"]), data)
        simulation = Simulation(data, model, algorithm, plan, None, home / "tables")
        table_folder = simulation.progress.table_folder
        assert table_folder is not None
        disk, saving = [], []
        for progress in simulation:
            disk.append(table_folder.nbytes / table_folder.tables["item"].id_map.count)
            due = progress.round % max(1, rounds // 4) == 0
            if due:
                simulation.evaluate()
            if due or table_folder.log_is_long:
                since = time.perf_counter()
                checkpoint.save(home / CHECKPOINT, simulation)
                saving.append(time.perf_counter() - since)
        touched = table_folder.tables["item"].id_map.count
        return {
            "touched": touched,
            "milliseconds": 1000 * simulation.seconds / rounds,
            "saving_milliseconds": 1000 * sum(saving) / rounds,
            "checkpoints": len(saving),
            "resident": peak(),
            "disk_per_row": table_folder.nbytes / touched,
            "disk_per_row_with_log": max(disk),
        }
