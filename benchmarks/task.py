"""A task's algorithms at its presets, with nothing but torch and numpy: for a GPU machine.

    FEDROWS_DATA=… python benchmarks/task.py amazon --algorithms fedavg,fedsubavg --rounds 100 \
        --seeds 0,1,2 --device cuda --out amazon.jsonl

Writes the lines of metrics.jsonl, and prints the best and the last of each run. `fedrows report`
makes a page of a folder with such a file, `fedrows compare` does all of it where rich is installed.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from fedrows import catalogue
from fedrows.plan import Plan
from fedrows.simulation import Simulation
from fedrows.task import presets


def main() -> None:
    """Runs every algorithm with every seed."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("task")
    parser.add_argument("--algorithms", default="fedavg,fedsubavg,centralsgd")
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--seeds", default="0")
    parser.add_argument("--every", type=int, default=5)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--chunk", type=int, default=None)
    parser.add_argument("--out", default=None)
    given = parser.parse_args()
    task = catalogue.task(given.task)
    start = time.perf_counter()
    data = task.load(task.options())
    print(f"{task.name}: {data.clients} clients, loaded in {time.perf_counter() - start:.1f} s")
    for note in data.notes:
        print(note)
    lines = []
    for name in given.algorithms.split(","):
        for seed in map(int, given.seeds.split(",")):
            plan, own = presets(task, name)
            more = {"rounds": given.rounds, "seed": seed, "device": given.device}
            settings = Plan(**{**plan, **more, "evaluate_every": given.every, "chunk": given.chunk})
            model = catalogue.model(task.model)(data, seed)
            run = Simulation(data, model, catalogue.algorithm(name)(**own), settings)
            found = []
            for _ in run:
                if run.due:
                    found.append(run.evaluate())
            lines += found
            last = found[-1]
            print(
                f"{name:14} seed {seed}  best AUC {max(x['test_auc'] for x in found):.4f}  last "
                f"{last['test_auc']:.4f}  train loss {min(x['train_loss'] for x in found):.4f} "
                f"{last['train_loss']:.4f}  test loss {last['test_loss']:.4f}  accuracy "
                f"{last['test_accuracy']:.4f}  {last['seconds']:.1f} s",
                flush=True,
            )
            if given.out:
                Path(given.out).write_text("".join(json.dumps(line) + "\n" for line in lines))


if __name__ == "__main__":
    main()
