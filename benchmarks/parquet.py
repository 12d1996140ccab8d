"""Parquet larger than one would like to hold: how long it loads, and what a round then costs.

    python benchmarks/parquet.py --rows 10_000_000 --clients 1_000_000

Writes a made-up log of ratings into Parquet files, reads them into a store, opens the store again,
and runs FedSubAvg on a logistic model (K = 50, I = 10, B = 5); then the same for a log a thousandth
the size, whose clients have as many examples. Every stage is a process of its own, so that its peak
of resident memory is its own too. Needs pyarrow.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

PIECE = 1_000_000  # rows to a file
ITEMS, PAGES = 500_000, 10_000


def make(folder: Path, rows: int, clients: int, text: int) -> dict[str, Any]:
    """Writes the log: a few hot items, most cold; a client's rows lie anywhere."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    rng = np.random.default_rng(0)
    folder.mkdir()
    for number, low in enumerate(range(0, rows, PIECE)):
        count = min(PIECE, rows - low)
        user = rng.integers(0, clients, count)
        item = rng.zipf(1.3, count) % ITEMS
        columns = {
            "user": np.char.add("user ", user.astype(str)) if text else user,
            "item": np.char.add("item ", item.astype(str)) if text else item,
            "page": rng.integers(0, PAGES, count),
            "time": rng.integers(0, 10**9, count),
            "like": (rng.random(count) < 0.3 + 0.4 * (item % 2)).astype(np.int8),
        }
        pq.write_table(pa.table(columns), folder / f"{number:04}.parquet")
    return {"bytes": sum(path.stat().st_size for path in folder.iterdir())}


def load(folder: Path) -> dict[str, Any]:
    """Reads the files into a store, or opens the store that is there."""
    from fedrows import read_parquet
    from fedrows.data.splits import Split
    from fedrows.data.vocabulary import Vocabulary

    start = time.perf_counter()
    data = read_parquet(
        folder,
        client="user",
        label="like",
        features=["item", "page"],
        tables={"item": Vocabulary(min_count=2)},
        test=Split.last(0.2, time="time"),
        store=folder.with_suffix(".store"),
    )
    seconds = time.perf_counter() - start
    return {"seconds": seconds, "clients": data.clients, "examples": len(data.train)}


def train(folder: Path, rounds: int) -> dict[str, Any]:
    """Opens the store and runs rounds; the first are left out of the median."""
    import torch

    from fedrows import Plan, catalogue, open_data
    from fedrows.models.logistic import Logistic
    from fedrows.simulation import Simulation

    torch.set_num_threads(1)
    start = time.perf_counter()
    data = open_data(folder.with_suffix(".store"))
    opened = time.perf_counter()
    plan = Plan(rounds=rounds, clients_per_round=50, device="cpu", lr=0.3)
    simulation = Simulation(data, Logistic(data), catalogue.algorithm("fedsubavg")(), plan)
    ready = time.perf_counter()
    times = [ready]
    for _ in simulation:
        times.append(time.perf_counter())
    each = np.diff(times)
    return {
        "open": opened - start,
        "prepare": ready - opened,
        "first round": each[0],
        "median round": float(np.median(each[rounds // 4 :])),
        "mean round": float(np.mean(each[rounds // 4 :])),
    }


def stage(name: str, folder: Path, *numbers: int) -> dict[str, Any]:
    """What a stage measured in a process of its own, and its peak of resident memory."""
    command = [
        sys.executable,
        __file__,
        "--stage",
        name,
        str(folder),
        *(str(int(n)) for n in numbers),
    ]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True)
    found: dict[str, Any] = json.loads(done.stdout)
    numbers_said = ", ".join(
        f"{key} {value:.4g}" if isinstance(value, float) else f"{key} {value:,}"
        for key, value in found.items()
    )
    print(f"{folder.name:6} {name:6} {numbers_said}", flush=True)
    return found


def main() -> None:
    """Prints what every stage took."""
    if sys.argv[1:2] == ["--stage"]:
        name, folder, *numbers = sys.argv[2:]
        whole = map(int, numbers)
        found = {"make": make, "load": load, "train": train}[name](Path(folder), *whole)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
        print(json.dumps({**found, "peak GiB": peak}))
        return
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--clients", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=400)
    parser.add_argument("--text", action="store_true", help="clients and items are text")
    parser.add_argument("--folder", help="where to put the files; a temporary folder if not given")
    options = parser.parse_args()
    print(f"{os.cpu_count()} cores, Python {sys.version.split()[0]}")
    with tempfile.TemporaryDirectory(dir=options.folder) as temporary:
        for name, share in (("large", 1), ("small", 1000)):
            folder = Path(temporary) / name
            stage("make", folder, options.rows // share, options.clients // share, options.text)
            stage("load", folder)
            stage("load", folder)
            stage("train", folder, options.rounds)


if __name__ == "__main__":
    main()
