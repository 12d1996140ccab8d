"""How long a plain `fedrows run TASK` takes on two CPU cores, and what it comes to.

    FEDROWS_DATA=… python benchmarks/preset_times.py [TASK …]

Runs the tasks with their presets, one after another, each in a process of its own that has two
cores, two threads and no GPU. For each it writes to results/preset_times.json: the seconds from
start to end, the seconds of the processor, what else the machine had to do, and the test metrics as
the run's summary has them: each of the round with the best validation metric of its kind, or of the
last round where there are no validation examples. A TASK may have options, in quotes with it. What
is not named stays as the file has it. `docs/make_recommenders.py` then makes the table. Needs
Linux.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.speed.machine import facts
from fedrows.files.whole import as_json, write_whole

HERE = Path(__file__).parent
FILE = HERE / "results" / "preset_times.json"
TASKS = (
    "movielens-mf",
    "amazon-wide",
    "taobao",
    "movielens-rank",
    "movielens-rank-mf",
)
CORES = 2


def main(words: Sequence[str], file: Path = FILE) -> int:
    """Runs the tasks and writes the file after each; gives the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("tasks", metavar="TASK", nargs="*", default=TASKS)
    tasks, cores = parser.parse_args(words).tasks, sorted(os.sched_getaffinity(0))
    if len(cores) < CORES:
        print(f"This process may use {len(cores)} core only: give it {CORES}.")
        return 2
    for task in tasks:
        one = measured(task, cores[:CORES])
        print(task, json.dumps(one, indent=1), flush=True)
        before = json.loads(file.read_text("utf-8")) if file.exists() else {}
        write_whole(file, as_json({**before, task: one}, indent=1))
    return 0


def measured(task: str, cores: Sequence[int]) -> dict[str, Any]:
    """One run: its times, the load of the machine before and after it, and its test metrics."""
    with tempfile.TemporaryDirectory() as folder:
        env = {**os.environ, "OMP_NUM_THREADS": str(len(cores)), "CUDA_VISIBLE_DEVICES": ""}
        command = [sys.executable, "-m", "fedrows", "run", *task.split(), "--out", f"{folder}/run"]
        pinned = functools.partial(os.sched_setaffinity, 0, cores)
        load, cpu, since = os.getloadavg()[0], os.times(), time.perf_counter()
        subprocess.run(command, cwd=HERE.parent, env=env, preexec_fn=pinned, check=True)
        seconds, after = time.perf_counter() - since, os.times()
        config, summary = (
            json.loads(Path(folder, "run", name).read_text("utf-8"))
            for name in ("config.json", "summary.json")
        )
    spent = [getattr(after, x) - getattr(cpu, x) for x in ("children_user", "children_system")]
    [one] = summary["algorithms"]
    chosen = summary["chosen_on_validation"]
    metrics = {
        name: at["best" if name in chosen else "final"]["mean"]
        for name, at in one["metrics"].items()
        if name.startswith("test_") and at
    }
    return {
        "command": f"fedrows run {task}",
        "algorithm": one["name"],
        "seed": one["seeds"][0],
        "rounds": one["rounds"],
        "seconds": seconds,
        "processor_seconds": sum(spent),
        "load": {"before": load, "after": os.getloadavg()[0]},  # the run itself among it
        "metrics": {name: value for name, value in metrics.items() if value is not None},
        "machine": {**facts(), "threads": config["plan"]["threads"]},
    }


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
